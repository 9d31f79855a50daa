import type { RouteGroup } from "../app";
import { healthRoutes } from "./health";
import { reservationRoutes } from "./reservations";

/** All groups of routes, by prefix. A new group is a file in this folder and a line here. */
export const ROUTE_GROUPS: [prefix: string, group: RouteGroup][] = [
  ["/", healthRoutes],
  ["/api/overlay", reservationRoutes],
];
