export * from "../pool/extents";
