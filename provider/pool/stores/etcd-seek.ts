import type { Row } from "../store";
import type { Wire } from "./etcd-wire";
import { behind } from "./known";
import type { Span } from "./view";

/** More keys than this in a look, and the next one goes less far. */
const MANY = 64;
/** etcd takes 128 operations at once; a seek takes two. */
const TOGETHER = 60;

/** One seek on its way: the first row from `at` on, before `to`. */
interface Seek {
  from: string;
  to: string;
  at: string;
  /** So many of the last digits of `from` may change in the next look. */
  reach: number;
  row?: Row;
}

/**
 * Looks for first rows. etcd counts all keys of a range before it gives the first one, so in a large tree a seek to its end
 * takes as long as a walk through all of it. A seek therefore begins with a short look, and goes on with longer ones;
 * how far a look has to go is remembered for each tree.
 */
export class Seeker {
  readonly #reach = new Map<string, number>();

  constructor(private readonly wire: Wire) {}

  /** As they were at a revision. */
  async first(revision: string, spans: Span[]): Promise<Row[][]> {
    const seeks = spans.map(({ from, to }): Seek => ({ from, to, at: from, reach: this.#reachAt(from) }));
    for (let open = seeks; open.length > 0; open = seeks.filter(({ row, at, to }) => !row && at < to)) {
      await this.#look(revision, open.slice(0, TOGETHER));
    }
    return seeks.map(({ row }) => (row ? [row] : []));
  }

  /** Two looks for each, one behind the other and sixteen times as long. */
  async #look(revision: string, seeks: Seek[]): Promise<void> {
    const looks = seeks.flatMap((seek) => {
      const [near, far] = [endOf(seek, seek.reach), endOf(seek, seek.reach + 1)];
      const spans = [
        { from: seek.at, to: near, limit: 1 },
        { from: near, to: far, limit: 1 },
      ];
      return spans.map((span, i) => ({ seek, span, reach: seek.reach + i })).filter(({ span }) => span.from < span.to);
    });
    const found = await this.wire.past(
      revision,
      looks.map(({ span }) => span),
    );
    for (const [i, { seek, span, reach }] of looks.entries()) {
      const { rows, count } = found[i]!;
      seek.at = span.to;
      seek.reach = reach + 1;
      if (!seek.row && rows[0]) this.#hit(seek, rows[0], reach, count);
    }
  }

  #hit(seek: Seek, row: Row, reach: number, count: number): void {
    seek.row = row;
    const apart = row[0].length - commonLength(seek.from, row[0]);
    if (count > MANY) this.#reach.set(treeOf(seek.from), Math.max(1, Math.min(apart, reach - 1)));
    else if (reach > this.#reachAt(seek.from)) this.#reach.set(treeOf(seek.from), reach);
  }

  #reachAt(from: string): number {
    return this.#reach.get(treeOf(from)) ?? from.length;
  }
}

const treeOf = (key: string): string => key.slice(0, key.lastIndexOf("/") + 1);

/** The end of all keys that differ from `from` in so many last digits at most. */
function endOf({ from, to }: Seek, reach: number): string {
  const kept = from.length - reach;
  if (kept < treeOf(from).length) return to;
  const end = `${from.slice(0, kept)}~`;
  return end < to ? end : to;
}

function commonLength(a: string, b: string): number {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length++;
  return length;
}

/** Only a seek among keys that end in digits can be cut short; a look at a single key is short. */
export const isSeek = ({ from, to, limit }: Span): boolean =>
  limit === 1 && to !== behind(from) && /\/[0-9a-f]{8,}$/.test(from);
