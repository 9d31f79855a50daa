/** Who may do what over the network: access tokens, their scopes and bounds. */

export * from "./access-tokens";
export { Authenticator } from "./authenticate";
export { BoundedPool, isBounded } from "./bounded-pool";
export * from "./bounds";
export * from "./caller";
