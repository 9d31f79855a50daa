import { expect, test } from "vitest";
import { placeOf } from "../../../provider/ipam";
import { readMoveState } from "../../../provider/ipam/identity";
import { claimOne } from "../../../provider/ipam/interface";
import { LocalIpam } from "../../../provider/ipam/ipam";
import { Session } from "../../../provider/ipam/session";
import { openSqlite } from "../../../provider/ipam/store/sqlite";
import type { Engine, Transaction } from "../../../provider/ipam/store/store";
import { move, reopen, type Site, snapshot } from "../../../provider/ipam/transfer";
import { eventOf, headOf, leaseRow, offerRow, poolRow, write } from "../../contract/engine";

const POOL = "pool/p";

const emptyStore = (): Promise<Engine> => openSqlite(":memory:");

/** A store with so many leases. */
async function storeWith(count: number): Promise<Engine> {
  const store = await emptyStore();
  const leases = Array.from({ length: count }, (_, i) => leaseRow(`u${i}`, BigInt(i), { names: [`name ${i}`] }));
  await write(store, {
    pools: [poolRow(POOL, { reserved: count, held: BigInt(count) })],
    leases,
    events: leases.map((lease) => ({ ...eventOf(lease), at: Date.now() })),
    offers: [offerRow("owner", { names: ["offered"] })],
    free: [{ pool: POOL, zone: "a", first: 1n << 64n, last: 1n << 65n }],
    documents: [
      { kind: "secret", key: "keys", value: "secret" },
      { kind: "delivery", key: "hook", value: '{"delivered":1}' },
    ],
  });
  return store;
}

const claim = async (store: Engine, uid: string, at: bigint): Promise<unknown> => {
  const ipam = new LocalIpam(new Session(store, { offerTtl: 0, quarantine: 0 }));
  const values = [{ first: at, last: at }];
  return claimOne(ipam, { pool: "space/ports/p", owner: uid, type: "IPReservation", values });
};

/** Calls `onWrite` after each commit of a store. */
const onEachCommit = (store: Engine, onCommit: () => Promise<unknown>): Engine =>
  withTransactions(store, (tx) => ({
    ...{ now: tx.now, head: tx.head, rows: tx.rows },
    load: (queries) => tx.load(queries),
    rollBack: () => tx.rollBack(),
    commit: async (changes) => {
      const commit = await tx.commit(changes);
      await onCommit();
      return commit;
    },
  }));

const withTransactions = (store: Engine, wrap: (tx: Transaction) => Transaction): Engine => ({
  ...{ readOnly: store.readOnly, place: store.place },
  begin: async (...args) => {
    const tx = await store.begin(...args);
    try {
      return wrap(tx);
    } catch (error) {
      await tx.rollBack();
      throw error;
    }
  },
  close: () => store.close(),
});

/** Whether it is open, or the store that it was moved to, or is moved from. */
async function stateOf(store: Engine): Promise<string> {
  const { to, from, move } = readMoveState(await headOf(store));
  if (to !== undefined) return move === undefined ? `moved to ${to}` : `moving to ${to}`;
  return from === undefined ? "open" : `from ${from}`;
}

/** All rows, and the head without what a move changes. */
async function dataOf(store: Engine): Promise<string[]> {
  const all: string[] = [];
  const textOf = (thing: object) =>
    JSON.stringify(thing, (_, value) => (typeof value === "bigint" ? `${value}n` : value));
  for await (const found of snapshot(store)) {
    if ("head" in found) all.push(textOf({ ...found.head, at: 0, move: undefined }));
    else all.push(...found.rows.map((row) => `${found.table} ${textOf(row)}`));
  }
  return all;
}

const old = (engine: Engine): Site => ({ engine, place: "old" });
const fresh = (engine: Engine): Site => ({ engine, place: "new" });

test("more rows than a page arrive, with id, version, epochs and ids of events, and the target is opened last", async () => {
  const [from, to] = [await storeWith(1200), await emptyStore()];
  const before = await dataOf(from);
  const states: unknown[] = [];
  const target = onEachCommit(to, async () => states.push([await stateOf(from), await stateOf(to)]));
  expect(await move(old(from), fresh(target))).toMatchObject({ rows: before.length - 1 });
  expect(await dataOf(to)).toEqual(before);
  expect(states[0]).toEqual(["open", "from old"]);
  expect(states.slice(1, -1).every((each) => String(each) === "moving to new,from old")).toBe(true);
  expect(states.at(-1)).toEqual(["moved to new", "open"]);
  const names = await to.begin([
    { of: "name", name: "name 7" },
    { of: "offersNamed", name: "offered" },
  ]);
  await names.rollBack();
  expect(names.rows).toMatchObject({ leases: [{ uid: "u7" }] });
});

