import { expect, test } from "vitest";
import { placeOf } from "../../../provider/ipam";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { ensureLayout, LAYOUT, readMoveState, writeWithBuffer } from "../../../provider/pool/storage/layout";
import type { Store } from "../../../provider/pool/storage/store";
import { move, reopen, type Site, snapshot } from "../../../provider/pool/storage/transfer";

const put = (store: Store, key: string, value: string): Promise<void> =>
  store.transact(async (tx) => {
    await tx.write([[key, value]]);
  });

async function storeWithRows(count: number): Promise<Store> {
  const store = createMemoryStore();
  await put(store, "v", String(LAYOUT));
  for (let i = 0; i < count; i++) await put(store, `l/pool/${i}`, `{"n":${i}}`);
  return store;
}

/** A store that calls `onWrite` after each write. */
const onEachWrite = (store: Store, onWrite: () => Promise<unknown>): Store => ({
  ...store,
  transact: async (work) => {
    const result = await store.transact(work);
    await onWrite();
    return result;
  },
});

/** The layout, or the store that it was moved to, or is moved from. */
const moveStateOf = async (store: Store): Promise<string> => {
  const { version, to, from } = await store.read(readMoveState);
  return to ? `to ${to}` : from ? `from ${from}` : String(version);
};
const dataOf = async (store: Store) => (await snapshot(store)).filter(([key]) => !key.startsWith("v"));
const OPEN = String(LAYOUT);
const old = (store: Store): Site => ({ store, place: "old" });
const fresh = (store: Store): Site => ({ store, place: "new" });

test("more rows than a page arrive, and the target is opened last, when the source is closed", async () => {
  const [from, to] = [await storeWithRows(2500), createMemoryStore()];
  const versions: unknown[] = [];
  const target = onEachWrite(to, async () => versions.push([await moveStateOf(from), await moveStateOf(to)]));
  expect(await move(old(from), fresh(target))).toMatchObject({ rows: 2500 });
  expect(await dataOf(to)).toEqual(await dataOf(from));
  const copying = [OPEN, "from old"];
  expect(versions).toEqual([copying, copying, copying, copying, ["to new", OPEN]]);
});

test("older programs refuse a closed store, too, because of its layout number", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  await move(old(from), fresh(to));
  expect(Number((await snapshot(from)).find(([key]) => key === "v")![1])).toBeGreaterThan(1e9);
});

/** Writes as the pool does. Rejects if the store is closed. */
const claim = (store: Store, key: string, value: string | null): Promise<unknown> =>
  store.transact((tx) =>
    writeWithBuffer(tx, { offerTtl: 0, quarantine: 0 }, async (buffer) => {
      await buffer.set(key, value);
    }),
  );

