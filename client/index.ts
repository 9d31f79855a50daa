/** The client of `overlayctl serve`, for browsers and Node: it needs `fetch`, and zod to parse answers. */

export { OverlayClient, type ReserveOptions, type UseOptions } from "./client";
export { type ClientCode, OverlayServiceError } from "./errors";
export type * from "./routes";
export type { CallOptions, ClientOptions } from "./transport";
