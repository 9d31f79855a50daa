/**
 * Addresses at run time, for the command line and other interfaces. Arguments are parsed by the schemas in `inputs.ts`, results are
 * plain data, and every failure is an OverlayError.
 */

export { formatTime } from "../format-time";
export { DEFAULT_TTL } from "../resources/ip-reservation";
export * from "./allocations";
export * from "./availability";
export type { Context } from "./context";
export * from "./history";
export * from "./hold";
export * from "./import";
export * from "./inputs";
export {
  describeLease,
  ipOf,
  isImported,
  isOfStack,
  isOfVm,
} from "./leases";
export { free, release } from "./release";
export { type Reservation, reserve, reserveMany } from "./reserve";
export * from "./runner-report";
export * from "./runners";
export * from "./search";
export { createPool, deletePool } from "./service-pools";
export { type ValidToken, validateOffline, validateToken } from "./tokens";
export * from "./usage";
export { useAddress } from "./use";
