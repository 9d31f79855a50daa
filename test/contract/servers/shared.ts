import { execFile } from "node:child_process";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Event, Lease, Pool } from "../../../provider/ipam/types";
import { StoredPool } from "../../../provider/pool/pool";
import type { Store, Tx } from "../../../provider/pool/storage/store";
import { by, createPool, extents, firstOf } from "../fixture";
import { raceContract } from "../races";
import { clockContract } from "./clock";
import type { FaultyProxy } from "./faulty-proxy";
import { lockContract } from "./lock";
import { get, increment, put, type Remote, reroute } from "./remote";
import { secretContract } from "./secrets";

/** What a server engine must do beyond the contract: other processes write to the store, and it may be unreachable. */
export function serverContract(remote: Remote): void {
  describe("between read and commit", () => racesContract(remote));
  describe("lock", () => lockContract(remote));
  describe("unreachable", () => reachContract(remote));
  describe("time", () => clockContract(remote));
  describe("secrets", () => secretContract(remote));
  describe("processes", () => processContract(remote));
  describe("races for a token", () => raceContract(() => remote.newUrl()));
}

function racesContract(remote: Remote): void {
  const changes: [what: string, key: string, value: string | null][] = [
    ["a row appears in a range", "r/2", "new"],
    ["a row appears behind the last one that was read", "r/9", "new"],
    ["a row of a range is deleted", "r/3", null],
    ["a row of a range changes", "r/3", "new"],
    ["a row appears that was not there", "single", "new"],
  ];
  test.each(changes)("%s: the transaction runs again and sees it", async (_what, key, value) => {
    const url = remote.newUrl();
    const [store, other] = [await remote.open(url), await remote.open(url)];
    for (const at of ["r/1", "r/3"]) await store.transact(put(at, "old"));
    const look = async (tx: Tx): Promise<string> =>
      JSON.stringify([await tx.range("r/", "r0", 10), (await tx.get("single")) ?? null]);
    // From here on all rows are in its cache, and its first request is the commit.
    await store.transact(look);
    const seen: string[] = [];
    const result = await store.transact(async (tx) => {
      const text = await look(tx);
      if (seen.push(text) === 1) await other.transact(put(key, value));
      await tx.write([["result", text]]);
      return text;
    });
    expect(seen).toHaveLength(2);
    expect(seen[1]).not.toBe(seen[0]);
    expect(await other.read(get("result"))).toBe(seen[1]);
    expect(result).toBe(seen[1]);
  });

  test("of two first commits to a new store the second one conflicts, and its transaction runs again", async () => {
    const url = remote.newUrl();
    const [store, other] = [await remote.open(url), await remote.open(url)];
    const seen: (string | undefined)[] = [];
    const result = await store.transact(async (tx) => {
      const first = await tx.get("first");
      if (seen.push(first) === 1) await other.transact(put("first", "made"));
      await tx.write([["second", `first is ${first}`]]);
      return first;
    });
    expect(seen).toEqual([undefined, "made"]);
    expect(result).toBe("made");
    const rows = async (tx: Tx) => await tx.range("a", "z", 9);
    for (const opened of [store, other])
      expect(await opened.read(rows)).toEqual([
        ["first", "made"],
        ["second", "first is made"],
      ]);
  });

  const looks: [what: string, look: (tx: Tx) => Promise<string | undefined>][] = [
    ["a row", async (tx: Tx) => await tx.get("rare/2", true)],
    ["a range", async (tx: Tx) => (await tx.range("rare/", "rare0", 9, true))[0]?.[1]],
  ];
  test.each(looks)(
    "%s that is expected to be empty is read if it is not, with and without a write",
    async (_what, look) => {
      const url = remote.newUrl();
      await (await remote.open(url)).transact(put("rare/2", "found"));
      const [writer, thrower, reader] = [await remote.open(url), await remote.open(url), await remote.open(url)];
      const decide = async (tx: Tx): Promise<string> => {
        const seen = await look(tx);
        if (seen === undefined) throw new Error("nothing there");
        await tx.write([["decided", seen]]);
        return seen;
      };
      const writing = async (tx: Tx): Promise<string> => {
        const seen = (await look(tx)) ?? "nothing";
        await tx.write([["written", seen]]);
        return seen;
      };
      for (const store of [writer, thrower]) await store.transact(increment);
      expect(await writer.transact(writing)).toBe("found");
      expect(await thrower.transact(decide)).toBe("found");
      expect(await reader.read(look)).toBe("found");
      expect(await reader.read(get("written"))).toBe("found");
      await reader.transact(put("rare/2", null));
      expect(await writer.transact(writing)).toBe("nothing");
      await reader.transact(put("rare/2", "again"));
      expect(await writer.transact(writing)).toBe("again");
    },
  );

  test("a transaction without writes, or one that throws, is decided on the newest version too", async () => {
    const url = remote.newUrl();
    const [store, other] = [await remote.open(url), await remote.open(url)];
    await store.transact(put("x", "1"));
    await other.transact(put("x", "2"));
    expect(await store.transact(get("x"))).toBe("2");
    await other.transact(put("x", "3"));
    const throwing = store.transact(async (tx) => {
      throw new Error(`x is ${await tx.get("x")}`);
    });
    await expect(throwing).rejects.toThrow("x is 3");
  });

  test("of two transactions that read what the other writes, one sees the other's write", async () => {
    const url = remote.newUrl();
    const stores = [await remote.open(url), await remote.open(url)];
    let readers = 0;
    let proceed = () => {};
    const bothHaveRead = new Promise<void>((resolve) => {
      proceed = resolve;
    });
    const goOnCall =
      (own: string, others: string) =>
      async (tx: Tx): Promise<string | undefined> => {
        const isCovered = (await tx.get(others)) !== undefined;
        if (++readers === 2) proceed();
        await bothHaveRead;
        if (isCovered) return undefined;
        await tx.write([[own, "on call"]]);
        return "on call";
      };
    const results = await Promise.all([
      stores[0]!.transact(goOnCall("a", "b")),
      stores[1]!.transact(goOnCall("b", "a")),
    ]);
    expect(results.filter((value) => value === "on call")).toHaveLength(1);
    const stored = await stores[0]!.read(async (tx): Promise<unknown[]> => [await tx.get("a"), await tx.get("b")]);
    expect(stored).toEqual(results);
  });

  test("a slow transaction commits although other processes write without a pause", async () => {
    const url = remote.newUrl();
    const [slow, ...busy] = await Promise.all([1, 2, 3].map(() => remote.open(url)));
    let done = false;
    const others = busy.map(async (store) => {
      while (!done) await store.transact(increment);
    });
    await slow!.transact(async (tx) => {
      await tx.get("n");
      await sleep(60);
      await tx.write([["slow", "done"]]);
    });
    done = true;
    await Promise.all(others);
    expect(await slow!.read(get("slow"))).toBe("done");
  });

  test("a read is of one version, whatever is written meanwhile, and waits for no writer", async () => {
    const url = remote.newUrl();
    const [store, other] = [await remote.open(url), await remote.open(url)];
    await store.transact(put("a", "1"));
    const seen = await store.read(async (tx) => {
      const a = await tx.get("a");
      await other.transact(async (tx) => {
        await tx.write([
          ["a", "2"],
          ["b", "2"],
        ]);
      });
      return [a, await tx.get("b"), await tx.range("a", "c", 9)];
    });
    expect(seen).toEqual(["1", undefined, [["a", "1"]]]);
  });
}

