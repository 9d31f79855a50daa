import type { RouteGroup } from "../app";
import { addressRoutes } from "./addresses";
import { eventRoutes } from "./events";
import { healthRoutes } from "./health";
import { metricsRoutes } from "./metrics";
import { operationRoutes } from "./operations";
import { poolRoutes } from "./pools";
import { reservationRoutes } from "./reservations";
import { runnerRoutes } from "./runners";
import { webhookRoutes } from "./webhooks";

/** All groups of routes, by prefix. A new group is a file in this folder and a line here. */
export const ROUTE_GROUPS: [prefix: string, group: RouteGroup][] = [
  ["/", healthRoutes],
  ["/", metricsRoutes],
  ["/api/overlay", reservationRoutes],
  ["/api/overlay", addressRoutes],
  ["/api/overlay", poolRoutes],
  ["/api/overlay", runnerRoutes],
  ["/api/overlay", eventRoutes],
  ["/api/overlay", webhookRoutes],
  ["/api/pool/v1", operationRoutes],
];
