import { expect, test } from "vitest";
import { openPool } from "../../../provider/ipam";
import { by, createPool, extents } from "../../contract/fixture";

test("a process that claims without a pause still runs timers", async () => {
  const pool = await openPool("memory:", { offerTtl: 3600, quarantine: 0 });
  await createPool(pool, { kind: "id", extents: extents("1-10000"), allocation: "lowest" });
  let fired = false;
  setTimeout(() => {
    fired = true;
  }, 1);
  for (let i = 0; i < 2000 && !fired; i++) await pool.claim(by(`owner ${i}`));
  expect(fired).toBe(true);
});
