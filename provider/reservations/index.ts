/**
 * Addresses at run time, for the command line and other interfaces. Arguments are parsed by the schemas in `inputs.ts`, results are
 * plain data, and every failure is an OverlayError.
 */

export { DEFAULT_TTL } from "../resources/ip-reservation";
export * from "./history";
export * from "./hold";
export * from "./import";
export * from "./inputs";
export {
  type AddressLease,
  describeLease,
  formatExtents as extentsText,
  formatTime as timeText,
  ipOf,
  isImported,
  isOfStack,
  isOfVm,
} from "./leases";
export * from "./release";
export { type Reservation, reserve } from "./reserve";
export * from "./runners";
export * from "./search";
export { type Context, validateToken } from "./tokens";
export * from "./usage";
export * from "./use";
