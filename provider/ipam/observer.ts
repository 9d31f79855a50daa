export * from "../pool/observer";
