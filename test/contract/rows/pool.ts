import { expect, test } from "vitest";
import { headKey, loggedEventsKey } from "../../../provider/pool/storage/keys";
import { closingWrites } from "../../../provider/pool/storage/layout";
import type { Store, Tx, Write } from "../../../provider/pool/storage/store";
import { snapshot } from "../../../provider/pool/storage/transfer";
import { by, createPool, extents, requestFor } from "../fixture";
import { createRowFixture, type RowEngine } from "./fixture";

/** Restores exactly these rows, like a backup. */
async function restore(store: Store, rows: Write[]): Promise<void> {
  const gone = (await snapshot(store)).map(([key]): Write => [key, null]);
  await store.transact(async (tx: Tx) => {
    await tx.write([...gone, ...rows]);
  });
}

/** What a pool writes, deletes and refuses, by its rows. */
export function rowsOfPoolContract(engine: RowEngine): void {
  test("the oldest rows of a long history are deleted, also when its pool is created again", async () => {
    const { pool, store } = await createRowFixture(engine);
    const opener = await createPool(pool, { extents: extents("1-9"), kind: "id" });
    const event = JSON.stringify({
      at: 1,
      what: "claimed",
      pool: "pool/p",
      owner: "o",
      uid: "u",
      leaseId: "u.1",
      extents: [],
    });
    const line = (i: number): Write => [`h/pool%2Fp/${String(i).padStart(12, "0")}-x`, event];
    await store.transact(async (tx) => {
      await tx.write(Array.from({ length: 10_047 }, (_, i) => line(i)));
    });
    const oldest = async () => (await pool.history("pool/p", { limit: 1 })).length;
    expect(await oldest()).toBe(1);
    await pool.release("space/id", opener.leaseId);
    await createPool(pool, { extents: extents("1-9"), kind: "id" });
    const lengthNow = () => store.read(async (tx) => (await tx.range("h/pool%2Fp/", "h/pool%2Fp0", 20_000)).length);
    await pool.claim(by("a"));
    await pool.claim(by("b"));
    expect(await lengthNow()).toBe(10_049);
    await pool.claim(by("c"));
    expect(await lengthNow()).toBe(10_000);
    expect(
      (await pool.history("pool/p", { limit: 20_000 }))
        .slice(-3)
        .map(({ owner }) => owner)
        .sort(),
    ).toEqual(["a", "b", "c"]);
    expect(await pool.fsck()).toEqual([]);
  });

  test.each<[string, Write[], string]>([
    [
      "brought to a newer version",
      [["v", "99"]],
      "STORE_VERSION: The store has layout 99; this program knows layouts up to 5.",
    ],
    [
      "moved away",
      closingWrites({ to: "sqlite:/new.db", version: 2 }),
      "STORE_MOVED: Everything in this store was moved to sqlite:/new.db.",
    ],
  ])("a store that was %s while it was open rejects writes", async (_what, state, message) => {
    const { pool, store } = await createRowFixture(engine);
    await createPool(pool, { extents: extents("10.0.0.0/24") });
    const lease = await pool.claim(by("a"));
    await store.transact(async (tx) => {
      await tx.write(state);
    });
    const writes = [pool.claim(by("b")), pool.offer(by("c")), pool.release("pool/p", lease.leaseId)];
    // A service keeps to itself what only its operator can mend.
    const shown = engine.isService ? message.split(" ")[0]! : message;
    for (const result of await Promise.allSettled(writes))
      expect(result).toMatchObject({ status: "rejected", reason: { message: expect.stringContaining(shown) } });
    await expect(pool.fsck({ repair: true })).rejects.toThrow(message);
    expect(await pool.fsck()).toEqual([]);
    expect(await pool.leases("pool/p")).toEqual([lease]);
  });

  test("a restored backup is refused by a stack that has seen a newer version, also after new commits", async () => {
    const { store, pool, another, pass } = await createRowFixture(engine);
    await createPool(pool, { extents: extents("10.0.0.0/29") });
    await pool.identity();
    const early = await pool.identity();
    const backup = await snapshot(store);
    pass(1);
    const { extents: held } = await pool.claim(by("first stack"));
    const late = await pool.identity();
    await another().mustInclude(late);
    await restore(store, backup);
    await another().mustInclude(early);
    await expect(another().mustInclude(late)).rejects.toThrow(
      new RegExp(`^STORE_LOST: .* is at version ${early.version}, but this stack has seen version ${late.version}: `),
    );
    pass(60);
    for (const owner of ["second stack", "third stack"]) await another().claim(by(owner));
    expect((await pool.find("pool/p", { owner: "second stack" }))?.extents).toEqual(held);
    expect((await pool.identity()).version).toBeGreaterThan(late.version);
    await another().mustInclude(early);
    await expect(another().mustInclude(late)).rejects.toThrow(/^STORE_LOST: .* others have written to it since\./);
  });

  test("events that are no longer kept, or not made yet, are an error with the newest id", async () => {
    const { pool, store } = await createRowFixture(engine);
    await createPool(pool, { extents: extents("10.0.0.0/29") });
    for (const owner of ["a", "b"]) await pool.claim(by(owner));
    const { last } = await pool.events({ after: 0 });
    await expect(pool.events({ after: last + 1 })).rejects.toThrow(/^EVENTS_LOST: There is no event/);
    await store.transact(async (tx) => {
      await tx.write([[loggedEventsKey(1).at, null]]);
    });
    await expect(pool.events({ after: 0 })).rejects.toThrow(/^EVENTS_LOST: Events after 0 are no longer kept/);
    expect((await pool.events({ after: 1 })).events).toHaveLength(last - 1);
  });

  test("the event log keeps the newest 20,000 events", async () => {
    const { pool, store } = await createRowFixture(engine);
    await createPool(pool, { extents: extents("10.0.0.0/29") });
    const { last } = await pool.events({ after: 0 });
    await store.transact(async (tx) => {
      const head = headKey.codec.decode((await tx.get(headKey.at))!);
      const event = (await tx.get(loggedEventsKey(last).at))!;
      await tx.write([
        [headKey.at, headKey.codec.encode({ ...head, events: 20_499 })],
        [loggedEventsKey(20_499).at, event],
      ]);
    });
    await pool.claim(by("a"));
    await expect(pool.events({ after: 0 })).rejects.toThrow(/^EVENTS_LOST/);
    expect((await pool.events({ after: 20_499 })).events.map(({ id, owner }) => [id, owner])).toEqual([[20_500, "a"]]);
  });

  test("end records are deleted after thirty days, also if the pool is not created again", async () => {
    const { pool, another, store, pass } = await createRowFixture(engine);
    const inStack = (name: string) => `scope/urn:pulumi:dev::project::overlay:index:IPReservation::${name}`;
    const childPool = { name: "pool/p", kind: "id" as const, extents: extents("1-9"), allocation: "random" as const };
    const opener = await pool.claim({ ...requestFor(inStack("p"), "6"), pool: "space/id", childPool });
    await pool.release("pool/p", (await pool.claim(requestFor(inStack("n"), "1"))).leaseId);
    await pool.release("space/id", opener.leaseId);
    pass(31 * 24 * 3600);
    const more = { name: "pool/more", kind: "id" as const, extents: extents("1-9") };
    const other = await createPool(pool, more);
    await pool.release(
      "pool/more",
      (await pool.claim({ ...requestFor(inStack("r"), "1"), pool: "pool/more" })).leaseId,
    );
    await another().release(other.pool, other.leaseId);
    const keys = (await snapshot(store)).map(([key]) => key).filter((key) => key.includes("pool%2Fp"));
    expect(keys.filter((key) => !/^[dh]\//.test(key))).toEqual([]);
    expect(await pool.fsck()).toEqual([]);
  });
}
