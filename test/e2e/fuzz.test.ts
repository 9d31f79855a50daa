import { expect, test } from "vitest";
import { fuzz } from "../../fuzz/programs";

/** A short part of `npm run fuzz -- programs`: two stacks, previews of both before either goes up, and a destroy that is killed. */
test("what preview shows is what up gives, for a random program and its edits", async () => {
  const { failures, counts } = await fuzz({
    seed: 47,
    scenarios: 1,
    rounds: 4,
    store: "sqlite",
    until: Infinity,
    shrinkSeconds: 0,
  });
  expect(failures).toEqual([]);
  expect(counts.ups).toBeGreaterThanOrEqual(3);
  expect(counts.values).toBeGreaterThan(20);
});
