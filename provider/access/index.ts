/** Who may do what over the network: access tokens, their scopes and bounds. */

export * from "./access-tokens";
export { Authenticator } from "./authenticate";
export * from "./bounds";
export * from "./caller";
export { isBounded, openAsOperator, openSession } from "./tenant-ipam";