function reachContract(remote: Remote): void {
  let proxy: FaultyProxy;
  // A new one for each test: a test that fails does not leave it in a faulty state for the next one.
  beforeEach(async () => {
    proxy = await remote.startProxy();
  });
  afterEach(() => proxy.end());

  /** A store behind the proxy, and a transaction that calls `happens` just before its commit. */
  const interrupted = async (happens: () => void, serverTimeout = 2) => {
    const url = remote.newUrl(proxy);
    const store = await remote.open(url, { timeouts: { conflict: 20, server: serverTimeout } });
    await store.transact(increment);
    let runs = 0;
    const result = store.transact(async (tx) => {
      const count = await increment(tx);
      if (++runs === 1) happens();
      return count;
    });
    const counted = async () => ({ result: await result, stored: await store.read(get("n")), runs });
    return { url, store, result, counted };
  };

  test("a commit whose answer was lost is found in the log, and not made twice", async () => {
    const { counted } = await interrupted(() => {
      proxy.state = "dropAnswers";
      setTimeout(() => {
        proxy.state = "forward";
        proxy.disconnect();
      }, 400);
    });
    expect(await counted()).toEqual({ result: 2, stored: "2", runs: 1 });
  });

  /** The same store through another proxy. */
  const openBeside = async (url: string) => {
    const beside = await remote.startProxy();
    const store = await remote.open(reroute(url, proxy, beside));
    const close = async () => {
      await store.close();
      await beside.end();
    };
    return { ...store, close };
  };

  /** Waits until a commit has arrived whose answer is dropped. Then disconnects, and commits so often from another process. */
  const overtake = async (other: Store, commits: number, hasArrived: () => Promise<boolean>) => {
    await vi.waitFor(async () => expect(await hasArrived()).toBe(true), { timeout: 10_000 });
    proxy.state = "down";
    proxy.disconnect();
    for (let i = 0; i < commits; i++) await other.transact(put("others", String(i)));
    proxy.state = "forward";
  };

  test("a commit whose answer was lost is found in the log, also after many commits of other processes", async () => {
    const { url, counted } = await interrupted(() => {
      proxy.state = "dropAnswers";
    }, 60);
    const other = await openBeside(url);
    await overtake(other, 100, async () => (await other.read(get("n"))) === "2");
    expect(await counted()).toEqual({ result: 2, stored: "2", runs: 1 });
    await other.close();
  });

  const use = { state: "used", usedBy: "x" } as const;
  const onlyIf = { state: "reserved" } as const;
  const operations: [Event["what"], act: (pool: Pool, held: Lease) => Promise<unknown>, answer: unknown][] = [
    ["claimed", (pool) => pool.claim(by("b")), { owner: "b", state: "reserved" }],
    ["used", (pool, { leaseId }) => pool.amend("pool/p", leaseId, use, { onlyIf }), { owner: "a", ...use }],
    ["released", async (pool, { leaseId }) => ({ done: await pool.release("pool/p", leaseId) }), { done: true }],
  ];
  test.each(operations)(
    "a lease is %s once, and the caller gets the result, although the answer was lost",
    async (event, act, answer) => {
      const url = remote.newUrl(proxy);
      const terms = { offerTtl: 3600, quarantine: 0 };
      const pool = new StoredPool(await remote.open(url, { timeouts: { conflict: 60, server: 60 } }), terms);
      await createPool(pool, { extents: extents("10.0.0.0/29") });
      const held = await pool.claim(by("a"));
      const beside = await openBeside(url);
      const other = new StoredPool(beside, terms);
      const countEvents = async () => (await other.history("pool/p")).filter(({ what }) => what === event).length;
      const before = await countEvents();
      proxy.changeAt = { bytes: remote.commitBytes, state: "dropAnswers" };
      const result = act(pool, held);
      await overtake(beside, 100, async () => (await countEvents()) === before + 1);
      expect(await result).toMatchObject(answer as object);
      expect(await countEvents()).toBe(before + 1);
      expect(await other.fsck()).toEqual([]);
      await beside.close();
    },
  );

  test("a commit that never arrived is made by the next attempt", async () => {
    const { counted } = await interrupted(() => proxy.disconnect());
    expect(await counted()).toMatchObject({ result: 2, stored: "2" });
  });

  test("a commit that arrives after its client gave up is rejected", async () => {
    let deliver = () => {};
    const { counted, store } = await interrupted(() => {
      proxy.state = "holdRequests";
      setTimeout(() => {
        proxy.state = "forward";
        deliver = proxy.disconnect();
      }, 400);
    });
    expect(await counted()).toMatchObject({ result: 2, stored: "2" });
    deliver();
    await sleep(300);
    expect(await store.read(get("n"))).toBe("2");
    expect(await store.transact(increment)).toBe(3);
  });

  test("a server that does not come back is STORE_UNAVAILABLE; it is used again when it is back", async () => {
    const { store, result } = await interrupted(() => {
      proxy.state = "down";
      proxy.disconnect();
    });
    await expect(result).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    proxy.state = "forward";
    expect(await store.transact(increment)).toBe(2);
  });
}

