import { newestEvent } from "./storage/event-log";
import { deliveries, deliveryKey, webhookKey, webhookOfDelivery, webhooks } from "./storage/keys";
import type { WriteBuffer } from "./storage/write-buffer";
import type { Delivery, Webhook, Webhooks } from "./types";

type Run = <T>(work: (tx: WriteBuffer) => Promise<T>) => Promise<T>;

/** Webhooks as rows of the store. */
export class StoredWebhooks implements Webhooks {
  constructor(
    private readonly read: Run,
    private readonly write: Run,
  ) {}

  list(): Promise<Webhook[]> {
    return this.read((tx) => tx.all(webhooks));
  }

  add(webhook: Webhook): Promise<void> {
    return this.write(async (tx) => {
      tx.put(webhookKey(webhook.id), webhook);
      tx.put(deliveryKey(webhook.id), { delivered: await newestEvent(tx) });
    });
  }

  remove(id: string): Promise<boolean> {
    return this.write(async (tx) => {
      const found = await tx.get(webhookKey(id));
      if (!found) return false;
      tx.delete(webhookKey(id));
      tx.delete(deliveryKey(id));
      return true;
    });
  }

  deliveries(): Promise<Map<string, Delivery>> {
    return this.read(async (tx) => {
      const rows = await tx.allRows(deliveries);
      return new Map(rows.map(([key, delivery]) => [webhookOfDelivery(key), delivery]));
    });
  }

  updateDelivery(
    id: string,
    change: (delivery: Delivery, now: number) => Delivery | undefined,
  ): Promise<Delivery | undefined> {
    return this.write(async (tx) => {
      const delivery = await tx.get(deliveryKey(id));
      const changed = delivery && change(delivery, tx.now);
      if (changed) tx.put(deliveryKey(id), changed);
      return changed ?? delivery;
    });
  }
}
