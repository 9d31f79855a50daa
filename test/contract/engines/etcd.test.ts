import { afterAll, beforeAll, describe, vi } from "vitest";
import { type EtcdOptions, openEtcd } from "../../../provider/ipam/store/etcd/engine";
import { Keys } from "../../../provider/ipam/store/etcd/keys";
import { EtcdKv, put } from "../../../provider/ipam/store/etcd/kv";
import { parseEtcdUrl } from "../../../provider/ipam/store/etcd/url";
import type { Engine, Query, Transaction } from "../../../provider/ipam/store/store";
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
    remember(asInContract(await openEtcd(url, options)), url);

  engineContract({ newUrl, open, sql, hasConnections: true, guardsConflict: true });
});

const queues = new Map<string, Promise<void>>();

/** Waits for what has called it before, and returns what lets the next one go on. */
async function takeTurn(place: string): Promise<() => Promise<void>> {
  let end = () => {};
  const before = queues.get(place);
  queues.set(
    place,
    new Promise((resolve) => {
      end = resolve;
    }),
  );
  await before;
  return async () => end();
}

/** The contract wants locks that are held from the begin of a transaction on; those of etcd conflict at the commit. */
function asInContract(engine: Engine): Engine {
  const begin = async (queries: Query[], locks?: string[]): Promise<Transaction> => {
    const unlock = locks?.length ? await takeTurn(engine.place) : async () => {};
    const tx = await engine.begin(queries, locks);
    return {
      ...{ now: tx.now, head: tx.head, rows: tx.rows, load: (more) => tx.load(more), rollBack: unlock },
      commit: (changes) => Promise.resolve(tx.commit(changes)).finally(unlock),
    };
  };
  return { readOnly: engine.readOnly, place: engine.place, begin, close: () => engine.close() };
}

/** The statements of the contract: damage of one column, and many old events and epochs. */
async function runSql(kv: EtcdKv, keys: Keys, text: string): Promise<void> {
  const [, table = "", column = "", value = ""] = /^UPDATE (\w+) SET (\w+) = (.*)$/s.exec(text) ?? [];
  if (table) return update(kv, keys, table, column, literal(value));
  const [, what, count] = /INSERT INTO (event|epoch) [\s\S]*FROM n WHERE i < (\d+)/.exec(text)!;
  const past = Number(/i <= 40 THEN (\d+)/.exec(text)?.[1]);
  const present = Number(/ELSE (\d+)/.exec(text)?.[1]);
  const event = { what: "claimed", pool: "p", owner: "o", uid: "u", lease_id: "u.1", ranges: "[]" };
  const puts = Array.from({ length: Number(count) }, (_, i) => {
    const row = what === "event" ? { ...event, id: i + 1, at: i < 40 ? past : present } : { first: i + 1, tag: "e" };
    return put(keys.at(what!, i + 1), JSON.stringify(row));
  });
  for (let i = 0; i < puts.length; i += 1000) await kv.txn([], puts.slice(i, i + 1000));
}

const literal = (text: string): unknown =>
  /^\d+$/.test(text)
    ? Number(text)
    : text
        .split(" || ")
        .map((part) => part.slice(1, -1))
        .join("");

async function update(kv: EtcdKv, keys: Keys, table: string, column: string, value: unknown): Promise<void> {
  const range = table === "store" ? { key: keys.store } : { key: keys.at(`${table}.`), end: keys.at(`${table}0`) };
  for (const { key, value: text } of (await kv.read([range])).found[0]!)
    if (text.startsWith("{")) await kv.txn([], [put(key, JSON.stringify({ ...JSON.parse(text), [column]: value }))]);
}
