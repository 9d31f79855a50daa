import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { StoredPool } from "../../../provider/pool/pool";
import { closingWrites, ensureLayout, ensureMovable } from "../../../provider/pool/storage/layout";
import type { Row, Store } from "../../../provider/pool/storage/store";
import { extents } from "../fixture";
import type { RowEngine } from "./fixture";

/** All rows of a store with layout 3, with leases in each state, written at this time. */
const ROWS = readFileSync(join(__dirname, "../../vectors/store_layout_3.jsonl"), "utf8")
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line) as Row);
const WRITTEN_AT = 1794936771990;

const ownerOf = (name: string) => `prod/urn:pulumi:prod::shop::overlay:index:IPReservation::${name}`;

export function migrationContract(engine: RowEngine): void {
  async function open(later: number): Promise<Store> {
    const store = await engine.openStore(engine.newUrl(), () => WRITTEN_AT + later);
    await store.transact((tx) => Promise.resolve(tx.write(ROWS)));
    await ensureLayout(store);
    return store;
  }
  const poolOn = (store: Store) => new StoredPool(store, { offerTtl: 3600, quarantine: 300 });

  test("a store with layout 3 is migrated, with all its leases, offers, quarantines and history", async () => {
    const store = await open(1000);
    const pool = poolOn(store);
    expect(await pool.fsck()).toEqual([]);
    const leases = await pool.leases("pool/p");
    expect(leases.map(({ owner, state, extents }) => [owner.split("::").at(-1), state, extents])).toEqual([
      ["kept", "reserved", extents("10.0.0.0")],
      ["gone", "quarantined", extents("10.0.0.1")],
      ["next", "offered", extents("10.0.0.2")],
      ["imported", "reserved", extents("10.0.0.9")],
    ]);
    expect(leases[2]).toMatchObject({
      quarantinedFor: { owner: ownerOf("other") },
      quarantinedUntil: expect.any(Number),
    });
    expect(await pool.usage("pool/p")).toMatchObject({ offered: 1, reserved: 2, used: 0, quarantined: 1, held: 3n });
    expect((await pool.history("pool/p")).map(({ what }) => what)).toEqual([
      ...["claimed", "claimed", "released", "claimed", "released", "imported"],
    ]);
    expect(await pool.leases("space/default")).toMatchObject([{ childPool: "pool/p" }]);
    await pool.end();
  });

  test("after the migration owners get their values again, and all leases can be released", async () => {
    const store = await open(1000);
    const pool = poolOn(store);
    const request = { pool: "pool/p", type: "IPReservation" };
    const back = await pool.claim({ ...request, owner: ownerOf("gone") });
    expect(back.extents).toEqual(extents("10.0.0.1"));
    const next = await pool.claim({ ...request, owner: ownerOf("next"), want: extents("10.0.0.2") });
    for (const lease of [back, next, ...(await pool.leases("pool/p"))]) await pool.release("pool/p", lease.leaseId);
    const [block] = await pool.leases("space/default");
    expect(await pool.release("space/default", block!.leaseId)).toBe(true);
    expect(await pool.pools("pool/")).toEqual([]);
    expect(await pool.fsck()).toEqual([]);
    await pool.end();
  });

  test("an offer of a store with layout 3 leaves its value in quarantine when it expires", async () => {
    const pool = poolOn(await open(2 * 3600_000));
    const states = (await pool.leases("pool/p")).map(({ owner, state }) => `${owner.split("::").at(-1)} ${state}`);
    expect(states).toEqual(["kept reserved", "gone quarantined", "other quarantined", "imported reserved"]);
    expect(await pool.fsck()).toEqual([]);
    await pool.end();
  });

  test("the migration does not change rows that are not JSON, and fields of users", async () => {
    const store = await engine.openStore(engine.newUrl(), () => WRITTEN_AT);
    const isKept = ([key]: Row) => key.startsWith("l/pool%2Fp/55fd");
    const [key, value] = ROWS.find(isKept)!;
    const data = { opens: "resting", constructor: 1 };
    const changed: Row[] = [
      [key, JSON.stringify({ ...JSON.parse(value), data, labels: { state: "resting" } })],
      ["h/pool%2Fp/000000000000-x", "{"],
    ];
    await store.transact((tx) => Promise.resolve(tx.write([...ROWS.filter((row) => !isKept(row)), ...changed])));
    await ensureLayout(store);
    const pool = poolOn(store);
    expect(await pool.find("pool/p", { owner: ownerOf("kept") })).toMatchObject({ data, labels: { state: "resting" } });
    await expect(pool.history("pool/p")).rejects.toMatchObject({ code: "STORE_CORRUPT" });
    await pool.end();
  });

  test("a store with layout 3 that was moved away is refused with its new place, and its move can be finished", async () => {
    const store = await engine.openStore(engine.newUrl(), () => WRITTEN_AT);
    const closed = closingWrites({ to: "sqlite:/new.db", version: 3 });
    await store.transact((tx) => Promise.resolve(tx.write([...ROWS, ...closed])));
    await expect(ensureLayout(store, true)).rejects.toThrow(
      "STORE_VERSION: This store was moved to sqlite:/new.db with layout 3; this program reads layout 5.",
    );
    await expect(ensureLayout(store)).rejects.toMatchObject({ code: "STORE_MOVED" });
    await ensureMovable(store);
    await store.close();
  });
}
