import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  addBoundaries,
  capacityOf,
  covers,
  freeIn,
  intersect,
  mergeRanges,
  subtract,
  total,
  trimBoundaries,
  valueAtIndex,
  zonesOf,
} from "../../../provider/ipam/ranges";
import type { PoolSpec, ValueRange } from "../../../provider/ipam/types";
import { ranges } from "../../contract/fixture";
import metallb from "../../vectors/metallb_allocator.json";

describe("tables", () => {
  test.each([
    [[], []],
    [
      ["5", "1-3"],
      ["1-3", "5"],
    ],
    [["1-3", "4-6"], ["1-6"]],
    [["1-9", "2-3", "8-12"], ["1-12"]],
  ])("%o merged is %o", (some, result) => {
    expect(mergeRanges(ranges(...some))).toEqual(ranges(...result));
  });

  test.each([
    [["1-9"], ["3-4"], ["1-2", "5-9"], ["3-4"]],
    [["1-9"], ["0-1", "9-10"], ["2-8"], ["1", "9"]],
    [["1-3", "7-9"], ["2-8"], ["1", "9"], ["2-3", "7-8"]],
    [["1-9"], ["0-20"], [], ["1-9"]],
    [["1-9"], [], ["1-9"], []],
    [["1-2"], ["3-4"], ["1-2"], []],
  ])("%o without %o is %o, and %o is common to both", (some, others, rest, both) => {
    expect(subtract(ranges(...some), ranges(...others))).toEqual(ranges(...rest));
    expect(intersect(ranges(...some), ranges(...others))).toEqual(ranges(...both));
  });

  test("the value at an index is found across gaps", () => {
    const some = ranges("3-5", "9");
    expect([0n, 1n, 2n, 3n].map((index) => valueAtIndex(some, index))).toEqual([3n, 4n, 5n, 9n]);
    expect(() => valueAtIndex(some, 4n)).toThrow("index 4 is past the end");
    expect(total(some)).toBe(4n);
  });

  const spec = (more: Partial<PoolSpec>): PoolSpec => ({
    name: "p",
    kind: "address",
    allocation: "lowest",
    ranges: [],
    ...more,
  });

  test("zones: reserved in none, static apart", () => {
    const pool = spec({
      ranges: ranges("1-20"),
      reserved: ranges("1", "10-12"),
      staticOnly: ranges("0-3", "12-13"),
    });
    expect(zonesOf(pool)).toEqual({ automatic: ranges("4-9", "14-20"), onRequest: ranges("2-3", "13") });
  });

  test.each([
    ["10.0.0.0-10.0.0.9", "10.0.0.1-10.0.0.9"],
    ["10.0.0.255-10.0.1.1", "10.0.1.1"],
    ["10.0.0.3-10.0.1.0", "10.0.0.3-10.0.0.254"],
    ["10.0.0.3-10.0.1.3", "10.0.0.3-10.0.1.3"],
    ["10.0.0.255-10.0.1.0", undefined],
    ["fd00::-fd00::ff", "fd00::-fd00::ff"],
  ])("where .0 and .255 are avoided, free %s is written as %s, and widened again", (free, written) => {
    const pool = spec({ ranges: ranges("10.0.0.0/16", "fd00::/64"), avoidBoundaryIps: true });
    const result = trimBoundaries(pool, ranges(free)[0]!);
    expect(result).toEqual(written && ranges(written)[0]);
    if (result) expect(addBoundaries(pool, result, ranges(free))).toEqual(ranges(free)[0]);
  });
});

describe("MetalLB's counts", () => {
  // MetalLB counts a single avoided address as -1, and everything from 2^62 on as one maximum.
  const ours = (count: number | string) => (count === -1 ? 0n : count === "MAX" ? 1n << 62n : BigInt(count));

  test.each(metallb.poolCounts)("$pool.cidr, avoiding $pool.avoidBuggyIPs", ({ pool, total }) => {
    const spec: PoolSpec = {
      name: "p",
      kind: "address",
      allocation: "lowest",
      ranges: ranges(...pool.cidr),
      avoidBoundaryIps: pool.avoidBuggyIPs,
    };
    expect(capacityOf(spec)).toBe(ours(total));
  });
});

describe("properties", () => {
  const list = fc.array(
    fc
      .tuple(fc.integer({ min: 0, max: 60 }), fc.integer({ min: 0, max: 12 }))
      .map(([first, more]) => ({ first: BigInt(first), last: BigInt(first + more) })),
    { maxLength: 8 },
  );
  const values = (some: ValueRange[]) =>
    new Set(
      Array.from({ length: 80 }, (_, i) => BigInt(i)).filter((v) => some.some((e) => e.first <= v && v <= e.last)),
    );
  const canonical = (some: ValueRange[]) =>
    some.every((e, i) => e.first <= e.last && (i === 0 || e.first > some[i - 1]!.last + 1n));

  test("they behave as sets of values; results are sorted, disjoint and not adjacent", () => {
    fc.assert(
      fc.property(list, list, (a, b) => {
        const [va, vb] = [values(a), values(b)];
        expect(values(mergeRanges(a))).toEqual(va);
        expect(values(subtract(a, b))).toEqual(new Set([...va].filter((v) => !vb.has(v))));
        expect(values(intersect(a, b))).toEqual(new Set([...va].filter((v) => vb.has(v))));
        expect(covers(a, b)).toBe([...vb].every((v) => va.has(v)));
        for (const result of [mergeRanges(a), subtract(a, b), intersect(a, b)]) expect(canonical(result)).toBe(true);
      }),
    );
  });

  test("free, held and reserved values partition a pool", () => {
    fc.assert(
      fc.property(list, list, list, list, (all, reserved, staticOnly, taken) => {
        const pool: PoolSpec = { name: "p", kind: "id", allocation: "lowest", ranges: all, reserved, staticOnly };
        const { automatic, onRequest } = zonesOf(pool);
        const held = intersect([...automatic, ...onRequest], taken);
        const parts = [freeIn(pool, automatic, held), freeIn(pool, onRequest, held), held, intersect(all, reserved)];
        expect(parts.reduce((sum, part) => sum + total(part), 0n)).toBe(total(mergeRanges(all)));
        expect(values(parts.flat())).toEqual(values(all));
      }),
    );
  });
});
