export * from "../pool/errors";
