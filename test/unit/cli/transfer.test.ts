import { expect, test } from "vitest";
import type { Store } from "../../../provider/pool/store";
import { memoryStore } from "../../../provider/pool/stores/memory";
import { move, snapshot } from "../../../provider/pool/transfer";

const put = (store: Store, key: string, value: string): Promise<void> =>
  store.transact("", function* (tx) {
    yield tx.write([[key, value]]);
  });

async function filled(count: number): Promise<Store> {
  const store = memoryStore();
  await put(store, "v", "1");
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
const BEYOND_ALL = "9007199254740991";

test("more rows than a page arrive, and the version comes last", async () => {
  const [from, to] = [await filled(2500), memoryStore()];
  const versions: unknown[] = [];
  expect(
    await move(
      from,
      watched(to, async () => versions.push(await versionOf(to))),
    ),
  ).toBe(2501);
  expect(await snapshot(to)).toEqual(await snapshot(from));
  expect(versions).toEqual([BEYOND_ALL, BEYOND_ALL, BEYOND_ALL, BEYOND_ALL, "1"]);
});

test("a source that changes meanwhile is noticed; the target stays closed, and a second move succeeds", async () => {
  const [from, to] = [await filled(3), memoryStore()];
  const claims = watched(to, () => put(from, "l/pool/new", "{}"));
  await expect(move(from, claims)).rejects.toThrow(/^STORE_CONFLICT: The source changed/);
  expect(await versionOf(to)).toBe(BEYOND_ALL);
  await move(from, to);
  expect(await snapshot(to)).toEqual(await snapshot(from));
});

test("a target that does not keep what it is given is noticed", async () => {
  const [from, to] = [await filled(3), memoryStore()];
  const forgetful = watched(to, () => put(to, "l/pool/1", "{}"));
  await expect(move(from, forgetful)).rejects.toThrow(/^STORE_CORRUPT: The target does not hold/);
});

test("a target with anything in it is left alone", async () => {
  const [from, to] = [await filled(3), await filled(2)];
  await expect(move(from, to)).rejects.toThrow("STORE_CONFLICT: The target is not empty: it has 2 rows.");
  expect(await snapshot(to)).toHaveLength(3);
});
