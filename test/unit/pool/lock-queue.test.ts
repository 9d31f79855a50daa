import { expect, test } from "vitest";
import { openPool } from "../../../provider/pool";
import { by, createPool, extents } from "../../contract/fixture";

test("a process that claims without a pause still gets to everything else", async () => {
  const pool = await openPool("memory:", { offerTtl: 3600, quarantine: 0 });
  await createPool(pool, { kind: "id", extents: extents("1-10000"), allocation: "lowest" });
  let rang = false;
  setTimeout(() => {
    rang = true;
  }, 1);
  for (let i = 0; i < 2000 && !rang; i++) await pool.claim(by(`owner ${i}`));
  expect(rang).toBe(true);
});
