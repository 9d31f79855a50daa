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

/** Areas of the API, in the order of the OpenAPI document. */
export const TAGS = {
  reservations: "Reserve, use and release addresses.",
  addresses: "Free addresses, and the holders of addresses.",
  pools: "Pools, how full they are, and their history.",
  runners: "Configuration, heartbeat and report of a runner.",
  events: "Changes of leases as they are made.",
  webhooks: "Receivers of events by HTTP.",
  health: "State and metrics of the service.",
};

interface Group {
  prefix: string;
  /** Absent: its routes are not in the OpenAPI document. */
  tag?: keyof typeof TAGS;
  group: RouteGroup;
}

/** All groups of routes. A new group is a file in this folder and a line here. */
export const ROUTE_GROUPS: Group[] = [
  { prefix: "", tag: "health", group: healthRoutes },
  { prefix: "", tag: "health", group: metricsRoutes },
  { prefix: "/api/overlay", tag: "reservations", group: reservationRoutes },
  { prefix: "/api/overlay", tag: "addresses", group: addressRoutes },
  { prefix: "/api/overlay", tag: "pools", group: poolRoutes },
  { prefix: "/api/overlay", tag: "runners", group: runnerRoutes },
  { prefix: "/api/overlay", tag: "events", group: eventRoutes },
  { prefix: "/api/overlay", tag: "webhooks", group: webhookRoutes },
  { prefix: "/api/pool/v1", group: operationRoutes },
];
