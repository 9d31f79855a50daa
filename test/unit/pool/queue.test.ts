import { expect, test } from "vitest";
import { by, createPool, extents, openPool } from "../../contract/fixture";

test("a request that cannot be stored fails alone, not those that share its transaction", async () => {
  const pool = await openPool("memory:", { offerTtl: 60, quarantine: 0 });
  await createPool(pool, { extents: extents("10.0.0.0/29") });
  const bad = pool.claim(by("bad\0owner"));
  const results = await Promise.allSettled([pool.claim(by("a")), bad, pool.claim(by("b"))]);
  expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  const what = expect.stringMatching(/^Row [0-9a-f]{16} of the table lease cannot be stored: its field owner /);
  await expect(bad).rejects.toMatchObject({ code: "INPUT_INVALID", what });
  expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual(["a", "b"]);
  await pool.end();
});
