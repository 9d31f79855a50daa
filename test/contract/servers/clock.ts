import { expect, test, vi } from "vitest";
import { StoredPool } from "../../../provider/pool/pool";
import type { Tx } from "../../../provider/pool/storage/store";
import { by, createPool, extents } from "../fixture";
import type { Remote } from "./remote";

/** The time of a transaction is the server's. A clock that leaps ends no lease. */
export function clockContract(remote: Remote): void {
  const now = async (tx: Tx): Promise<number> => {
    const time = await tx.now();
    await tx.write([["t", String(time)]]);
    return time;
  };

  test("the server's clock counts, even if this machine's clock is an hour ahead", async () => {
    const before = Date.now();
    const real = Date.now;
    const ahead = vi.spyOn(Date, "now").mockImplementation(() => real() + 3_600_000);
    try {
      const store = await remote.open(remote.newUrl());
      for (const time of [await store.transact(now), await store.read(now)]) {
        expect(Math.abs(time - before)).toBeLessThan(10_000);
      }
    } finally {
      ahead.mockRestore();
    }
  });

  const DAY = 86_400_000;

  test("a clock that leaps a day past this machine's and the last commit ends no lease", async () => {
    const url = remote.newUrl();
    let [server, machine] = [Date.now(), Date.now()];
    const store = await remote.open(url, { clock: () => server, machineTime: () => machine });
    const pool = new StoredPool(store, { offerTtl: 3600, quarantine: 0 });
    await createPool(pool, { extents: extents("10.0.0.0/32") });
    await pool.claim(by("holder", { ttl: 3600 }));
    server += DAY;
    await expect(pool.claim(by("b"))).rejects.toThrow(/^STORE_CLOCK: The clock of .* shows .*, this machine's /);
    await expect(pool.find("pool/p", { owner: "holder" })).rejects.toThrow(/^STORE_CLOCK/);
    expect(await store.checkClock!(true)).toMatchObject({ repairable: false });
    server -= DAY;
    expect(await pool.find("pool/p", { owner: "holder" })).toBeDefined();
    // A month later by both clocks.
    server += 30 * DAY;
    machine += 30 * DAY;
    await pool.claim(by("next"));
  });

  test("a commit of a clock that was ahead holds the time there, until the check repairs it", async () => {
    const url = remote.newUrl();
    const ahead = Date.now() + DAY;
    await (await remote.open(url, { clock: () => ahead })).transact(now);
    const store = await remote.open(url);
    expect(await store.read(now)).toBe(ahead);
    const finding = { problem: expect.stringContaining(new Date(ahead).toISOString()), repairable: true };
    expect(await store.checkClock!(false)).toEqual(finding);
    expect(await store.checkClock!(true)).toEqual(finding);
    expect(await store.checkClock!(false)).toBeUndefined();
    for (const time of [await store.read(now), await store.transact(now)])
      expect(Math.abs(time - Date.now())).toBeLessThan(10_000);
  });

  test("the time of a transaction is not before the last commit", async () => {
    const url = remote.newUrl();
    const later = Date.now() + 3_600_000;
    await (await remote.open(url, { clock: () => later })).transact(now);
    const store = await remote.open(url);
    expect(await store.transact(now)).toBe(later);
    expect(await store.read(now)).toBe(later);
  });
}
