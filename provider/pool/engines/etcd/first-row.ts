import type { Row } from "../../storage/store";
import { keyAfter } from "../row-cache";
import type { KeyRange } from "../server-engine";
import type { EtcdKv } from "./kv";

/** If a range has more keys than this, the next search in the same tree starts with a shorter one. */
const MAX_COUNTED = 64;
/** In one Txn; etcd takes 128. */
const OPERATIONS = 120;

/**
 * Finds the first row of a range. etcd counts all keys of a range before it returns the first one: with 100,000 keys that takes
 * some 20 ms. A search therefore starts with a short range and goes on with longer ones. How long the first must be is
 * remembered for each tree, in digits of the keys.
 */
export class FirstRowSearch {
  readonly #digits = new Map<string, number>();

  constructor(private readonly kv: EtcdKv) {}

  /** At a revision; one answer for each range, of one row or none. */
  async find(revision: string, all: KeyRange[]): Promise<Row[][]> {
    const answers: Row[][] = all.map(() => []);
    const open = all.map(({ from, to }, i) => ({ from, to, i, digits: this.#digitsIn(from) }));
    while (open.length > 0) {
      const searches = open.splice(0, OPERATIONS).map((search) => ({ ...search, end: endOfStep(search) }));
      const ranges = searches.map(({ from, end }) => ({ from, to: end, limit: 1 }));
      for (const [n, { rows, count }] of (await this.kv.getAt(revision, ranges)).entries()) {
        const { from, to, i, digits, end } = searches[n]!;
        answers[i] = rows;
        if (count > MAX_COUNTED)
          this.#digits.set(treeOf(from), Math.max(1, Math.min(digits - 1, distance(from, rows[0]![0]))));
        else if (count === 0 && end < to) open.push({ from: end, to, i, digits: digits + 1 });
        else if (digits > this.#digitsIn(from)) this.#digits.set(treeOf(from), digits);
      }
    }
    return answers;
  }

  #digitsIn(from: string): number {
    return this.#digits.get(treeOf(from)) ?? from.length;
  }
}

const treeOf = (key: string): string => key.slice(0, key.lastIndexOf("/") + 1);

/** `from` plus 16 to the power of `digits`, but not beyond `to`. */
function endOfStep({ from, to, digits }: { from: string; to: string; digits: number }): string {
  const tree = treeOf(from);
  const value = from.slice(tree.length);
  if (digits >= value.length) return to;
  const end = (BigInt(`0x${value}`) + (1n << BigInt(4 * digits))).toString(16).padStart(value.length, "0");
  return end.length > value.length || `${tree}${end}` > to ? to : `${tree}${end}`;
}

/** In how many last digits two keys differ. */
function distance(a: string, b: string): number {
  let same = 0;
  while (same < a.length && a[same] === b[same]) same++;
  return a.length - same;
}

/** Whether the keys of a range end in digits; a range of a single key is short already. */
export const isFirstRowSearch = ({ from, to, limit }: KeyRange): boolean =>
  limit === 1 && to !== keyAfter(from) && /\/[0-9a-f]{8,}$/.test(from);
