/** Who may do what over the network: access tokens, their scopes and bounds. */

export * from "./access-tokens";
export { Authenticator } from "./authenticate";
export { isBounded, openSession, operationsFor } from "./bounded-operations";
export * from "./bounds";
export * from "./caller";
