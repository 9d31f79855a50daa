import type { RouteGroup } from "../app";
import { eventRoutes } from "./events";
import { healthRoutes } from "./health";
import { metricsRoutes } from "./metrics";
import { reservationRoutes } from "./reservations";
import { webhookRoutes } from "./webhooks";

/** All groups of routes, by prefix. A new group is a file in this folder and a line here. */
export const ROUTE_GROUPS: [prefix: string, group: RouteGroup][] = [
  ["/", healthRoutes],
  ["/", metricsRoutes],
  ["/api/overlay", reservationRoutes],
  ["/api/overlay", eventRoutes],
  ["/api/overlay", webhookRoutes],
];
