/** The pool over gRPC: an interface of `overlayctl serve`. Loaded when it is asked for. */

export { TlsCredentials } from "./credentials";
export { GrpcServer } from "./server";
