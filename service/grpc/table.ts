import type { ServiceName } from "./api";
import { ipamMethods } from "./ipam";
import type { Method } from "./methods";
import { reservationMethods } from "./reservations";

/** All methods of `overlay.proto`: the scope that each demands, the schema of its request, and its function. */
export const METHODS: Record<ServiceName, Record<string, Method>> = {
  Ipam: ipamMethods,
  Reservations: reservationMethods,
};