test("writes are refused from the beginning, and the target goes on with the next version and the next event", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  const refused: string[] = [];
  const target = onEachCommit(to, async () => {
    if ((await stateOf(from)) !== "open")
      await claim(from, "late", 9n).catch((error: Error) => refused.push(error.message));
  });
  await move(old(from), fresh(target));
  expect(refused[0]).toMatch(/^STORE_MOVED: This store is being moved to new since 20\d\d-.*`overlayctl store reopen/);
  expect(refused.at(-1)).toMatch(/^STORE_MOVED: Everything in this store was moved to new\./);
  const [before, head] = [await headOf(from), await headOf(to)];
  expect(head).toMatchObject({ id: before.id, version: before.version, lastEvent: before.lastEvent });
  await claim(to, "next", 9n);
  expect(await headOf(to)).toMatchObject({ version: before.version + 1, lastEvent: before.lastEvent + 1 });
});

test.each(["fails", "is interrupted"])("a move that %s opens its source again, and can be repeated", async (how) => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  const stop = new AbortController();
  const broken = onEachCommit(to, async () => {
    if ((await stateOf(from)) === "open") return;
    if (how === "fails") throw new Error("disk full");
    stop.abort();
  });
  await expect(move(old(from), fresh(broken), { signal: stop.signal })).rejects.toThrow(
    how === "fails" ? "disk full" : "STORE_CONFLICT: The move was interrupted. The source is open again.",
  );
  expect([await stateOf(from), await stateOf(to)]).toEqual(["open", "from old"]);
  await claim(from, "later", 9n);
  await move(old(from), fresh(to));
  expect(await dataOf(to)).toEqual(await dataOf(from));
});

/** Kills a move after a commit to its source, so that it cannot open the source again. */
async function killMove(from: Engine, to: Engine, after: "moving to new" | "moved to new"): Promise<void> {
  let killed = false;
  const source = withTransactions(from, (tx) => {
    if (killed) throw new Error("killed");
    return tx;
  });
  const watched = onEachCommit(source, async () => {
    killed = (await stateOf(from)) === after;
    if (killed) throw new Error("killed");
  });
  const target = withTransactions(to, (tx) => {
    if (killed) throw new Error("killed");
    return tx;
  });
  await expect(move(old(watched), fresh(target))).rejects.toThrow("killed");
  expect([await stateOf(from), await stateOf(to)]).toEqual([after, "from old"]);
}

test("a killed move is finished by the same command, or cancelled by reopening its source", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  await killMove(from, to, "moving to new");
  await expect(claim(from, "late", 9n)).rejects.toThrow(/^STORE_MOVED: This store is being moved to new since/);
  await expect(move(old(from), { engine: await emptyStore(), place: "elsewhere" })).rejects.toThrow(
    "STORE_MOVED: The source is being moved to new already.",
  );
  await reopen(from);
  await claim(from, "later", 9n);
  await killMove(from, to, "moving to new");
  await move(old(from), fresh(to));
  expect(await dataOf(to)).toEqual(await dataOf(from));
  await expect(reopen(from)).rejects.toThrow(/^STORE_MOVED: Everything in this store was moved to new\./);
  await expect(reopen(to)).rejects.toThrow("STORE_CONFLICT: This store is open.");
});

test("a move that was killed after the source was closed for good can be repeated, to the same store only", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  await killMove(from, to, "moved to new");
  await expect(move(old(from), { engine: await emptyStore(), place: "elsewhere" })).rejects.toThrow(
    "STORE_MOVED: The source was moved to new already. Move it on from there.",
  );
  await move(old(from), fresh(to));
  expect([await stateOf(from), await stateOf(to)]).toEqual(["moved to new", "open"]);
  expect(await dataOf(to)).toEqual(await dataOf(from));
});

test("a finished move is not repeated, also if the target was lost: its later leases are not in the source", async () => {
  const from = await storeWith(3);
  await move(old(from), fresh(await emptyStore()));
  const lost = await emptyStore();
  await expect(move(old(from), fresh(lost))).rejects.toThrow("STORE_MOVED: The source was moved to new already.");
  expect(await dataOf(lost)).toHaveLength(1);
});

test("the target of an unfinished move cannot be used, moved, or be the target of another move", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  await killMove(from, to, "moved to new");
  const waits = "STORE_MOVED: A move from old into this store was not finished.";
  await expect(claim(to, "early", 9n)).rejects.toThrow(waits);
  await expect(move(fresh(to), { engine: await emptyStore(), place: "third" })).rejects.toThrow(waits);
  await expect(move({ engine: await storeWith(1), place: "third" }, fresh(to))).rejects.toThrow(waits);
});

test("of two concurrent moves to two stores one succeeds", async () => {
  const [from, to, other] = [await storeWith(3), await emptyStore(), await emptyStore()];
  let begun = false;
  const meanwhile = onEachCommit(to, async () => {
    if (begun) return;
    begun = true;
    await move(old(from), { engine: other, place: "other" });
  });
  await expect(move(old(from), fresh(meanwhile))).rejects.toThrow(
    "STORE_MOVED: The source was moved to other already.",
  );
  expect([await stateOf(from), await stateOf(to), await stateOf(other)]).toEqual([
    "moved to other",
    "from old",
    "open",
  ]);
});

test("of two concurrent moves to one store the later one succeeds, and nothing is written once the target is in use", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  let begun = false;
  const meanwhile = onEachCommit(to, async () => {
    if (begun || (await stateOf(from)) === "open") return;
    begun = true;
    await move(old(from), fresh(to));
    await claim(to, "new", 9n);
  });
  await expect(move(old(from), fresh(meanwhile))).rejects.toThrow("STORE_CONFLICT: Another move into the target");
  expect([await stateOf(from), await stateOf(to)]).toEqual(["moved to new", "open"]);
  expect((await dataOf(to)).filter((row) => row.includes('"owner":"new"'))).toHaveLength(2);
});

test("a store can be moved back, over the outdated rows of the old one", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  await move(old(from), fresh(to));
  await claim(to, "new", 9n);
  await move(fresh(to), old(from));
  expect([await stateOf(from), await stateOf(to)]).toEqual(["open", "moved to old"]);
  expect(await dataOf(from)).toEqual(await dataOf(to));
});

test("a read-only source is not moved", async () => {
  const from = await storeWith(3);
  const readOnly: Engine = { ...withTransactions(from, (tx) => tx), readOnly: true };
  await expect(move(old(readOnly), fresh(await emptyStore()))).rejects.toThrow(
    /^STORE_READ_ONLY: The source is read-only/,
  );
});

test("a target that changes what it is given is detected, and the source is opened again", async () => {
  const [from, to] = [await storeWith(3), await emptyStore()];
  const forgetful = withTransactions(to, (tx) => ({
    ...{ now: tx.now, head: tx.head, rows: tx.rows },
    load: (queries) => tx.load(queries),
    rollBack: () => tx.rollBack(),
    commit: ({ documents, ...changes }) =>
      tx.commit({ ...changes, documents: { ...documents, put: documents.put.slice(1) } }),
  }));
  await expect(move(old(from), fresh(forgetful))).rejects.toThrow(
    "STORE_CORRUPT: The target does not hold what was written to it. The source is open again.",
  );
});

test("a target that is not empty is not changed", async () => {
  const [from, to] = [await storeWith(3), await storeWith(2)];
  const before = await dataOf(to);
  await expect(move(old(from), fresh(to))).rejects.toThrow("STORE_CONFLICT: The target is not empty.");
  expect([await dataOf(to), await stateOf(to), await stateOf(from)]).toEqual([before, "open", "open"]);
});

test.each([
  ["postgres://me:p%40s?s/w@rd@db:5432/overlay?sslmode=require&schema=blue", "postgres://db:5432/overlay?schema=blue"],
  ["postgres://me:secret@db/overlay?sslkey=/k.pem", "postgres://db/overlay"],
  ["postgres:///overlay?host=/run/a&sslmode=disable", "postgres:///overlay?host=/run/a"],
  ["etcd://root:secret@a:2379,b:2379/overlay", "etcd://a:2379,b:2379/overlay"],
  ["sqlite:/var/lib/overlay/pool.db?mode=ro", "sqlite:/var/lib/overlay/pool.db"],
])("%s is shown as %s", (url, place) => {
  expect(placeOf(url)).toBe(place);
});
