import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { openIpam } from "../../../provider/ipam";
import { claimOne } from "../../../provider/ipam/interface";
import type { EventPage, Ipam, LoggedEvent } from "../../../provider/ipam/types";
import { EventFeed, type FeedOptions } from "../../../service/events/feed";
import { by, createPoolOn, ranges } from "../../contract/fixture";

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0)) await end();
});

/** A pool with some claims, and a feed that counts its reads of the store. */
async function start(options: FeedOptions = {}) {
  const feeds: EventFeed[] = [];
  const pool = await openIpam("memory:", {
    offerTtl: 60,
    quarantine: 0,
    observer: { committed: () => feeds[0]?.wake() },
  });
  await createPoolOn(pool, { ranges: ranges("10.0.0.0/16") });
  const reads: (number | undefined)[] = [];
  const counted = {
    events: (options: { after?: number; limit?: number }): Promise<EventPage> => {
      reads.push(options.after);
      return pool.events(options);
    },
  };
  const feed = new EventFeed(counted, { pollMs: 10, ...options });
  feeds.push(feed);
  return { pool, feed, reads };
}

/** Follows until `count` events are there. */
async function take(feed: EventFeed, after: number, count: number): Promise<number[]> {
  const stop = new AbortController();
  ends.push(() => stop.abort());
  const ids: number[] = [];
  for await (const events of feed.follow(after, stop.signal)) {
    ids.push(...events.map(({ id }) => id));
    if (ids.length >= count) break;
  }
  return ids;
}

const claimAll = (pool: Ipam, count: number, name: string) =>
  Promise.all(Array.from({ length: count }, (_, i) => claimOne(pool, by(`${name}${i}`))));

const idsFrom = (first: number, count: number): number[] => Array.from({ length: count }, (_, i) => first + i);

test("followers that begin at different events get all later ones once, in order", async () => {
  const { pool, feed } = await start();
  const first = await feed.newest();
  await claimAll(pool, 300, "early");
  const followers = [
    take(feed, first, 500),
    take(feed, first + 123, 377),
    feed.newest().then((now) => take(feed, now, 200)),
  ];
  await sleep(30);
  await claimAll(pool, 200, "late");
  const [all, some, fresh] = await Promise.all(followers);
  expect(all).toEqual(idsFrom(first + 1, 500));
  expect(some).toEqual(idsFrom(first + 124, 377));
  expect(fresh).toEqual(idsFrom(first + 301, 200));
});

test("events of this process are read at once, those of others at the next poll", async () => {
  const { pool, feed } = await start({ pollMs: 60_000 });
  const now = await feed.newest();
  const event = take(feed, now, 1);
  await sleep(20);
  const began = Date.now();
  await pool.claim([by("a")]);
  expect(await event).toEqual([now + 1]);
  expect(Date.now() - began).toBeLessThan(5000);
});

test("the store is read only while there are followers, and once for all of them", async () => {
  const { pool, feed, reads } = await start({ pollMs: 5 });
  await sleep(30);
  expect(reads).toEqual([]);
  const now = await feed.newest();
  const followers = Array.from({ length: 20 }, () => take(feed, now, 50));
  await sleep(30);
  reads.length = 0;
  for (let i = 0; i < 50; i++) await pool.claim([by(`a${i}`)]);
  await Promise.all(followers);
  expect(feed.followers).toBe(0);
  expect(reads.length).toBeLessThan(20 * 10);
  await sleep(20);
  reads.length = 0;
  await sleep(50);
  expect(reads).toEqual([]);
});

test("a follower that is slow gets everything, from the store, and delays no other", async () => {
  const { pool, feed } = await start();
  const now = await feed.newest();
  const stop = new AbortController();
  const slow = feed.follow(now, stop.signal);
  const pulled = slow.next();
  for (let i = 0; i < 5; i++) await claimAll(pool, 600, `batch ${i} `);
  expect(await take(feed, now, 3000)).toEqual(idsFrom(now + 1, 3000));
  const ids = (await pulled).value!.map(({ id }) => id);
  while (ids.length < 3000) ids.push(...(await slow.next()).value!.map(({ id }) => id));
  expect(ids).toEqual(idsFrom(now + 1, 3000));
  stop.abort();
  await slow.return();
});

test("a follower without events is told so at intervals, and ends with its signal", async () => {
  const { feed } = await start();
  const stop = new AbortController();
  const pages: number[] = [];
  for await (const events of feed.follow(await feed.newest(), stop.signal, 20)) {
    pages.push(events.length);
    if (pages.length === 3) stop.abort();
  }
  expect(pages).toEqual([0, 0, 0]);
  expect(feed.followers).toBe(0);
});

/** A log that can fail, lose events, or be an older one. */
class FaultyLog {
  events_: LoggedEvent[] = [];
  fault: OverlayError | undefined;

  async events({ after, limit = 1000 }: { after?: number; limit?: number }): Promise<EventPage> {
    if (this.fault) throw this.fault;
    const last = this.events_.at(-1)?.id ?? 0;
    if (after === undefined) return { events: [], last };
    if (after > last || (after < last && !this.events_.some(({ id }) => id === after + 1)))
      throw new OverlayError("EVENTS_LOST", `There is no event ${after}.`, "List all again.");
    return { events: this.events_.filter(({ id }) => id > after).slice(0, limit), last };
  }

  add(...ids: number[]): void {
    for (const id of ids) this.events_.push({ id } as LoggedEvent);
  }
}

test("a store that fails for a while ends no follower", async () => {
  const log = new FaultyLog();
  log.add(1, 2);
  const errors: unknown[] = [];
  const feed = new EventFeed(log, { pollMs: 5, retryMs: 5, onError: (error) => errors.push(error) });
  const taken = take(feed, 2, 3);
  await sleep(20);
  log.fault = new OverlayError("STORE_UNAVAILABLE", "The server does not answer.", "Wait.");
  await sleep(30);
  log.add(3, 4, 5);
  log.fault = undefined;
  expect(await taken).toEqual([3, 4, 5]);
  expect(errors.length).toBeGreaterThan(0);
});

test("a follower whose next event is no longer kept fails with EVENTS_LOST, and others go on", async () => {
  const log = new FaultyLog();
  log.add(1, 2, 3, 4, 5);
  const feed = new EventFeed(log, { pollMs: 5 });
  const good = take(feed, 5, 2);
  await sleep(20);
  log.events_.splice(0, 3);
  await expect(take(feed, 1, 1)).rejects.toThrow(/^EVENTS_LOST/);
  log.add(6, 7);
  expect(await good).toEqual([6, 7]);
});

test("followers notice that an older backup of the store was restored", async () => {
  const log = new FaultyLog();
  log.add(1, 2, 3, 4, 5);
  const feed = new EventFeed(log, { pollMs: 5 });
  const taken = take(feed, 5, 1);
  await sleep(20);
  log.events_.splice(3);
  await expect(taken).rejects.toThrow(/^EVENTS_LOST/);
});
