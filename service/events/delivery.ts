import { setTimeout as sleep } from "node:timers/promises";
import { showEvents } from "../../provider/access/caller";
import type { NumberedChange } from "../../provider/answers";
import { isOverlayError, type OverlayError } from "../../provider/errors";
import type { Delivery, Webhook, Webhooks } from "../../provider/ipam/admin";
import type { EventFeed } from "./feed";
import { POST_TIMEOUT_MS, post } from "./post";
import { describeLoggedEvent } from "./stream";

/** Times of deliveries, in milliseconds. */
export const DELIVERY_TIMES = {
  /** For which a process has the right to deliver. More than twice as long as an answer may take: it is renewed in the second half. */
  hold: 3 * POST_TIMEOUT_MS,
  /** Between the first failure and the next attempt; doubled with each further failure. */
  firstRetry: 1000,
  longestRetry: 3_600_000,
  /** A webhook that fails for so long is suspended. */
  giveUp: 86_400_000,
  /** At most this long after a change of its delivery by another process, a waiting process notices it. */
  recheck: 5000,
};

export type DeliveryTimes = typeof DELIVERY_TIMES;

/** So many events that are not for a webhook are passed over before that is written down. */
const PASSED_OVER = 1000;

/** The body of a delivery. */
export interface DeliveryBody {
  /** In order, without gaps in what the webhook is for. */
  events: NumberedChange[];
  /** Events are missing here, because they are no longer kept. */
  lost?: { code: string; what: string; fix: string };
}

export interface DeliveryContext {
  webhooks: Webhooks;
  feed: EventFeed;
  /** Names this process among those on the store. */
  instance: string;
  times: DeliveryTimes;
  /** A delivery was made, or has failed for this reason. */
  report(webhook: Webhook, failure?: string): void;
}

/**
 * Delivers the events of one webhook, in order and at least once. The position is in the store, together with the process that has the right to deliver
 * and until when, so that all processes can run this at the same time, and another one goes on after one was killed.
 */
export class WebhookDelivery {
  constructor(
    private readonly webhook: Webhook,
    private readonly context: DeliveryContext,
    /** Ends a request that is under way: this process stops. */
    private readonly abortPosts: AbortSignal,
  ) {}

  /** Until the signal is aborted, or the webhook was removed. Rejects when the store fails. */
  async run(signal: AbortSignal): Promise<void> {
    try {
      let after = (await this.context.webhooks.deliveries()).get(this.webhook.id)?.delivered;
      while (after !== undefined && !signal.aborted) after = await this.#deliverAfter(after, signal);
    } finally {
      await this.#giveBack().catch(() => {}); // else the right ends by itself
    }
  }

  /** Returns the position from which to go on; undefined: the webhook was removed. */
  async #deliverAfter(after: number, signal: AbortSignal): Promise<number | undefined> {
    const { feed } = this.context;
    let written = after;
    try {
      for await (const events of feed.follow(after, signal)) {
        const last = events.at(-1)!.id;
        const own = showEvents(this.webhook, events).map(describeLoggedEvent);
        if (own.length === 0 && last - written < PASSED_OVER) continue;
        const body = own.length > 0 ? { events: own } : undefined;
        const delivered = await this.#deliver({ after: written, upTo: last, body }, signal);
        if (delivered !== last) return delivered;
        written = last;
      }
      return written;
    } catch (error) {
      if (!isOverlayError(error, "EVENTS_LOST")) throw error;
      return this.#deliver({ after: written, upTo: await feed.newest(), body: lostBody(error) }, signal);
    }
  }

  /**
   * Delivers what is between two events, if this process holds the webhook and no other one has delivered more. Without a body there is
   * nothing in between for this webhook. Returns up to which event all are delivered.
   */
  async #deliver(
    { after, upTo, body }: { after: number; upTo: number; body: DeliveryBody | undefined },
    signal: AbortSignal,
  ): Promise<number | undefined> {
    const [delivery, waitMs] = await this.#acquire();
    if (delivery && waitMs > 0) await sleep(waitMs, undefined, { signal }).catch(() => {});
    if (waitMs > 0 || delivery?.delivered !== after) return delivery?.delivered;
    const failure = body && (await this.#post(body, upTo));
    if (body && this.abortPosts.aborted) return after; // whether or not it has arrived, another process delivers it
    return (await this.#finish(upTo, failure))?.delivered;
  }

  async #post(message: DeliveryBody, upTo: number): Promise<string | undefined> {
    const eventId = message.events.at(-1)?.id ?? upTo;
    const failure = await post(this.webhook, { body: JSON.stringify(message), eventId }, this.abortPosts);
    if (!this.abortPosts.aborted) this.context.report(this.webhook, failure);
    return failure;
  }

  /** Takes or renews the right to deliver. The time is how long to wait instead, if another process has it or it is not time yet. */
  async #acquire(): Promise<[Delivery | undefined, waitMs: number]> {
    const { webhooks, instance, times } = this.context;
    let waitMs = 0;
    const delivery = await webhooks.updateDelivery(this.webhook.id, (delivery, now) => {
      waitMs = Math.min(waitBefore(delivery, instance, now), times.recheck);
      const { holder, heldUntil = 0 } = delivery;
      const isHeld = holder === instance && heldUntil - now > times.hold / 2;
      return waitMs > 0 || isHeld ? undefined : { ...delivery, holder: instance, heldUntil: now + times.hold };
    });
    return [delivery, waitMs];
  }

  async #finish(upTo: number, failure: string | undefined): Promise<Delivery | undefined> {
    const { webhooks, instance, times } = this.context;
    const jitter = 0.5 + Math.random() / 2;
    return webhooks.updateDelivery(this.webhook.id, (delivery, now) => {
      if (delivery.holder !== instance) return undefined; // another process goes on
      if (failure !== undefined) return afterFailure(delivery, failure, { now, jitter, times });
      return { delivered: upTo, holder: instance, heldUntil: now + times.hold };
    });
  }

  async #giveBack(): Promise<void> {
    const { webhooks, instance } = this.context;
    await webhooks.updateDelivery(this.webhook.id, ({ holder, heldUntil: _, ...rest }) =>
      holder === instance ? rest : undefined,
    );
  }
}

/** Milliseconds. */
function waitBefore(
  { holder, heldUntil = 0, retryAt = 0, suspended }: Delivery,
  instance: string,
  now: number,
): number {
  if (suspended) return Infinity;
  return Math.max(0, retryAt - now, holder === instance ? 0 : heldUntil - now);
}

/** Without a holder: the process that is ready first makes the next attempt. */
export function afterFailure(
  { delivered, failures = 0, failedSince }: Delivery,
  error: string,
  { now, jitter, times }: { now: number; jitter: number; times: DeliveryTimes },
): Delivery {
  const since = failedSince ?? now;
  const failed = { delivered, failures: failures + 1, failedSince: since, error };
  if (now - since >= times.giveUp) return { ...failed, suspended: true };
  const backoffMs = Math.min(times.longestRetry, times.firstRetry * 2 ** Math.min(failures, 30));
  return { ...failed, retryAt: Math.round(now + backoffMs * jitter) };
}

const lostBody = ({ code, what, fix }: OverlayError): DeliveryBody => ({ events: [], lost: { code, what, fix } });
