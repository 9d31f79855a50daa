import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { isOverlayError } from "../../provider/errors";
import type { Webhook } from "../../provider/ipam/admin";
import type { Observer } from "../../provider/ipam/session";
import type { Store } from "../../provider/ipam/types";
import { withStoreTimeout } from "../readiness";
import { PoolMetrics } from "./pool-metrics";

/** Seconds. A transaction on SQLite takes about a millisecond, one that waits for a lock some seconds. */
const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

export interface MetricsOptions {
  version: string;
  /** The version of Node.js. */
  node: string;
  /** Pools with series of their own. */
  mostPools: number;
  /** For tests: milliseconds. */
  now?: () => number;
}

/** What a request was, for its histogram. */
export interface RequestSample {
  method: string;
  /** The pattern of the route. */
  route: string;
  status: number;
  seconds: number;
}

/** What a gRPC call was. */
export interface CallSample {
  /** Its path, `/SERVICE/METHOD`. */
  method: string;
  /** The name of its status. */
  status: string;
  seconds: number;
}

/** The metrics of one process that serves a pool, for Prometheus. */
export class Metrics {
  readonly #registry = new Registry();
  readonly #pools: PoolMetrics;
  readonly #requests: Histogram<"method" | "route" | "status">;
  readonly #calls: Histogram<"method" | "status">;
  readonly #transactions: Histogram<"kind">;
  readonly #storeErrors: Counter<"code">;
  readonly #conflicts: Counter;
  readonly #streams: Gauge;
  readonly #deliveries: Counter<"webhook" | "result">;
  readonly #pending: Gauge<"webhook">;
  /** Webhooks whose deliveries are counted. */
  readonly #counted = new Set<string>();

  constructor({ version, node, mostPools, now }: MetricsOptions) {
    const registers = [this.#registry];
    collectDefaultMetrics({ register: this.#registry });
    this.#pools = new PoolMetrics(this.#registry, mostPools, now);
    this.#requests = new Histogram({
      name: "overlay_http_request_duration_seconds",
      help: "Requests, by the pattern of their route.",
      labelNames: ["method", "route", "status"],
      buckets: BUCKETS,
      registers,
    });
    this.#calls = new Histogram({
      name: "overlay_grpc_call_duration_seconds",
      help: "gRPC calls, without streams.",
      labelNames: ["method", "status"],
      buckets: BUCKETS,
      registers,
    });
    this.#transactions = new Histogram({
      name: "overlay_store_transaction_duration_seconds",
      help: "Transactions of the store, retries included.",
      labelNames: ["kind"],
      buckets: BUCKETS,
      registers,
    });
    this.#storeErrors = new Counter({
      name: "overlay_store_errors_total",
      help: "Operations that failed because of the store.",
      labelNames: ["code"],
      registers,
    });
    this.#conflicts = new Counter({
      name: "overlay_store_conflicts_total",
      help: "Transactions that were tried again because another process was first.",
      registers,
    });
    this.#streams = new Gauge({ name: "overlay_event_streams", help: "Open event streams.", registers });
    this.#deliveries = new Counter({
      name: "overlay_webhook_deliveries_total",
      help: "Deliveries that this instance has attempted.",
      labelNames: ["webhook", "result"],
      registers,
    });
    this.#pending = new Gauge({
      name: "overlay_webhook_pending_events",
      help: "Events that are not delivered yet, also those that are not for the webhook.",
      labelNames: ["webhook"],
      registers,
    });
    const build = { name: "overlay_build_info", help: "Always 1.", labelNames: ["version", "node"], registers };
    new Gauge(build).set({ version, node }, 1);
  }

  /** Of the pool that this process has opened. */
  readonly observer: Required<Observer> = {
    committed: (events) => this.#pools.countEvents(events),
    claimFailed: (pool, error) => this.#pools.countFailure(pool, codeOf(error)),
    operationFailed: (error) => {
      if (isStoreError(error)) this.#storeErrors.inc({ code: codeOf(error) });
    },
    transaction: (kind, seconds) => this.#transactions.observe({ kind }, seconds),
    conflict: () => this.#conflicts.inc(),
  };

  observeRequest({ method, route, status, seconds }: RequestSample): void {
    this.#requests.observe({ method, route, status }, seconds);
  }

  observeCall({ method, status, seconds }: CallSample): void {
    this.#calls.observe({ method, status }, seconds);
  }

  /** A stream was opened. Returns what is to be called when it is closed. */
  openStream(): () => void {
    this.#streams.inc();
    return () => this.#streams.dec();
  }

  countDelivery({ id }: Webhook, failure: string | undefined): void {
    this.#counted.add(id);
    this.#deliveries.inc({ webhook: id, result: failure === undefined ? "delivered" : "failed" });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** All metrics, in the text format of Prometheus. A store that does not answer delays them by two seconds at most. */
  async render(pool: Store): Promise<string> {
    await Promise.all([this.#pools.update(pool), this.#updatePending(pool)]);
    return this.#registry.metrics();
  }

  #forgetWebhook(webhook: string): void {
    this.#counted.delete(webhook);
    for (const result of RESULTS) this.#deliveries.remove({ webhook, result });
  }

  async #updatePending(pool: Store): Promise<void> {
    const read = async () => ({
      deliveries: await pool.admin.webhooks.deliveries(),
      last: (await pool.events({})).last,
    });
    const found = await withStoreTimeout(read()).catch(() => undefined);
    this.#pending.reset();
    if (!found) return;
    const { deliveries, last } = found;
    for (const id of this.#counted) if (!deliveries.has(id)) this.#forgetWebhook(id);
    for (const [webhook, { delivered }] of deliveries) this.#pending.set({ webhook }, Math.max(0, last - delivered));
  }
}

const RESULTS = ["delivered", "failed"];

const codeOf = (error: unknown): string => (isOverlayError(error) ? error.code : "INTERNAL");

/** Others are refusals. */
const isStoreError = (error: unknown): boolean => !isOverlayError(error) || error.code.startsWith("STORE_");
