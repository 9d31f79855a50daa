import fc from "fast-check";
import { expect, test } from "vitest";
import type { Row } from "../../../provider/pool/store";
import { Seeker } from "../../../provider/pool/stores/etcd-seek";
import type { Found, Wire } from "../../../provider/pool/stores/etcd-wire";
import type { Span } from "../../../provider/pool/stores/view";

/** Answers as etcd does: the first keys of each span, and how many there are in it. */
class Tree {
  looks = 0;
  counted = 0;

  constructor(private readonly keys: string[]) {}

  past(_revision: string, spans: Span[]): Promise<Found[]> {
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
const span = (value: number): Span => ({ from: keyOf(value), to: "row/f/pool0", limit: 1 });
const seekerOn = (tree: Tree) => new Seeker(tree as unknown as Wire);

test("every seek finds the first row from its place on, whatever was sought before", async () => {
  const value = fc.oneof(fc.integer({ min: 0, max: 300 }), fc.integer({ min: 0, max: 0xffff_ffff }));
  await fc.assert(
    fc.asyncProperty(
      fc.uniqueArray(value, { maxLength: 300, size: "max" }),
      fc.array(value),
      async (values, places) => {
        const keys = values.map(keyOf).sort();
        const seeker = seekerOn(new Tree(keys));
        for (const place of places) {
          const [rows] = await seeker.first("1", [span(place)]);
          expect(rows).toEqual(
            keys
              .filter((key) => key >= keyOf(place))
              .slice(0, 1)
              .map((key) => [key, "value"]),
          );
        }
        const together = await seeker.first("1", places.map(span));
        expect(together.map((rows) => rows[0]?.[0])).toEqual(
          places.map((place) => keys.find((key) => key >= keyOf(place))),
        );
      },
    ),
    { numRuns: 100 },
  );
});

test("in a large tree a seek does not count what lies behind it, and needs one look", async () => {
  const keys = Array.from({ length: 20_000 }, (_, i) => keyOf(i * 800 + ((i * 7919) % 800))).sort();
  const tree = new Tree(keys);
  const seeker = seekerOn(tree);
  for (let i = 0; i < 5; i++) await seeker.first("1", [span(i * 1_234_567)]);
  tree.looks = tree.counted = 0;
  for (let i = 0; i < 100; i++) await seeker.first("1", [span((i * 15_485_863) % 16_000_000)]);
  expect(tree.counted / 100).toBeLessThan(400);
  expect(tree.looks / 100).toBeLessThan(1.5);
});
