import { afterEach, describe, expect, test, vi } from "vitest";
import { KEPT_MS } from "../../provider/ipam/store/store";
import { by, createFixture, createPool, type Engine, ranges } from "./fixture";
import { rowsAt } from "./store-rows";

/** What a store forgets, and when. */
export function retentionContract(engine: Engine): void {
  const stackOwner = (name: string) => `scope/urn:pulumi:dev::project::overlay:index:IPReservation::${name}`;

  describe("after thirty days", () => {
    afterEach(() => void vi.restoreAllMocks());

    test("ended leases, expired offers and the rows of pools that are gone are deleted, and no others", async () => {
      const url = engine.newUrl();
      const { pool, pass, clock } = await createFixture({ ...engine, newUrl: () => url });
      vi.spyOn(Math, "random").mockReturnValue(0.99);
      const small = { kind: "id" as const, ranges: ranges("1-99") };
      await createPool(pool, small);
      const opener = await createPool(pool, { ...small, name: "pool/gone" });
      const held = await pool.claim(by("held", { names: ["host/a"] }));
      for (const owner of [stackOwner("a"), stackOwner("a"), "service/b"]) {
        const lease = await pool.claim(by(owner, { names: [`name of ${owner}`] }));
        await pool.release("pool/p", lease.leaseId);
      }
      const inGone = await pool.claim(by("c", { pool: "pool/gone" }));
      await pool.offer(by("d", { program: "old", names: ["host/d"] }));
      await pool.release("pool/gone", inGone.leaseId);
      await pool.release(opener.pool, opener.leaseId);
      const rows = async (table: string, text = "") =>
        (await rowsAt(url, { clock })).filter((row) => row.startsWith(`${table} `) && row.includes(text)).length;
      const count = async () => [await rows("lease"), await rows("offer"), await rows("pool", "pool/gone")];
      // Those that have opened the pools, too.
      expect(await count()).toEqual([7, 1, 1]);

      pass(KEPT_MS / 1000 - 10);
      const random = vi.spyOn(Math, "random").mockReturnValue(0);
      await pool.touch("pool/p", held.leaseId);
      await pool.offer(by("late", { names: ["host/d"] }));
      await vi.waitFor(async () => expect(await count()).toEqual([7, 2, 1]), { timeout: 20_000 });

      // The offer was for an hour.
      pass(2 * 3600);
      await createPool(pool, { ...small, name: "pool/fourth" });
      await pool.touch("pool/p", held.leaseId);
      await vi.waitFor(async () => expect(await count()).toEqual([3, 1, 0]), { timeout: 20_000 });
      random.mockReturnValue(0.99);
      expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual(["held"]);
      expect(await pool.fsck()).toEqual([]);
      // The names of what was deleted can be taken, and offered again by the same program.
      await pool.offer(by("d", { program: "old", names: ["host/d"] }));
      await pool.claim(by("e", { names: [`name of ${stackOwner("a")}`] }));
      await createPool(pool, { ...small, name: "pool/gone" });
      expect(await pool.fsck()).toEqual([]);
    });

    test("a resource gets the value that it held last for thirty days, and then any", async () => {
      const { pool, another, pass } = await createFixture(engine, { quarantine: 0 });
      await createPool(pool, { kind: "id", ranges: ranges("1-99") });
      const first = await pool.claim(by("first"));
      const lease = await pool.claim(by(stackOwner("a")));
      await pool.release("pool/p", lease.leaseId);
      await pool.release("pool/p", first.leaseId);
      pass(29 * 24 * 3600);
      expect(await another().offer(by(stackOwner("a"), { program: "29" }))).toMatchObject({ ranges: lease.ranges });
      pass(2 * 24 * 3600);
      expect(await another().offer(by(stackOwner("a"), { program: "31" }))).toMatchObject({ ranges: first.ranges });
    });
  });
}
