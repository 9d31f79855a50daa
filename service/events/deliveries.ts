import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Webhook, Webhooks } from "../../provider/ipam/admin";
import { DELIVERY_TIMES, type DeliveryContext, type DeliveryTimes, WebhookDelivery } from "./delivery";
import type { EventFeed } from "./feed";

/** Milliseconds until a request that is under way is ended when the process stops. */
const STOP_MS = 3000;

export interface DeliveriesOptions {
  times?: Partial<DeliveryTimes>;
  report?: DeliveryContext["report"];
  /** The store has failed; it is asked again. */
  onError?(error: unknown): void;
}

interface Running {
  stop: AbortController;
  ended: Promise<void>;
}

/** Delivers to all webhooks of the store, each by itself, so that a receiver that does not answer delays no other. */
export class WebhookDeliveries {
  readonly #running = new Map<string, Running>();
  readonly #stop = new AbortController();
  readonly #abortPosts = new AbortController();
  readonly #context: DeliveryContext;
  #loop: Promise<void> | undefined;
  #reload = new AbortController();

  constructor(
    webhooks: Webhooks,
    feed: EventFeed,
    private readonly options: DeliveriesOptions = {},
  ) {
    this.#context = {
      webhooks,
      feed,
      instance: randomUUID(),
      times: { ...DELIVERY_TIMES, ...options.times },
      report: options.report ?? (() => {}),
    };
  }

  start(): void {
    this.#loop ??= this.#follow();
  }

  /** After this process has added or removed webhooks. Changes of others are noticed after `recheck`. */
  reload(): void {
    this.#reload.abort();
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    this.reload();
    const timer = setTimeout(() => this.#abortPosts.abort(), STOP_MS);
    const running = [...this.#running.values()];
    for (const { stop } of running) stop.abort();
    await Promise.all([this.#loop, ...running.map(({ ended }) => ended)]);
    clearTimeout(timer);
  }

  async #follow(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      this.#reload = new AbortController();
      await this.#context.webhooks
        .list()
        .then((webhooks) => this.#run(webhooks))
        .catch((error: unknown) => this.options.onError?.(error));
      await sleep(this.#context.times.recheck, undefined, { signal: this.#reload.signal }).catch(() => {});
    }
  }

  #run(webhooks: Webhook[]): void {
    const ids = new Set(webhooks.map(({ id }) => id));
    for (const [id, { stop }] of this.#running) if (!ids.has(id)) stop.abort();
    for (const webhook of webhooks) {
      if (this.#running.has(webhook.id) || this.#stop.signal.aborted) continue;
      const stop = new AbortController();
      const ended = this.#deliver(webhook, stop.signal).finally(() => this.#running.delete(webhook.id));
      this.#running.set(webhook.id, { stop, ended });
    }
  }

  /** Until it is removed. Ends as well when the store fails: the next look at the list of webhooks starts it again. */
  async #deliver(webhook: Webhook, signal: AbortSignal): Promise<void> {
    const delivery = new WebhookDelivery(webhook, this.#context, this.#abortPosts.signal);
    await delivery.run(signal).catch((error: unknown) => this.options.onError?.(error));
  }
}
