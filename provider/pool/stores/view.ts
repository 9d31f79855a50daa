import { Sorted } from "../sorted";
import { type Awaitable, EngineFault, type Row, type Tx, type Write } from "../store";
import { behind, type Known } from "./known";

/** The first `limit` rows from `from` on and before `to`. */
export interface Span {
  from: string;
  to: string;
  limit: number;
}

/** Asks the engine for the rows of some spans, as they are at the version that the transaction runs on. */
export type Fetch = (spans: Span[]) => Promise<Row[][]>;

/** So many rows are fetched at once at most. */
const PAGE = 1000;
/** So often it runs ahead before it waits for each answer. */
const AHEAD = 4;
/** More than this is not left to the commit: etcd takes 128 comparisons. */
const HOPES = 100;

export type Outcome<T> = { value: T } | { error: unknown };

export const settled = <T>(outcome: Outcome<T>): T => {
  if ("error" in outcome) throw outcome.error;
  return outcome.value;
};

export interface Run<T> {
  outcome: Outcome<T>;
  writes: Write[];
  /** The outcome is true if nothing lies in these, which has not been looked at. */
  hoped: Span[];
}

export interface Circumstances {
  known: Known;
  time: number;
  fetch: Fetch;
  /** What is rare may be left to the commit to find out. */
  hopeful?: boolean;
  unwritten?: Write[];
}

/**
 * Runs work on what is known over what the engine has. Answers of a far engine are waited for together: who comes to a
 * gap stops there, whoever else is in the transaction goes on, then all gaps are fetched at once, and the work runs anew.
 * What is mostly empty stops nobody: it is taken to be empty, and fetched with the rest or proven by the commit. So a claim
 * needs no round trip of its own to find out that its owner has nothing yet, and 64 claims hardly more than one.
 */
export async function runOn<T>(on: Circumstances, work: (tx: Tx) => Promise<T>): Promise<Run<T>> {
  for (let round = 0; ; round++) {
    const view = new View(on, round < AHEAD);
    const outcome = await settledOf(work(view));
    if (view.fault) throw view.fault.cause;
    const [gaps, hoped] = [[...view.gaps.values()], [...view.hoped.values()]];
    const writes = "error" in outcome ? [] : view.writes;
    const provable = on.hopeful && writes.length > 0 && hoped.length <= HOPES;
    if (gaps.length === 0 && (hoped.length === 0 || provable)) return { outcome, writes, hoped };
    const asked = [...gaps, ...hoped];
    learn(on.known, asked, await on.fetch(asked));
  }
}

async function settledOf<T>(work: Promise<T>): Promise<Outcome<T>> {
  try {
    return { value: await work };
  } catch (error) {
    return { error };
  }
}

function learn(known: Known, spans: Span[], answers: Row[][]): void {
  for (const [i, { from, to, limit }] of spans.entries()) {
    const rows = answers[i]!;
    known.learn(from, rows.length < limit ? to : behind(rows.at(-1)![0]), rows);
  }
}

/** Where a run came to its end for now. */
class Gap extends Error {}

/** One run of a transaction. Keys inside are bytes. */
class View implements Tx {
  readonly #writes = new Sorted<string | null>();
  /** What is not known and has to be: then this run has no result. By place. */
  readonly gaps = new Map<string, Span>();
  /** What was taken to be empty. */
  readonly hoped = new Map<string, Span>();
  /** The engine's first failure: whatever the rule made of it, this run has no result. */
  fault: EngineFault | undefined;

  /** `ahead`: it stops at gaps, instead of waiting there for the engine. */
  constructor(
    private readonly on: Circumstances,
    private readonly ahead: boolean,
  ) {
    for (const [key, value] of on.unwritten ?? []) this.#writes.set(key, value);
  }