test("rows that change while the source is copied are copied, and later writes are refused", async () => {
  const [from, to] = [await storeWithRows(2500), createMemoryStore()];
  let writes = 0;
  const refused: string[] = [];
  const busy = onEachWrite(to, async () => {
    writes++;
    await claim(from, "l/pool/new", `{"n":${writes}}`).catch((error: Error) => refused.push(error.message));
    await claim(from, "l/pool/7", null).catch((error: Error) => refused.push(error.message));
  });
  const { rows } = await move(old(from), fresh(busy));
  expect(rows).toBe((await snapshot(to)).length - 1); // without the version of the layout
  expect(await dataOf(to)).toEqual(await dataOf(from));
  expect(await dataOf(to)).toContainEqual(["l/pool/new", '{"n":4}']);
  expect(refused[0]).toMatch(/^STORE_MOVED: This store is being moved to new since 20\d\d-.*`overlayctl store reopen/);
  expect(refused.at(-1)).toMatch(/^STORE_MOVED: Everything in this store was moved to new\./);
});

test("a source that changes although it is closed is detected and opened again; a second move succeeds", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  const source = onEachWrite(from, () => put(from, "l/pool/new", "{}"));
  const slow = onEachWrite(to, async () => {
    if ((await moveStateOf(from)) === "to new") await put(from, "l/pool/late", "{}");
  });
  await expect(move(old(source), fresh(slow))).rejects.toThrow(/^STORE_CONFLICT: The source changed/);
  expect([await moveStateOf(from), await moveStateOf(to)]).toEqual([OPEN, "from old"]);
  await move(old(from), fresh(to));
  expect(await dataOf(to)).toEqual(await dataOf(from));
});

test.each(["fails", "is interrupted"])("a move that %s opens its source again", async (how) => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  const stop = new AbortController();
  const broken = onEachWrite(to, async () => {
    if ((await moveStateOf(from)) !== "to new") await claim(from, "l/pool/new", "{}");
    else if (how === "fails") throw new Error("disk full");
    else stop.abort();
  });
  await expect(move(old(from), fresh(broken), { signal: stop.signal })).rejects.toThrow(
    how === "fails" ? "disk full" : "STORE_CONFLICT: The move was interrupted.",
  );
  expect([await moveStateOf(from), await moveStateOf(to)]).toEqual([OPEN, "from old"]);
  await claim(from, "l/pool/later", "{}");
  await move(old(from), fresh(to));
  expect(await dataOf(to)).toContainEqual(["l/pool/later", "{}"]);
});

test("a killed move is finished by the same command, or cancelled by reopening its source", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  await killMove(from, to);
  await expect(ensureLayout(from)).rejects.toThrow(/^STORE_MOVED: This store is being moved to new since/);
  await expect(move(old(from), { store: createMemoryStore(), place: "elsewhere" })).rejects.toThrow(
    "STORE_MOVED: The source is being moved to new already.",
  );
  await reopen(from);
  await claim(from, "l/pool/new", "{}");
  await killMove(from, to);
  await move(old(from), fresh(to));
  expect(await dataOf(to)).toHaveLength(4);
  await expect(reopen(from)).rejects.toThrow(/^STORE_MOVED: Everything in this store was moved to new\./);
  await expect(reopen(to)).rejects.toThrow("STORE_CONFLICT: This store is open.");
});

/** Kills a move, so that it cannot open the source again. */
const killMove = async (from: Store, to: Store): Promise<void> => {
  let closed = false;
  const source: Store = {
    ...from,
    transact: async (work) => {
      if (closed) throw new Error("killed");
      await from.transact(work);
      closed = true;
      throw new Error("killed");
    },
  };
  await expect(move(old(source), fresh(to))).rejects.toThrow("killed");
  expect(await moveStateOf(from)).toBe("to new");
};

/** Interrupts a move before the target is opened. */
const interruptMove = async (from: Store, to: Store): Promise<void> => {
  const broken = onEachWrite(to, async () => {
    if ((await moveStateOf(from)) === "to new") throw new Error("interrupted");
  });
  let writes = 0;
  const source = onEachWrite(from, async () => {
    if (++writes === 2) throw new Error("interrupted");
  });
  await expect(move(old(source), fresh(broken))).rejects.toThrow("interrupted");
};

test("a move that was interrupted after the source was closed can be repeated, to the same store only", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  await interruptMove(from, to);
  expect([await moveStateOf(from), await moveStateOf(to)]).toEqual(["to new", "from old"]);
  await expect(move(old(from), { store: createMemoryStore(), place: "elsewhere" })).rejects.toThrow(
    "STORE_MOVED: The source was moved to new already. Move it on from there.",
  );
  expect(await move(old(from), fresh(to))).toMatchObject({ rows: 3 });
  expect(await moveStateOf(to)).toBe(OPEN);
});

test("a finished move is not repeated, also if the target was lost: its later leases are not in the source", async () => {
  const from = await storeWithRows(3);
  await move(old(from), fresh(createMemoryStore()));
  const lost = createMemoryStore();
  await expect(move(old(from), fresh(lost))).rejects.toThrow("STORE_MOVED: The source was moved to new already.");
  expect(await snapshot(lost)).toEqual([]);
});

test("the target of an unfinished move cannot be used, moved, or be the target of another move", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  await interruptMove(from, to);
  const waits = "STORE_MOVED: A move from old into this store was not finished.";
  await expect(ensureLayout(to)).rejects.toThrow(waits);
  await expect(move(fresh(to), { store: createMemoryStore(), place: "third" })).rejects.toThrow(waits);
  await expect(move({ store: await storeWithRows(1), place: "third" }, fresh(to))).rejects.toThrow(waits);
});

test("of two concurrent moves to two stores one succeeds", async () => {
  const [from, to, other] = [await storeWithRows(3), createMemoryStore(), createMemoryStore()];
  let begun = false;
  const meanwhile = onEachWrite(to, async () => {
    if (begun) return;
    begun = true;
    await move(old(from), { store: other, place: "other" });
  });
  await expect(move(old(from), fresh(meanwhile))).rejects.toThrow(
    "STORE_MOVED: The source was moved to other already.",
  );
  expect([await moveStateOf(from), await moveStateOf(to), await moveStateOf(other)]).toEqual([
    "to other",
    "from old",
    OPEN,
  ]);
});

test("of two concurrent moves to one store the later one succeeds, and nothing is written once the target is in use", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  let begun = false;
  const meanwhile = onEachWrite(to, async () => {
    if (begun) return;
    begun = true;
    await move(old(from), fresh(to));
    await put(to, "l/pool/new", "{}");
  });
  await expect(move(old(from), fresh(meanwhile))).rejects.toThrow("STORE_CONFLICT: Another move into the target");
  expect(await moveStateOf(to)).toBe(OPEN);
  expect(await dataOf(to)).toContainEqual(["l/pool/new", "{}"]);
});

test("a store can be moved back, over the outdated rows of the old one", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  await move(old(from), fresh(to));
  await put(to, "l/pool/new", "{}");
  await move(fresh(to), old(from));
  expect([await moveStateOf(from), await moveStateOf(to)]).toEqual([OPEN, "to old"]);
  expect(await dataOf(from)).toContainEqual(["l/pool/new", "{}"]);
});

test("a read-only source is not moved", async () => {
  const from = { ...(await storeWithRows(3)), readOnly: true };
  await expect(move(old(from), fresh(createMemoryStore()))).rejects.toThrow(
    /^STORE_READ_ONLY: The source is read-only/,
  );
});

test("a target that loses rows is detected", async () => {
  const [from, to] = [await storeWithRows(3), createMemoryStore()];
  const forgetful = onEachWrite(to, () => put(to, "l/pool/1", "{}"));
  await expect(move(old(from), fresh(forgetful))).rejects.toThrow(/^STORE_CORRUPT: The target does not hold/);
});

test("a target that is not empty is not changed", async () => {
  const [from, to] = [await storeWithRows(3), await storeWithRows(2)];
  await expect(move(old(from), fresh(to))).rejects.toThrow("STORE_CONFLICT: The target is not empty: it has 2 rows.");
  expect(await snapshot(to)).toHaveLength(3);
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
