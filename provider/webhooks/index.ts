/** Receivers of events by HTTP. `service/events` delivers to them. */

export * from "./signature";
export * from "./webhooks";
