import { expect, test, vi } from "vitest";
import { openEngine } from "../../../provider/ipam";
import { LocalIpam } from "../../../provider/ipam/ipam";
import { Session } from "../../../provider/ipam/session";
import { by, createPool, openPool, poolOf, ranges } from "../../contract/fixture";

const SETTINGS = { offerTtl: 60, quarantine: 0 };

test("a request that cannot be stored fails alone, not those that share its transaction", async () => {
  const pool = await openPool("memory:", SETTINGS);
  await createPool(pool, { ranges: ranges("10.0.0.0/29") });
  const bad = pool.claim(by("bad\0owner"));
  const results = await Promise.allSettled([pool.claim(by("a")), bad, pool.claim(by("b"))]);
  expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  const what = expect.stringMatching(/^Row [0-9a-f]{16} of the table lease cannot be stored: its field owner /);
  await expect(bad).rejects.toMatchObject({ code: "INPUT_INVALID", what });
  expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual(["a", "b"]);
  await pool.end();
});

test("small reads that wait at the same time share a transaction", async () => {
  const engine = await openEngine("memory:");
  const begin = vi.spyOn(engine, "begin");
  const pool = poolOf(new LocalIpam(new Session(engine, SETTINGS)));
  await createPool(pool, { ranges: ranges("10.0.0.0/29") });
  const { uid } = await pool.claim(by("a"));
  begin.mockClear();
  const found = await Promise.all(["a", "b", "a"].map((owner) => pool.find({ pool: "pool/p", owner })));
  expect(found.map((lease) => lease?.uid)).toEqual([uid, undefined, uid]);
  expect(begin).toHaveBeenCalledTimes(1);
  await pool.end();
});
