import type { RouteGroup } from "../app";
import { addressRoutes } from "./addresses";
import { healthRoutes } from "./health";
import { poolRoutes } from "./pools";
import { reservationRoutes } from "./reservations";
import { runnerRoutes } from "./runners";

/** All groups of routes, by prefix. A new group is a file in this folder and a line here. */
export const ROUTE_GROUPS: [prefix: string, group: RouteGroup][] = [
  ["/", healthRoutes],
  ["/api/overlay", reservationRoutes],
  ["/api/overlay", addressRoutes],
  ["/api/overlay", poolRoutes],
  ["/api/overlay", runnerRoutes],
];
