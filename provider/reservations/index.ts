/**
 * Addresses at run time: what the command line does today, and a service can do tomorrow. Arguments are parsed by the schemas in
 * `inputs.ts`, answers are plain data, and every failure is an OverlayError.
 */
export * from "./history";
export * from "./hold";
export * from "./import";
export * from "./inputs";
export { type AddressLease, describeLease, extentsText, ipOf, isImported, isOfStack, isOfVm, timeText } from "./leases";
export * from "./release";
export { DEFAULT_TTL, type Reservation, reserve } from "./reserve";
export * from "./runners";
export * from "./search";
export { type Context, validateToken } from "./tokens";
export * from "./usage";
export * from "./use";
