import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";
import { openIpam } from "../../../provider/ipam";
import type { Webhook } from "../../../provider/ipam/admin";
import type { Store } from "../../../provider/ipam/types";
import {
  createWebhook,
  listWebhooks,
  removeWebhook,
  resumeWebhook,
  signatureOf,
  webhookInput,
} from "../../../provider/webhooks/webhooks";
import { WebhookDeliveries } from "../../../service/events/deliveries";
import { afterFailure, DELIVERY_TIMES, type DeliveryTimes } from "../../../service/events/delivery";
import { EventFeed } from "../../../service/events/feed";
import { by, createPoolOn, ranges } from "../../contract/fixture";
import { hmacOf, Receiver } from "./receiver";

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

const TIMES: Partial<DeliveryTimes> = { firstRetry: 20, longestRetry: 100, recheck: 50 };

async function newPool(): Promise<Store> {
  const pool = await openIpam("memory:", { offerTtl: 60, quarantine: 0 });
  await createPoolOn(pool, { ranges: ranges("10.0.0.0/20") });
  await createPoolOn(pool, {
    name: "pool/q",
    ranges: ranges("10.9.0.0/20"),
    tenant: { org: "acme", project: "web" },
  });
  return pool;
}

/** What one process does for the webhooks of a store. */
function startDeliveries(pool: Store, times: Partial<DeliveryTimes> = {}) {
  const failures: string[] = [];
  const feed = new EventFeed(pool, { pollMs: 5 });
  const deliveries = new WebhookDeliveries(pool.admin.webhooks, feed, {
    times: { ...TIMES, ...times },
    report: (_, failure) => failure !== undefined && failures.push(failure),
    onError: (error) => failures.push(String(error)),
  });
  deliveries.start();
  ends.push(() => deliveries.stop());
  return { deliveries, failures };
}

async function newReceiver(): Promise<Receiver> {
  const receiver = await Receiver.start();
  ends.push(() => receiver.stop());
  return receiver;
}

const add = (pool: Store, { url }: Receiver, more: object = {}): Promise<Webhook> =>
  createWebhook({ pool, createdBy: "test" }, webhookInput.parse({ url, ...more }));

async function claimAll(pool: Store, names: string[], from = "pool/p"): Promise<number[]> {
  const { last } = await pool.events({});
  for (const name of names) await pool.claim([by(name, { pool: from, tenant: { org: "acme", project: "web" } })]);
  return names.map((_, i) => last + 1 + i);
}

const named = (count: number): string[] => Array.from({ length: count }, (_, i) => `o${i}`);

test("of webhooks that are added at the same time, those past the limit are refused", async () => {
  const [pool, receiver] = [await newPool(), await newReceiver()];
  const results = await Promise.allSettled(Array.from({ length: 105 }, () => add(pool, receiver)));
  const refused = results.filter(({ status }) => status === "rejected");
  expect(refused).toEqual(
    Array(5).fill({ status: "rejected", reason: expect.objectContaining({ code: "WEBHOOK_LIMIT" }) }),
  );
  expect(await pool.admin.webhooks.list()).toHaveLength(100);
});

const waitFor = (check: () => void) => vi.waitFor(check, { timeout: 20_000, interval: 10 });

