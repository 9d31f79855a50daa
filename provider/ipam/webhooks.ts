import type { DocumentKind, Head } from "./store/store";
import type { Delivery, Webhook, Webhooks } from "./types";

/** What webhooks need of a store. */
interface Documents {
  documents(kind: DocumentKind): Promise<{ key: string; value: string }[]>;
  changeDocument<T extends string | undefined>(
    kind: DocumentKind,
    key: string,
    replace: (kept: string | undefined, now: number, head: Head) => T,
  ): Promise<T>;
}

/** Webhooks are secrets of the store: each has the key that signs what is sent. */
const PREFIX = "webhook/";

/** Webhooks as documents of the store. */
export class StoredWebhooks implements Webhooks {
  constructor(private readonly store: Documents) {}

  async list(): Promise<Webhook[]> {
    const secrets = await this.store.documents("secret");
    return secrets.flatMap(({ key, value }) => (key.startsWith(PREFIX) ? [JSON.parse(value)] : []));
  }

  async add(webhook: Webhook): Promise<void> {
    await this.store.changeDocument("delivery", webhook.id, (_kept, _now, { lastEvent }) =>
      JSON.stringify({ delivered: lastEvent }),
    );
    await this.store.changeDocument("secret", PREFIX + webhook.id, () => JSON.stringify(webhook));
  }

  async remove(id: string): Promise<boolean> {
    let found = false;
    await this.store.changeDocument("secret", PREFIX + id, (kept): undefined => {
      found = kept !== undefined;
    });
    await this.store.changeDocument("delivery", id, (): undefined => {});
    return found;
  }

  async deliveries(): Promise<Map<string, Delivery>> {
    return new Map((await this.store.documents("delivery")).map(({ key, value }) => [key, JSON.parse(value)]));
  }

  async updateDelivery(
    id: string,
    change: (delivery: Delivery, now: number) => Delivery | undefined,
  ): Promise<Delivery | undefined> {
    const text = await this.store.changeDocument("delivery", id, (kept, now) => {
      const changed = kept === undefined ? undefined : change(JSON.parse(kept), now);
      return changed ? JSON.stringify(changed) : kept;
    });
    return text === undefined ? undefined : JSON.parse(text);
  }
}
