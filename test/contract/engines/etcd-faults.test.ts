import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { type EtcdOptions, openEtcd } from "../../../provider/ipam/store/etcd/engine";
import { Keys } from "../../../provider/ipam/store/etcd/keys";
import { EtcdKv, put } from "../../../provider/ipam/store/etcd/kv";
import { parseEtcdUrl } from "../../../provider/ipam/store/etcd/url";
import { Conflict, type Engine, type Rows } from "../../../provider/ipam/store/store";
import { changesOf, eventOf, find, leaseRow, poolRow, type Writes, write } from "../engine";
import { type EtcdCluster, etcdMissing, startEtcd } from "../servers/etcd";
import { FaultyProxy } from "../servers/faulty-proxy";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

const POOL = "pool/p";
const uidsOf = ({ leases = [] }: Rows): string[] => leases.map(({ uid }) => uid).sort();
const leasesIn = async (engine: Engine, pool = POOL): Promise<string[]> =>
  uidsOf(await find(engine, { of: "page", pool, after: -1n, limit: 10_000 }));
const claimOf = (uid: string, value: bigint, pool = POOL): Writes => {
  const lease = leaseRow(uid, value, { pool });
  return { leases: [lease], events: [eventOf(lease)] };
};

describe.skipIf(etcdMissing)(`faults of etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  let cluster: EtcdCluster;
  let prefixes = 0;
  const engines: Engine[] = [];
  beforeAll(async () => {
    cluster = await startEtcd("disk", { size: 1 });
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    for (const engine of engines.splice(0)) await engine.close();
  });
  afterAll(() => cluster?.stop());

  const newUrl = (ports = cluster.ports) => `etcd://127.0.0.1:${ports[0]}/f${prefixes++}`;
  const open = async (url: string, options: EtcdOptions = {}): Promise<Engine> => {
    const engine = await openEtcd(url, options);
    engines.push(engine);
    return engine;
  };
  const toolsOf = (url: string) => {
    const parsed = parseEtcdUrl(url);
    return { kv: new EtcdKv(cluster.client, parsed), keys: new Keys(parsed.prefix) };
  };
  const countBelow = async (url: string, tree: string): Promise<number> => {
    const { kv, keys } = toolsOf(url);
    return (await kv.read([keys.below(tree)])).found[0]!.length;
  };

  describe("commits of two processes", () => {
    test("in one pool: the second conflicts, and makes nothing", async () => {
      const url = newUrl();
      const [one, two] = [await open(url), await open(url)];
      const [first, second] = [await one.begin([], [POOL]), await two.begin([], [POOL])];
      await first.commit(changesOf(claimOf("a", 1n)));
      await expect(second.commit(changesOf(claimOf("b", 2n)))).rejects.toBeInstanceOf(Conflict);
      expect(await leasesIn(one)).toEqual(["a"]);
    });

    test("in two pools: the second conflicts, too, and is made when it is decided again", async () => {
      const url = newUrl();
      const [one, two] = [await open(url), await open(url)];
      const [first, second] = [await one.begin([], ["pool/a"]), await two.begin([], ["pool/b"])];
      const made = [await second.commit(changesOf(claimOf("b", 1n, "pool/b")))];
      await expect(first.commit(changesOf(claimOf("a", 1n, "pool/a")))).rejects.toBeInstanceOf(Conflict);
      made.push(await write(one, claimOf("a", 1n, "pool/a"), ["pool/a"]));
      expect(made.map(({ version }) => version)).toEqual([1, 2]);
      expect(made[1]!.epoch).toBe(made[0]!.epoch);
      const { events, epochs } = await find(one, { of: "events", after: 0, limit: 9 }, { of: "epoch", version: 2 });
      expect(events).toEqual(made.flatMap(({ events }) => events));
      expect(epochs).toEqual([{ first: 1, tag: made[0]!.epoch }]);
      const { events: later } = await find(one, { of: "events", after: events![0]!.id, limit: 9 });
      expect(later).toEqual([events![1]]);
    });

    const documents = [{ kind: "accessToken", key: "t", value: "1" }] as const;
    test.each<[what: string, Writes]>([
      ["a name", { leases: [leaseRow("x", 1n, { pool: "pool/x", names: ["n"] })] }],
      ["a document", { documents: [...documents] }],
    ])("for %s, in two pools: the second conflicts", async (_what, writes) => {
      const url = newUrl();
      const [one, two] = [await open(url), await open(url)];
      const [first, second] = [await one.begin([], ["pool/a"]), await two.begin([], ["pool/x"])];
      const named = { leases: [leaseRow("a", 1n, { pool: "pool/a", names: ["n"] })], documents: [...documents] };
      await first.commit(changesOf(named));
      await expect(second.commit(changesOf(writes))).rejects.toBeInstanceOf(Conflict);
    });
  });

  describe("a lost answer", () => {
    let proxy: FaultyProxy;
    beforeEach(async () => {
      proxy = await FaultyProxy.to(cluster.ports);
    });
    afterEach(() => proxy.end());

    /** A transaction whose commit has not been sent yet, and the same store without the proxy. */
    const start = async (patience = 20) => {
      const url = newUrl(proxy.ports);
      const direct = await open(url.replace(`:${proxy.ports[0]}/`, `:${cluster.ports[0]}/`));
      const store = await open(`${url}?timeout=1`, { patience });
      await write(store, claimOf("before", 1n));
      return { direct, store, tx: await store.begin([], [POOL]) };
    };

    test("of a commit that was made: it is found, and not made twice", async () => {
      const { direct, tx } = await start();
      proxy.state = "dropAnswers";
      const committing = tx.commit(changesOf(claimOf("a", 2n)));
      await vi.waitFor(async () => expect(await leasesIn(direct)).toEqual(["a", "before"]), { timeout: 10_000 });
      await write(direct, claimOf("later", 3n, "pool/other"), ["pool/other"]);
      proxy.disconnect();
      proxy.state = "forward";
      const { version, events } = await committing;
      expect(version).toBe(2);
      const { events: all } = await find(direct, { of: "events", after: 0, limit: 9 });
      expect(all!.filter(({ uid }) => uid === "a")).toEqual(events);
    });

    test("of a commit that never arrived: it conflicts", async () => {
      const { direct, tx } = await start();
      proxy.state = "down";
      proxy.disconnect();
      const committing = expect(tx.commit(changesOf(claimOf("a", 2n)))).rejects.toBeInstanceOf(Conflict);
      await new Promise((resolve) => setTimeout(resolve, 300));
      proxy.state = "forward";
      await committing;
      expect(await leasesIn(direct)).toEqual(["before"]);
    });

    test("of a commit that arrives after its process gave up: it is not made any more", async () => {
      const { direct, tx } = await start();
      proxy.state = "holdRequests";
      const committing = expect(tx.commit(changesOf(claimOf("a", 2n)))).rejects.toBeInstanceOf(Conflict);
      await vi.waitFor(() => expect(proxy.holdsRequests).toBe(true));
      proxy.state = "forward";
      const deliver = proxy.disconnect();
      await committing;
      deliver();
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(await leasesIn(direct)).toEqual(["before"]);
    });

    test("of a server that does not come back is STORE_UNAVAILABLE", async () => {
      const { tx } = await start(1);
      proxy.state = "down";
      proxy.disconnect();
      await expect(tx.commit(changesOf(claimOf("a", 2n)))).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    });
  });

  describe("more than fits into one Txn", () => {
    const uids = Array.from({ length: 400 }, (_, i) => `u${1000 + i}`);
    const leases = uids.map((uid, i) => leaseRow(uid, BigInt(i), { names: [`name ${uid}`], data: "x".repeat(1900) }));
    const import_ = (engine: Engine) => write(engine, { leases, events: leases.map(eventOf), pools: [poolRow()] });

    test("is committed all or none, with its events in order", async () => {
      const url = newUrl();
      const [store, other] = [await open(url), await open(url)];
      const { events, version } = await import_(store);
      expect(events.map(({ uid }) => uid)).toEqual(uids);
      expect(version).toBe(1);
      expect(await leasesIn(other)).toEqual(uids);
      const found = await find(other, { of: "events", after: 0, limit: 1000 });
      expect(found.events).toEqual(events);
      await expect(write(other, { leases: [leaseRow("x", 7n)] })).rejects.toBeInstanceOf(Conflict);
      expect(await countBelow(url, "part")).toBe(0);
    });

    test.each<[when: string, calls: (all: number) => number, there: string[]]>([
      ["before it was made: nothing is there", () => 3, []],
      ["while it is written: all is there", (all) => all - 4, uids],
      ["just before the end: all is there", (all) => all - 2, uids],
    ])("by a process that is killed %s", async (_when, calls, there) => {
      const url = newUrl();
      const [store, other] = [await open(url), await open(url)];
      const txn = EtcdKv.prototype.txn;
      const counting = vi.spyOn(EtcdKv.prototype, "txn");
      await import_(await open(newUrl()));
      let left = calls(counting.mock.calls.length - 1);
      counting.mockImplementation(function (this: EtcdKv, ...args) {
        return left-- > 0 ? txn.apply(this, args) : Promise.reject(new Error("killed"));
      });
      await expect(import_(store)).rejects.toThrow("killed");
      vi.restoreAllMocks();
      expect(await leasesIn(other)).toEqual(there);
      await write(other, claimOf("z", 1_000_000n));
      expect(await leasesIn(other)).toEqual([...there, "z"]);
      expect(await countBelow(url, "part")).toBe(there.length > 0 ? 0 : 3);
    });

    test("two processes finish it at the same time", async () => {
      const url = newUrl();
      const [store, ...others] = await Promise.all([1, 2, 3].map(() => open(url)));
      const finish = vi.spyOn(EtcdKv.prototype, "txn");
      const importing = import_(store!);
      const found = await Promise.all(others.map((each) => leasesIn(each)));
      await importing;
      expect(finish).toHaveBeenCalled();
      for (const each of found) expect([[], uids]).toContainEqual(each);
      expect(await leasesIn(others[0]!)).toEqual(uids);
    });
  });

  test("a transaction whose revision was compacted away conflicts when it reads on", async () => {
    const url = newUrl();
    const store = await open(url);
    const tx = await store.begin([], [POOL]);
    await write(store, claimOf("a", 1n, "pool/other"), ["pool/other"]);
    const { revision } = await toolsOf(url).kv.txn([], [put("outside", "1")]);
    await cluster.admin.compact(String(revision));
    await expect(tx.load([{ of: "owner", pool: POOL, owner: "x" }])).rejects.toBeInstanceOf(Conflict);
    expect(await leasesIn(store, "pool/other")).toEqual(["a"]);
  });

  test("more pools are locked than a Txn has comparisons", async () => {
    const store = await open(newUrl());
    const pools = Array.from({ length: 300 }, (_, i) => `pool/${1000 + i}`);
    const [first, second] = [await store.begin([], pools), await store.begin([], pools)];
    await first.commit(changesOf({ leases: [leaseRow("a", 1n, { pool: pools[7]! })] }));
    await expect(second.commit(changesOf({ leases: [leaseRow("b", 2n, { pool: pools[8]! })] }))).rejects.toBeInstanceOf(
      Conflict,
    );
    expect(await leasesIn(store, pools[7])).toEqual(["a"]);
  });

  test("what was acknowledged is there after the server was killed", async () => {
    const url = newUrl();
    const store = await open(`${url}?timeout=1`, { patience: 20 });
    const acknowledged: string[] = [];
    let isOver = false;
    const claims = (async () => {
      for (let i = 0; !isOver; i++) {
        const uid = `c${1000 + i}`;
        try {
          await write(store, claimOf(uid, BigInt(i)));
          acknowledged.push(uid);
        } catch {
          // Not acknowledged.
        }
      }
    })();
    await new Promise((resolve) => setTimeout(resolve, 300));
    await cluster.members[0]!.kill("SIGKILL");
    await cluster.start(0);
    const before = acknowledged.length;
    await vi.waitFor(() => expect(acknowledged.length).toBeGreaterThan(before + 3), { timeout: 30_000 });
    isOver = true;
    await claims;
    expect(await leasesIn(store)).toEqual(acknowledged);
  });

  test("damaged parts of a commit are refused", async () => {
    const url = newUrl();
    const store = await open(url);
    const { kv, keys } = toolsOf(url);
    const row = JSON.parse((await kv.read([{ key: keys.store }])).found[0]![0]!.value);
    for (const pending of [keys.at("part", 1, "x"), "elsewhere"]) {
      await kv.txn([], [put(keys.at("part", 1, "x", 0), '[["other",1]]')]);
      await kv.txn([], [put(keys.store, JSON.stringify({ ...row, pending }))]);
      await expect(leasesIn(store)).rejects.toMatchObject({ code: "STORE_CORRUPT" });
    }
  });
});
