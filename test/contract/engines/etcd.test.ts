import { afterAll, beforeAll, describe, vi } from "vitest";
import { type EtcdOptions, openEtcd } from "../../../provider/ipam/store/etcd/engine";
import { Keys } from "../../../provider/ipam/store/etcd/keys";
import { EtcdKv, put } from "../../../provider/ipam/store/etcd/kv";
import { parseEtcdUrl } from "../../../provider/ipam/store/etcd/url";
import type { Engine, Query, Rows, Transaction } from "../../../provider/ipam/store/store";
import { engineContract, remember } from "../engine";
import { type EtcdCluster, etcdMissing, startEtcd } from "../servers/etcd";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

describe.skipIf(etcdMissing)(`etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  let cluster: EtcdCluster;
  let prefixes = 0;
  beforeAll(async () => {
    cluster = await startEtcd("memory", { size: 1 });
  });
  afterAll(() => cluster?.stop());

  const newUrl = () => `etcd://${cluster.hosts}/p${prefixes++}`;
  const toolsOf = (url: string) => {
    const parsed = parseEtcdUrl(url);
    return { kv: new EtcdKv(cluster.client, parsed), keys: new Keys(parsed.prefix) };
  };
  const sql = async (url: string, text: (prefix: string) => string) => {
    const { kv, keys } = toolsOf(url);
    await runSql(kv, keys, text(""));
  };
  const open = async (url: string, options: EtcdOptions = {}) =>
    remember(asInContract(await openEtcd(url, options), url), url);

  engineContract({ newUrl, open, sql, hasConnections: true, guardsConflict: true });
});

/** The ids of all events that were ever seen in a store. */
const seen = new Map<string, number[]>();

/**
 * The contract counts events from 1; those of etcd have ids that grow, with gaps. And it wants locks that are held from the begin of a transaction
 * on: that of the engine is.
 */
function asInContract(engine: Engine, url: string): Engine {
  const ids = seen.get(url) ?? [];
  seen.set(url, ids);
  const add = (more: number[]) => {
    const all = new Set([...ids, ...more]);
    ids.splice(0);
    for (const id of [...all].sort((a, b) => a - b)) ids.push(id);
  };
  const learn = async () => {
    const tx = await engine.begin([{ of: "events", after: 0, limit: 1_000_000 }]);
    add((tx.rows.events ?? []).map(({ id }) => id));
  };
  const rank = (id: number) => ids.indexOf(id) + 1;
  const idAt = (query: Query): Query =>
    query.of === "events" ? { ...query, after: ids[query.after - 1] ?? 0 } : query;
  const ranked = ({ events, ...rows }: Rows): Rows => ({
    ...rows,
    ...(events && { events: events.map((event) => ({ ...event, id: rank(event.id) })) }),
  });
  const begin = async (queries: Query[], locks?: string[]): Promise<Transaction> => {
    const asksEvents = queries.some(({ of }) => of === "events");
    if (asksEvents) await learn();
    const unlock = locks?.length ? await engine.lock!() : async () => {};
    const tx = await engine.begin(queries.map(idAt), locks);
    if (tx.head.lastEvent > 0 && rank(tx.head.lastEvent) === 0) await learn();
    return {
      now: tx.now,
      head: { ...tx.head, lastEvent: rank(tx.head.lastEvent) },
      rows: ranked(tx.rows),
      load: async (more) => ranked(await tx.load(more.map(idAt))),
      commit: async (changes) => {
        const commit = await Promise.resolve(tx.commit(changes)).finally(unlock);
        if (commit.events.length > 0) await learn();
        return { ...commit, events: ranked({ events: commit.events }).events! };
      },
      rollBack: unlock,
    };
  };
  return { readOnly: engine.readOnly, place: engine.place, begin, close: () => engine.close() };
}

/** The statements of the contract: damage of one column, and many old events and epochs. */
async function runSql(kv: EtcdKv, keys: Keys, text: string): Promise<void> {
  const [, table = "", column = "", value = ""] = /^UPDATE (\w+) SET (\w+) = (.*)$/s.exec(text) ?? [];
  if (table === "store" && column === "last_event") return;
  if (table) return damage(kv, keys, table, column, literal(value));
  const [, what, count] = /INSERT INTO (event|epoch) [\s\S]*FROM n WHERE i < (\d+)/.exec(text)!;
  const past = Number(/i <= 40 THEN (\d+)/.exec(text)?.[1]);
  const present = Number(/ELSE (\d+)/.exec(text)?.[1]);
  const event = (at: number) =>
    JSON.stringify([{ at, what: "claimed", pool: "p", owner: "o", uid: "u", lease_id: "u.1", extents: "[]" }]);
  const puts = Array.from({ length: Number(count) }, (_, i) => {
    const at = i < 40 ? past : present;
    return what === "event"
      ? put(keys.at("event", 0, at, 1, `x${i}`, 0), event(at))
      : put(keys.at("epoch", i + 1), JSON.stringify({ first: i + 1, tag: "e" }));
  });
  // One at a time, because ids follow from revisions.
  const size = what === "event" ? 1 : 100;
  for (let i = 0; i < puts.length; i += size) await kv.txn([], puts.slice(i, i + size));
}

const literal = (text: string): unknown =>
  /^\d+$/.test(text)
    ? Number(text)
    : text
        .split(" || ")
        .map((part) => part.slice(1, -1))
        .join("");

async function damage(kv: EtcdKv, keys: Keys, table: string, column: string, value: unknown): Promise<void> {
  const change = (text: string): string => {
    const start = text.search(/[{[]/);
    const parsed = JSON.parse(text.slice(start));
    for (const row of Array.isArray(parsed) ? parsed : [parsed]) row[column === "epoch" ? "tag" : column] = value;
    return text.slice(0, start) + JSON.stringify(parsed);
  };
  const ranges = table === "store" ? [{ key: keys.epoch }] : [table, "owner", "in"].map((tree) => keys.below(tree));
  for (const range of table === "lease" || table === "offer" ? ranges : ranges.slice(0, 1))
    for (const { key, value: text } of (await kv.read([range])).found[0]!) await kv.txn([], [put(key, change(text))]);
}
