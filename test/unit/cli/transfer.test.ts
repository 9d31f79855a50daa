import { expect, test } from "vitest";
import { placeOf } from "../../../provider/pool";
import type { Store } from "../../../provider/pool/store";
import { memoryStore } from "../../../provider/pool/stores/memory";
import { move, type Site, snapshot } from "../../../provider/pool/transfer";
import { VERSION } from "../../../provider/pool/version";

const put = (store: Store, key: string, value: string): Promise<void> =>
  store.transact("", function* (tx) {
    yield tx.write([[key, value]]);
  });

async function filled(count: number): Promise<Store> {
  const store = memoryStore();
  await put(store, "v", String(VERSION));
  for (let i = 0; i < count; i++) await put(store, `l/pool/${i}`, `{"n":${i}}`);
  return store;
}

/** A store that does something else, too, when it is written to. */
const watched = (store: Store, onWrite: () => Promise<unknown>): Store => ({
  ...store,
  transact: async (pool, work) => {
    const result = await store.transact(pool, work);
    await onWrite();
    return result;
  },
});

const versionOf = async (store: Store) => (await snapshot(store)).find(([key]) => key === "v")?.[1];
const dataOf = async (store: Store) => (await snapshot(store)).filter(([key]) => key !== "v");
const BEYOND_ALL = "9007199254740991";
const old = (store: Store): Site => ({ store, place: "old" });
const fresh = (store: Store): Site => ({ store, place: "new" });

test("more rows than a page arrive, and the target is opened last, when the source is closed", async () => {
  const [from, to] = [await filled(2500), memoryStore()];
  const versions: unknown[] = [];
  const target = watched(to, async () => versions.push([await versionOf(from), await versionOf(to)]));
  expect(await move(old(from), fresh(target))).toBe(2501);
  expect(await dataOf(to)).toEqual(await dataOf(from));
  const copying = [String(VERSION), BEYOND_ALL];
  expect(versions).toEqual([copying, copying, copying, copying, ["moved to new", String(VERSION)]]);
});

test("a source that changes meanwhile is noticed; the target stays closed, and a second move succeeds", async () => {
  const [from, to] = [await filled(3), memoryStore()];
  const claims = watched(to, () => put(from, "l/pool/new", "{}"));
  await expect(move(old(from), fresh(claims))).rejects.toThrow(/^STORE_CONFLICT: The source changed/);
  expect([await versionOf(from), await versionOf(to)]).toEqual([String(VERSION), BEYOND_ALL]);
  await move(old(from), fresh(to));
  expect(await dataOf(to)).toEqual(await dataOf(from));
});

test("a move that was cut short when the source was closed is made again, to the same place only", async () => {
  const [from, to] = [await filled(3), memoryStore()];
  await move(old(from), fresh(to));
  await put(to, "v", BEYOND_ALL);
  await expect(move(old(from), { store: memoryStore(), place: "elsewhere" })).rejects.toThrow(
    "STORE_MOVED: The source was moved to new already. Move it on from there.",
  );
  expect(await move(old(from), fresh(to))).toBe(4);
  expect(await versionOf(to)).toBe(String(VERSION));
});

test("everything comes back to where it was, over what is out of date there", async () => {
  const [from, to] = [await filled(3), memoryStore()];
  await move(old(from), fresh(to));
  await put(to, "l/pool/new", "{}");
  await move(fresh(to), old(from));
  expect([await versionOf(from), await versionOf(to)]).toEqual([String(VERSION), "moved to old"]);
  expect(await dataOf(from)).toContainEqual(["l/pool/new", "{}"]);
});

test("a source that cannot be written stays where it is", async () => {
  const from = { ...(await filled(3)), readOnly: true };
  await expect(move(old(from), fresh(memoryStore()))).rejects.toThrow(/^STORE_READ_ONLY: The source cannot be written/);
});

test("a target that does not keep what it is given is noticed", async () => {
  const [from, to] = [await filled(3), memoryStore()];
  const forgetful = watched(to, () => put(to, "l/pool/1", "{}"));
  await expect(move(old(from), fresh(forgetful))).rejects.toThrow(/^STORE_CORRUPT: The target does not hold/);
});

test("a target with anything in it is left alone", async () => {
  const [from, to] = [await filled(3), await filled(2)];
  await expect(move(old(from), fresh(to))).rejects.toThrow("STORE_CONFLICT: The target is not empty: it has 2 rows.");
  expect(await snapshot(to)).toHaveLength(3);
});

test.each([
  ["postgres://me:p%40s?s/w@rd@db:5432/overlay?sslmode=require&schema=blue", "postgres://db:5432/overlay?schema=blue"],
  ["postgres://me:secret@db/overlay?sslkey=/k.pem", "postgres://db/overlay"],
  ["etcd://root:secret@a:2379,b:2379/overlay", "etcd://a:2379,b:2379/overlay"],
  ["sqlite:/var/lib/overlay/pool.db?mode=ro", "sqlite:/var/lib/overlay/pool.db"],
])("%s is shown as %s", (url, place) => {
  expect(placeOf(url)).toBe(place);
});