  get writes(): Write[] {
    return [...this.#writes.entries()];
  }

  now(): number {
    return this.on.time;
  }

  get(key: string, rare = false): Awaitable<string | undefined> {
    const at = toBytes(key);
    const own = this.#writes.get(at);
    if (own !== undefined) return own ?? undefined;
    const stored = this.on.known.get(at);
    if (stored !== undefined) return stored;
    const first = (rows: Row[]) => rows[0]?.[1];
    const rows = this.#stored(at, behind(at), 1, rare);
    return rows instanceof Promise ? rows.then(first) : first(rows);
  }

  range(from: string, to: string, limit: number, rare = false): Awaitable<Row[]> {
    const [end, found]: [string, Row[]] = [toBytes(to), []];
    for (let at = toBytes(from); at < end && found.length < limit; ) {
      const wanted = Math.min(limit - found.length, PAGE);
      const stored = this.#stored(at, end, wanted, rare);
      // What had to be waited for is known then.
      if (stored instanceof Promise) return stored.then(() => this.range(from, to, limit, rare));
      // Up to here everything stored is known; own deletions may have left too little, then it goes on from there.
      const horizon = stored.length < wanted ? end : behind(stored.at(-1)![0]);
      for (const [key, value] of this.#covered(stored, at, horizon)) {
        if (value !== null && found.length < limit) found.push([toText(key), value]);
      }
      at = horizon;
    }
    return found;
  }

  async foresee(keys: string[]): Promise<void> {
    const unknown = keys.map(toBytes).filter((at) => this.on.known.until(at) === at && !this.#has(at));
    const gaps = unknown.map((at) => ({ from: at, to: behind(at), limit: 1 }));
    if (gaps.length === 0) return;
    if (!this.ahead) return this.#fetched(gaps);
    for (const gap of gaps) this.gaps.set(placeOf(gap), gap);
    throw new Gap();
  }

  #has(at: string): boolean {
    return this.#writes.get(at) !== undefined || this.on.known.get(at) !== undefined;
  }

  write(writes: Write[]): void {
    for (const [key, value] of writes) this.#writes.set(toBytes(key), value);
  }

  #covered(stored: Row[], from: string, to: string): Write[] {
    const own = [...this.#writes.entries(from, to)];
    if (own.length === 0) return stored;
    return [...new Map<string, string | null>([...stored, ...own])].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  #stored(from: string, to: string, limit: number, rare: boolean): Awaitable<Row[]> {
    const { known } = this.on;
    const found: Row[] = [];
    for (let at = from; at < to && found.length < limit; ) {
      const end = known.until(at);
      if (end === at) return this.#acrossGap(found, { from: at, to, limit: limit - found.length }, rare);
      found.push(...known.range(at, end < to ? end : to, limit - found.length));
      at = end;
    }
    return found;
  }

  #acrossGap(found: Row[], gap: Span, rare: boolean): Awaitable<Row[]> {
    if (rare) {
      this.hoped.set(placeOf(gap), gap);
      return found;
    }
    if (this.ahead) {
      this.gaps.set(placeOf(gap), gap);
      throw new Gap();
    }
    return this.#fetched([gap]).then(async () => [
      ...found,
      ...(await this.#stored(gap.from, gap.to, gap.limit, rare)),
    ]);
  }

  async #fetched(gaps: Span[]): Promise<void> {
    try {
      learn(this.on.known, gaps, await this.on.fetch(gaps));
    } catch (error) {
      this.fault ??= new EngineFault(error);
      throw this.fault;
    }
  }
}

const placeOf = ({ from, to, limit }: Span): string => `${from} ${to} ${limit}`;

/**
 * JavaScript orders text by UTF-16 units, engines by bytes. With one character for each byte of UTF-8, both agree; plain
 * ASCII is its own bytes.
 */
const PLAIN = /^[\0-\x7f]*$/;
export const toBytes = (text: string): string => (PLAIN.test(text) ? text : Buffer.from(text).toString("latin1"));
export const toText = (bytes: string): string => (PLAIN.test(bytes) ? bytes : Buffer.from(bytes, "latin1").toString());
