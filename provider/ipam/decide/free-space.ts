import { OverlayError } from "../../errors";
import { capitalize, describePool } from "../../pool-names";
import { addBoundaries, intersect, mergeRanges, subtract, trimBoundaries, zonesOf } from "../ranges";
import type { PoolSpec, ValueRange } from "../types";
import type { FreeRow, Zone } from "./rows";
import type { State } from "./state";
import type { Journal } from "./table";

/**
 * The free ranges of one zone of a pool, in order. Only a part of them is loaded: of each window that is known, all ranges that end in it.
 * `need` loads a window, or ends the decision until it is loaded.
 */
export class FreeSpace {
  #ranges: ValueRange[] = [];
  /** Windows of the values at which ranges end. */
  #known: ValueRange[] = [];
  readonly #stored = new Map<bigint, bigint>();
  #isCleared = false;

  constructor(
    readonly pool: string,
    readonly zone: Zone,
    private readonly journal: Journal,
    private readonly need: (from: bigint, limit: number) => void,
  ) {}

  /** The first `limit` ranges of the store that end at `from` or later. */
  load(from: bigint, limit: number, rows: ValueRange[]): void {
    const to = rows.length < limit ? LAST : rows.at(-1)!.last;
    const fresh = rows.filter(({ last }) => this.#knownUntil(last) === undefined);
    for (const { first, last } of fresh) this.#stored.set(last, first);
    this.#ranges = sorted([...this.#ranges, ...fresh.map(({ first, last }) => ({ first, last }))]);
    this.#known = mergeRanges([...this.#known, { first: from, last: to }]);
  }

  /** Removes all ranges, also those that are not loaded. */
  clear(): void {
    const before = { ranges: this.#ranges, known: this.#known, isCleared: this.#isCleared };
    [this.#ranges, this.#known, this.#isCleared] = [[], [{ first: 0n, last: LAST }], true];
    this.journal.add(() => {
      [this.#ranges, this.#known, this.#isCleared] = [before.ranges, before.known, before.isCleared];
    });
  }

  /** Ranges that end at `from` or later, lowest first. */
  *from(from: bigint): Generator<ValueRange> {
    for (let at = from, limit = PAGE; at <= LAST; limit = Math.min(limit * 4, MOST)) {
      const end = this.#knownUntil(at);
      if (end === undefined) {
        this.need(at, limit);
        continue;
      }
      for (const range of this.#ranges) if (range.last >= at && range.last <= end) yield range;
      at = end + 1n;
    }
  }

  /** Removes values that must be free. */
  cut(spec: PoolSpec, piece: ValueRange): void {
    const [range] = this.from(piece.last);
    if (!range || range.first > piece.first) throw notFreeError(this.pool, piece);
    this.#replace(spec, [range], subtract([range], [piece]));
  }

  /** Removes what is free of this range. */
  drop(spec: PoolSpec, piece: ValueRange): void {
    const ranges: ValueRange[] = [];
    for (const range of this.from(piece.first)) {
      if (range.first > piece.last) break;
      ranges.push(range);
    }
    this.#replace(spec, ranges, subtract(ranges, [piece]));
  }

  /** Adds values that are not free, and merges adjacent ranges. */
  add(spec: PoolSpec, piece: ValueRange): void {
    const from = piece.first > 0n ? piece.first - 1n : 0n;
    const adjacent: ValueRange[] = [];
    for (const range of this.from(from)) {
      if (range.first > piece.last + 1n) break;
      adjacent.push(range);
    }
    this.#replace(spec, adjacent, mergeRanges([...adjacent, piece]));
  }

  changes(): { put: FreeRow[]; deleted: FreeRow[]; cleared: { pool: string; zone: Zone }[] } {
    const { pool, zone } = this;
    const now = new Map(this.#ranges.map(({ first, last }) => [last, first]));
    const stored = this.#isCleared ? new Map<bigint, bigint>() : this.#stored;
    const put = [...now].filter(([last, first]) => stored.get(last) !== first);
    const deleted = [...stored].filter(([last]) => !now.has(last));
    const toRow = ([last, first]: [bigint, bigint]): FreeRow => ({ pool, zone, first, last });
    return { put: put.map(toRow), deleted: deleted.map(toRow), cleared: this.#isCleared ? [{ pool, zone }] : [] };
  }

  /** With `avoidBoundaryIps`, no range begins or ends with .0 or .255, so that each range has a value to give. */
  #replace(spec: PoolSpec, ranges: ValueRange[], by: ValueRange[]): void {
    const kept = by.flatMap((range) => trimBoundaries(spec, range) ?? []);
    this.#swap(ranges, kept);
    // More ranges may be loaded until then, and stay.
    this.journal.add(() => this.#swap(kept, ranges));
  }

  #swap(out: ValueRange[], into: ValueRange[]): void {
    this.#ranges = sorted([...this.#ranges.filter((range) => !out.includes(range)), ...into]);
  }

  #knownUntil(at: bigint): bigint | undefined {
    return this.#known.find(({ first, last }) => first <= at && at <= last)?.last;
  }
}

/** No value of a pool is higher. */
const LAST = (1n << 128n) - 1n;
/** Ranges that are read at once: at first, and at most. */
export const PAGE = 8;
const MOST = 2048;

const sorted = (ranges: ValueRange[]): ValueRange[] =>
  ranges.sort((a, b) => (a.last < b.last ? -1 : a.last > b.last ? 1 : 0));

const notFreeError = (pool: string, { first }: ValueRange): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `${capitalize(describePool(pool))} has no record of its free space around ${first}.`,
    "Run `overlayctl store check --repair`.",
  );

/** The zones of a pool: the values that any request can get, and those for requests by value only. */
export const zonesIn = (spec: PoolSpec): [Zone, ValueRange[]][] => {
  const { automatic, onRequest } = zonesOf(spec);
  return [
    ["a", automatic],
    ["r", onRequest],
  ];
};

/** Removes values of a pool from its free space; they must be free. */
export function takeFree(state: State, spec: PoolSpec, ranges: ValueRange[]): void {
  for (const [zone, values] of zonesIn(spec))
    for (const piece of intersect(ranges, values)) state.space(spec.name, zone).cut(spec, piece);
}

/** Returns values of a pool to its free space. */
export function addFree(state: State, spec: PoolSpec, ranges: ValueRange[]): void {
  for (const [zone, values] of zonesIn(spec))
    for (const piece of intersect(ranges, values))
      state.space(spec.name, zone).add(spec, addBoundaries(spec, piece, values));
}
