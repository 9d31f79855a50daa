import fc from "fast-check";
import { expect, test } from "vitest";
import { FirstRowSearch } from "../../../provider/pool/engines/etcd/first-row";
import type { EtcdKv, RangeResult } from "../../../provider/pool/engines/etcd/kv";
import type { KeyRange } from "../../../provider/pool/engines/server-engine";
import type { Row } from "../../../provider/pool/storage/store";

/** Answers as etcd does: the first keys of each span, and how many there are in it. */
class Tree {
  looks = 0;
  counted = 0;

  constructor(private readonly keys: string[]) {}

  getAt(_revision: string, spans: KeyRange[]): Promise<RangeResult[]> {
    expect(spans.length).toBeLessThanOrEqual(128);
    this.looks++;
    const found = spans.map(({ from, to, limit }) => {
      const inside = this.keys.filter((key) => key >= from && key < to);
      this.counted += inside.length;
      return { rows: inside.slice(0, limit).map((key): Row => [key, "value"]), count: inside.length };
    });
    return Promise.resolve(found);
  }
}

const digits = (value: number): string => value.toString(16).padStart(32, "0");
const keyOf = (value: number): string => `row/f/pool/${digits(value)}`;
const span = (value: number): KeyRange => ({ from: keyOf(value), to: "row/f/pool0", limit: 1 });
const searchOn = (tree: Tree) => new FirstRowSearch(tree as unknown as EtcdKv);

test("each search finds the first row, whatever was searched before", async () => {
  const value = fc.oneof(fc.integer({ min: 0, max: 300 }), fc.integer({ min: 0, max: 0xffff_ffff }));
  await fc.assert(
    fc.asyncProperty(
      fc.uniqueArray(value, { maxLength: 300, size: "max" }),
      fc.array(value),
      async (values, places) => {
        const keys = values.map(keyOf).sort();
        const search = searchOn(new Tree(keys));
        for (const place of places) {
          const [rows] = await search.find("1", [span(place)]);
          expect(rows).toEqual(
            keys
              .filter((key) => key >= keyOf(place))
              .slice(0, 1)
              .map((key) => [key, "value"]),
          );
        }
        const together = await search.find("1", places.map(span));
        expect(together.map((rows) => rows[0]?.[0])).toEqual(
          places.map((place) => keys.find((key) => key >= keyOf(place))),
        );
      },
    ),
    { numRuns: 100 },
  );
});

test("in a large tree a search does not count the keys after it, and needs one request", async () => {
  const keys = Array.from({ length: 20_000 }, (_, i) => keyOf(i * 800 + ((i * 7919) % 800))).sort();
  const tree = new Tree(keys);
  const search = searchOn(tree);
  for (let i = 0; i < 5; i++) await search.find("1", [span(i * 1_234_567)]);
  tree.looks = tree.counted = 0;
  for (let i = 0; i < 100; i++) await search.find("1", [span((i * 15_485_863) % 16_000_000)]);
  expect(tree.counted / 100).toBeLessThan(400);
  expect(tree.looks / 100).toBeLessThan(1.5);
});