/** For a server with a disk: `crash` stops it at once and starts it again. */
export function crashContract(remote: Pick<Remote, "newUrl" | "open">, crash: () => Promise<void>): void {
  test("all acknowledged commits survive a crash, and no value is given twice", async () => {
    const url = remote.newUrl();
    const newPool = async () =>
      new StoredPool(await remote.open(url, { timeouts: { conflict: 30, server: 20 } }), {
        offerTtl: 3600,
        quarantine: 300,
      });
    const pools = [await newPool(), await newPool(), await newPool()];
    await createPool(pools[0]!, { extents: extents("10.0.0.0/16") });
    let over = false;
    const acknowledged = new Map<string, bigint>();
    const claims = pools.map(async (pool, i) => {
      for (let n = 0; !over; n++) acknowledged.set(`${i}/${n}`, firstOf(await pool.claim(by(`${i}/${n}`))));
    });
    await sleep(300);
    await crash();
    const before = acknowledged.size;
    await sleep(300);
    over = true;
    await Promise.all(claims);
    expect(acknowledged.size).toBeGreaterThan(before);
    expect(new Set(acknowledged.values()).size).toBe(acknowledged.size);
    const pool = await newPool();
    const held = new Map((await pool.leases("pool/p")).map((lease) => [lease.owner, firstOf(lease)]));
    expect(held).toEqual(acknowledged);
    expect(await pool.fsck()).toEqual([]);
  });
}

const run = promisify(execFile);

function processContract(remote: Remote): void {
  test("four processes that open a new store and claim at the same time get no value twice", async () => {
    const url = remote.newUrl();
    const runWorker = (name: string) =>
      run(process.execPath, ["--import", "tsx", join(__dirname, "claim-worker.ts"), url, name, "25", "4"], {
        timeout: 50_000,
      });
    const outputs = await Promise.all(["a", "b", "c", "d"].map(runWorker));
    const values = outputs.flatMap(({ stdout }) => JSON.parse(stdout) as string[]);
    expect(values).toHaveLength(100);
    expect(new Set(values).size).toBe(100);
    const pool = new StoredPool(await remote.open(url), { offerTtl: 3600, quarantine: 300 });
    expect(await pool.usage("pool/p")).toMatchObject({ held: 100n });
    expect(await pool.fsck()).toEqual([]);
  }, 60_000);
}