describe("a delivery", () => {
  test("has events in order, the newest id, and a signature of time and body", async () => {
    const [pool, receiver] = [await newPool(), await newReceiver()];
    const { secret } = await add(pool, receiver);
    startDeliveries(pool);
    const ids = await claimAll(pool, ["a", "b", "c"]);
    await waitFor(() => expect(receiver.ids).toEqual(ids));
    for (const { headers, body, ids } of receiver.received) {
      const [, time, signature] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(String(headers["overlay-signature"]))!;
      expect(signature).toBe(hmacOf(secret, `${time}.${body}`));
      expect(Math.abs(Number(time) - Date.now() / 1000)).toBeLessThan(60);
      expect(headers["overlay-event-id"]).toBe(String(ids.at(-1)));
      expect(headers["content-type"]).toBe("application/json");
    }
    const [first] = JSON.parse(receiver.received[0]!.body).events;
    expect(first).toMatchObject({ id: ids[0], what: "claimed", pool: "pool/p", owner: "a", value: "10.0.0.0" });
  });

  test("contains no event from before the webhook, and none that is not for it", async () => {
    const [pool, all, ofPool, ofTenant] = [await newPool(), ...(await Promise.all([1, 2, 3].map(newReceiver)))];
    await claimAll(pool, ["early"]);
    await add(pool, all!);
    await add(pool, ofPool!, { pool: "q" });
    await add(pool, ofTenant!, { tenant: "acme/other" });
    startDeliveries(pool);
    const inP = await claimAll(pool, ["a", "b"]);
    const inQ = await claimAll(pool, ["c", "d"], "pool/q");
    await waitFor(() => expect(all!.ids).toEqual([...inP, ...inQ]));
    await waitFor(() => expect(ofPool!.ids).toEqual(inQ));
    expect(ofTenant!.ids).toEqual([]);
  });

  test.each([[500], [404], [302], [undefined]])(
    "that is answered with %s is made again, before later events",
    async (status) => {
      const [pool, receiver] = [await newPool(), await newReceiver()];
      await add(pool, receiver);
      receiver.answers.push(...Array(3).fill(status ?? 204));
      if (status === undefined) await receiver.stop(); // refuses connections
      const { failures } = startDeliveries(pool);
      const ids = await claimAll(pool, named(20));
      if (status === undefined) return waitFor(() => expect(failures.length).toBeGreaterThan(2));
      await waitFor(() => expect(receiver.ids).toEqual(ids));
      expect(failures).toEqual(Array(3).fill(`The receiver answered with status ${status}.`));
      await vi.waitFor(async () =>
        expect((await listWebhooks(pool))[0]).toMatchObject({ state: "active", pending: 0 }),
      );
    },
  );

  test("to a receiver that does not answer delays no other webhook", async () => {
    const [pool, dead, alive] = [await newPool(), await newReceiver(), await newReceiver()];
    dead.answers.push("hang", "hang");
    await add(pool, dead);
    await add(pool, alive);
    startDeliveries(pool);
    const ids = await claimAll(pool, named(50));
    const began = Date.now();
    await waitFor(() => expect(alive.ids).toEqual(ids));
    expect(Date.now() - began).toBeLessThan(5000);
    expect(dead.ids).toEqual([]);
  });
});

describe("several processes", () => {
  test("deliver each event once while none of them fails", async () => {
    const [pool, receiver] = [await newPool(), await newReceiver()];
    for (let i = 0; i < 3; i++) startDeliveries(pool);
    await add(pool, receiver);
    const ids = await claimAll(pool, named(200));
    await waitFor(() => expect(receiver.ids).toEqual(ids));
  });

  test("go on where one of them was stopped", async () => {
    const [pool, receiver] = [await newPool(), await newReceiver()];
    await add(pool, receiver);
    const first = startDeliveries(pool);
    const early = await claimAll(pool, named(30));
    await waitFor(() => expect(receiver.ids.length).toBeGreaterThan(0));
    await first.deliveries.stop();
    startDeliveries(pool);
    const late = await claimAll(pool, ["x", "y"]);
    await waitFor(() => expect(receiver.ids).toEqual([...early, ...late]));
  });

  test("go on after the right to deliver of one that was killed has ended", async () => {
    const [pool, receiver] = [await newPool(), await newReceiver()];
    const { id } = await add(pool, receiver);
    await pool.admin.webhooks.updateDelivery(id, (delivery, now) => ({
      ...delivery,
      holder: "killed",
      heldUntil: now + 400,
    }));
    startDeliveries(pool);
    const ids = await claimAll(pool, ["a"]);
    const began = Date.now();
    await waitFor(() => expect(receiver.ids).toEqual(ids));
    expect(Date.now() - began).toBeGreaterThan(200);
  });
});

test("a webhook that fails for too long is suspended, and resumed where it stopped", async () => {
  const [pool, receiver] = [await newPool(), await newReceiver()];
  const { id } = await add(pool, receiver);
  receiver.answers.push(...Array(1000).fill(503));
  startDeliveries(pool, { giveUp: 200 });
  const ids = await claimAll(pool, named(5));
  await vi.waitFor(async () => expect((await listWebhooks(pool))[0]).toMatchObject({ state: "suspended" }), 20_000);
  expect((await listWebhooks(pool))[0]).toMatchObject({ error: "The receiver answered with status 503.", pending: 5 });
  receiver.answers.length = 0;
  await resumeWebhook(pool, id);
  await waitFor(() => expect(receiver.ids).toEqual(ids));
});

