import { z } from "zod";
import {
  addressAnswer,
  availabilityAnswer,
  batchAnswer,
  configAnswer,
  createdWebhookAnswer,
  deletedPoolAnswer,
  eventAnswer,
  healthAnswer,
  heartbeatAnswer,
  historyAnswer,
  infoAnswer,
  leaseAnswer,
  leasePage,
  poolPage,
  poolStatusAnswer,
  readinessAnswer,
  releaseAnswer,
  reportAnswer,
  reservationAnswer,
  totalsAnswer,
  validationAnswer,
  webhookIdAnswer,
  webhooksAnswer,
} from "../provider/answers";
import type {
  addressHistoryFields,
  availableFields,
  createPoolFields,
  eventFields,
  freeFields,
  historyFields,
  placeFields,
  poolPageFields,
  releaseFields,
  reportFields,
  reserveFields,
  searchFields,
  useFields,
  validateFields,
  webhookFields,
} from "../service/inputs";
import type { Effect } from "./retry";

export type {
  AddressLease as Lease,
  AddressStatus,
  Availability,
  Change,
  CreatedWebhook,
  Heartbeat,
  LeasePage,
  NumberedChange as OverlayEvent,
  PoolPage,
  PoolStatus,
  PoolTotals as Totals,
  Release,
  Reservation,
  RunnerConfig,
  RunnerInfo,
  RunnerReport,
  Validation,
  WebhookInfo as Webhook,
} from "../provider/answers";

// The routes of the service. Types of inputs and answers follow from its own schemas; `@interface` lists their properties in the reference.

/** @interface */
export type ReserveInput = Omit<z.input<typeof reserveFields>, "count">;
/** @interface */
export type BatchInput = Omit<z.input<typeof reserveFields>, "count" | "container" | "ip" | "port"> & { count: number };
/** @interface */
export type ValidateInput = z.input<typeof validateFields>;
/** @interface */
export type UseInput = z.input<typeof useFields>;
/** @interface */
export type ReleaseInput = z.input<typeof releaseFields>;
/** @interface */
export type FreeInput = z.input<typeof freeFields>;
/** @interface */
export type SearchInput = z.input<typeof searchFields>;
/** @interface */
export type PlaceInput = z.input<typeof placeFields>;
/** @interface */
export type AvailableInput = z.input<typeof availableFields>;
/** @interface */
export type AddressHistoryInput = z.input<typeof addressHistoryFields>;
/** @interface */
export type HistoryInput = z.input<typeof historyFields>;
/** @interface */
export type PoolPageInput = z.input<typeof poolPageFields>;
/** @interface */
export type CreatePoolInput = z.input<typeof createPoolFields>;
/** @interface */
export type ReportInput = z.input<typeof reportFields>;

/** @interface */
export type EventInput = z.input<typeof eventFields>;
/** @interface */
export type WebhookInput = z.input<typeof webhookFields>;

/** @internal */
export interface Route<A> {
  method: "GET" | "POST" | "DELETE";
  /** `:name` stands for an input. */
  path: string;
  answer: z.ZodType<A>;
  effect: Effect;
  /** The answer is not JSON. */
  isText?: boolean;
}

const API = "/api/overlay";

const get = <A>(path: string, answer: z.ZodType<A>): Route<A> => ({
  method: "GET",
  path: `${API}${path}`,
  answer,
  effect: "repeatable",
});
const post = <A>(path: string, answer: z.ZodType<A>, effect: Effect): Route<A> => ({
  method: "POST",
  path: `${API}${path}`,
  answer,
  effect,
});
const remove = <A>(path: string, answer: z.ZodType<A>): Route<A> => ({
  method: "DELETE",
  path: `${API}${path}`,
  answer,
  effect: "once", // a second one finds nothing, or what was made under the same name since
});

/** @internal */
export const ROUTES = {
  health: { ...get("", healthAnswer), path: "/healthz" },
  readiness: { ...get("", readinessAnswer), path: "/readyz" },
  metrics: { ...get("", z.string()), path: "/metrics", isText: true },
  /** By its idempotency key, its container or its owner. */
  reserve: post("/ip/reserve", reservationAnswer, "repeatable"),
  reserveMany: post("/ip/reserve", batchAnswer, "repeatable"),
  validate: post("/ip/validate", validationAnswer, "repeatable"),
  /** The same container may use its address again. */
  use: post("/ip/use", leaseAnswer, "repeatable"),
  /** A second release finds nothing. */
  release: post("/ip/release", releaseAnswer, "repeatable"),
  /** The address may have another holder by then. */
  free: post("/ip/free", leaseAnswer, "once"),
  reservations: get("/ip/reservations", leasePage),
  available: get("/ip/available", availabilityAnswer),
  stats: get("/ip/stats", totalsAnswer),
  address: get("/addresses/:ip", addressAnswer),
  addressHistory: get("/addresses/:ip/history", historyAnswer),
  pools: get("/pools", poolPage),
  pool: get("/pools/:pool", poolStatusAnswer),
  poolHistory: get("/pools/:pool/history", historyAnswer),
  /** The same pool again is the same pool. */
  createPool: post("/pools", poolStatusAnswer, "repeatable"),
  deletePool: remove("/pools/:pool", deletedPoolAnswer),
  runnerInfo: get("/ip/info/:runner", infoAnswer),
  runner: get("/runners/:runner", configAnswer),
  heartbeat: post("/runners/:runner/heartbeat", heartbeatAnswer, "repeatable"),
  /** The same report again changes nothing. */
  report: post("/runners/:runner/report", reportAnswer, "repeatable"),
  events: get("/events", eventAnswer),
  webhooks: get("/webhooks", webhooksAnswer),
  /** A second one gets all events, too. */
  addWebhook: post("/webhooks", createdWebhookAnswer, "once"),
  resumeWebhook: post("/webhooks/:id/resume", webhookIdAnswer, "repeatable"),
  removeWebhook: remove("/webhooks/:id", webhookIdAnswer),
} as const;
