export * from "../pool/token";
