import type { Logger } from "pino";
import { isOverlayError } from "../provider/errors";
import type { Observer } from "../provider/ipam/session";
import type { Store } from "../provider/ipam/types";
import { WebhookDeliveries } from "./events/deliveries";
import { EventFeed } from "./events/feed";
import { OpenStreams } from "./events/open-streams";
import { Metrics, type MetricsOptions } from "./metrics/metrics";

/** The pool of one process that serves it, what is measured of it, and the events of its store. */
export interface Instance {
  pool: Store;
  metrics: Metrics;
  feed: EventFeed;
  streams: OpenStreams;
  deliveries: WebhookDeliveries;
}

/** Opens the pool with an observer. */
export type OpenPool = (observer: Observer) => Promise<Store>;

export async function openInstance(openIpam: OpenPool, options: MetricsOptions, log: Logger): Promise<Instance> {
  const metrics = new Metrics(options);
  const followers: EventFeed[] = [];
  const pool = await openIpam({
    ...metrics.observer,
    committed: (events) => {
      metrics.observer.committed(events);
      for (const feed of followers) feed.wake();
    },
  });
  const onError = (error: unknown) =>
    log.warn({ code: isOverlayError(error) ? error.code : "INTERNAL" }, `Events cannot be read. ${error}`);
  const feed = new EventFeed(pool, { onError });
  followers.push(feed);
  const deliveries = new WebhookDeliveries(pool.admin.webhooks, feed, {
    onError,
    report: (webhook, failure) => {
      metrics.countDelivery(webhook, failure);
      if (failure !== undefined) log.warn({ webhook: webhook.id }, `A delivery failed. ${failure}`);
    },
  });
  return { pool, metrics, feed, streams: new OpenStreams(metrics), deliveries };
}