test("a delivery that is ended by the stop of the process is no failure of the receiver", async () => {
  const [pool, receiver] = [await newPool(), await newReceiver()];
  await add(pool, receiver);
  receiver.answers.push("hang");
  const { deliveries, failures } = startDeliveries(pool);
  const ids = await claimAll(pool, ["a"]);
  await waitFor(() => expect(receiver.answers).toEqual([]));
  await deliveries.stop();
  expect(failures).toEqual([]);
  expect(await listWebhooks(pool)).toMatchObject([{ state: "active" }]);
  startDeliveries(pool);
  await waitFor(() => expect(receiver.ids).toEqual(ids));
});

test("a webhook that was removed gets nothing more", async () => {
  const [pool, receiver] = [await newPool(), await newReceiver()];
  const { id } = await add(pool, receiver);
  const { deliveries } = startDeliveries(pool);
  const ids = await claimAll(pool, ["a"]);
  await waitFor(() => expect(receiver.ids).toEqual(ids));
  await removeWebhook(pool, id);
  deliveries.reload();
  await claimAll(pool, ["b"]);
  await deliveries.stop();
  expect(receiver.ids).toEqual(ids);
  await expect(removeWebhook(pool, id)).rejects.toThrow(/^WEBHOOK_NOT_FOUND/);
  await expect(resumeWebhook(pool, id)).rejects.toThrow(/^WEBHOOK_NOT_FOUND/);
});

test("a receiver is told that events are lost, and gets later ones", async () => {
  const [pool, receiver] = [await newPool(), await newReceiver()];
  const { id } = await add(pool, receiver);
  await pool.admin.webhooks.updateDelivery(id, () => ({ delivered: 999 })); // as after the restore of an older backup
  startDeliveries(pool);
  await waitFor(() => expect(receiver.received[0]?.lost).toMatchObject({ code: "EVENTS_LOST" }));
  const ids = await claimAll(pool, ["a"]);
  await waitFor(() => expect(receiver.ids).toEqual(ids));
});

test("failures are retried with exponential backoff of at most an hour, for a day", () => {
  const hour = 3_600_000;
  let [delivery, now] = [afterFailure({ delivered: 7 }, "no", { now: 0, jitter: 1, times: DELIVERY_TIMES }), 0];
  const waits: number[] = [];
  while (!delivery.suspended) {
    waits.push(delivery.retryAt! - now);
    now = delivery.retryAt!;
    delivery = afterFailure(delivery, "no", { now, jitter: 1, times: DELIVERY_TIMES });
  }
  expect(waits.slice(0, 5)).toEqual([1000, 2000, 4000, 8000, 16_000]);
  expect(Math.max(...waits)).toBe(hour);
  expect(now).toBeGreaterThanOrEqual(24 * hour);
  expect(now).toBeLessThan(25 * hour);
  expect(delivery).toMatchObject({ delivered: 7, failedSince: 0, failures: waits.length + 1 });
});

test("the check of docs/events.md accepts a signature, and refuses changes of secret, body and time", async () => {
  const docs = readFileSync(join(__dirname, "../../../docs/events.md"), "utf8");
  const [, code] = /```js\n(.*?)```/s.exec(docs)!;
  const { isFromOverlay } = (await import(`data:text/javascript,${encodeURIComponent(code!)}`)) as {
    isFromOverlay(secret: string, header: string | undefined, body: string, now?: number): boolean;
  };
  const now = Date.now() / 1000;
  const header = signatureOf("whsec_a", Math.floor(now), '{"events":[]}');
  expect(isFromOverlay("whsec_a", header, '{"events":[]}')).toBe(true);
  expect(isFromOverlay("whsec_b", header, '{"events":[]}')).toBe(false);
  expect(isFromOverlay("whsec_a", header, '{"events":[1]}')).toBe(false);
  expect(isFromOverlay("whsec_a", header, '{"events":[]}', now + 301)).toBe(false);
  expect(isFromOverlay("whsec_a", header.replace(/^t=./, "t=2"), '{"events":[]}')).toBe(false);
  expect(isFromOverlay("whsec_a", undefined, '{"events":[]}')).toBe(false);
});

test.each([
  ["https://example.com/hook?x=1", true],
  ["https://10.0.0.5:8443/", true],
  ["http://127.0.0.1:9000/", true],
  ["http://localhost/", true],
  ["http://[::1]:80/", true],
  ["http://example.com/", false],
  ["http://10.0.0.5/", false],
  ["http://127.0.0.1.example.com/", false],
  ["https://user:secret@example.com/", false],
  ["https://example.com/#x", false],
  ["ftp://example.com/", false],
  ["file:///etc/passwd", false],
  ["nonsense", false],
])("a webhook to %s is allowed: %s", (url, allowed) => {
  expect(webhookInput.safeParse({ url }).success).toBe(allowed);
});
