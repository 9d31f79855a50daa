import fc from "fast-check";
import { expect, test } from "vitest";
import { SortedMap } from "../../../provider/pool/storage/sorted-map";

const key = fc.integer({ min: 0, max: 700 }).map((number) => `k${number}`);
const change = fc.tuple(key, fc.option(fc.integer()));

test("after any sequence of changes it equals a plain map, in order", () => {
  fc.assert(
    fc.property(fc.array(change, { minLength: 0, maxLength: 3000, size: "max" }), key, key, (changes, from, to) => {
      const [sorted, plain] = [new SortedMap<number>(), new Map<string, number>()];
      for (const [at, value] of changes) {
        if (value === null) {
          sorted.delete(at);
          plain.delete(at);
        } else {
          sorted.set(at, value);
          plain.set(at, value);
        }
      }
      const ordered = [...plain].sort(([a], [b]) => (a < b ? -1 : 1));
      expect([...sorted.entries()]).toEqual(ordered);
      expect([...new SortedMap(sorted).entries(from, to)]).toEqual(ordered.filter(([at]) => at >= from && at < to));
      expect(sorted.first(from)).toEqual(ordered.find(([at]) => at >= from));
      expect(sorted.size).toBe(plain.size);
    }),
    { numRuns: 60 },
  );
});
