import { awaited, type Maybe, type Rule } from "../rule";
import { Sorted } from "../sorted";
import { EngineFault, type Row, type Tx, type Write } from "../store";
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
/** So much is guessed in one run at most. */
const GUESSES = 2000;
/** So often it runs ahead before it waits for each answer. */
const AHEAD = 4;

export type Outcome<T> = { value: T } | { error: unknown };

export const settled = <T>(outcome: Outcome<T>): T => {
  if ("error" in outcome) throw outcome.error;
  return outcome.value;
};

/**
 * Runs work on what is known over what the engine has. A far engine's answers are waited for together: from the second
 * gap on it runs ahead on the guess that nothing is there, only to find out what else will be asked for; then all of it is
 * fetched at once, and the work runs anew. So 64 claims in one transaction cost a few round trips and not one each.
 */
export async function outcomeOn<T>(
  known: Known,
  time: number,
  fetch: Fetch,
  work: (tx: Tx) => Rule<T>,
  unwritten: Write[] = [],
): Promise<[Outcome<T>, Write[]]> {
  for (let round = 0; ; round++) {
    const view = new View(known, time, fetch, round < AHEAD, unwritten);
    const outcome = await settledOf(work(view));
    if (view.fault) throw view.fault.cause;
    const gaps = [...view.gaps.values()];
    if (gaps.length === 0) return [outcome, view.writes];
    learn(known, gaps, await fetch(gaps));
  }
}

async function settledOf<T>(rule: Rule<T>): Promise<Outcome<T>> {
  try {
    return { value: await awaited(rule) };
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

/** One run of a transaction. Keys inside are bytes. */
class View implements Tx {
  readonly #writes = new Sorted<string | null>();
  /** What was guessed to be empty: then this run has no result. By place. */
  readonly gaps = new Map<string, Span>();
  /** The engine's first failure: whatever the rule made of it, this run has no result. */
  fault: EngineFault | undefined;
  #waited = false;
  #guesses = 0;

  constructor(
    private readonly known: Known,
    private readonly time: number,
    private readonly fetch: Fetch,
    private readonly mayGuess: boolean,
    unwritten: Write[],
  ) {
    for (const [key, value] of unwritten) this.#writes.set(key, value);
  }

  get writes(): Write[] {
    return [...this.#writes.entries()];
  }

  now(): number {
    return this.time;
  }

  get(key: string): Maybe<string | undefined> {
    const at = toBytes(key);
    const own = this.#writes.get(at);
    if (own !== undefined) return own ?? undefined;
    const stored = this.known.get(at);
    if (stored !== undefined) return stored;
    const first = (rows: Row[]) => rows[0]?.[1];
    const rows = this.#stored(at, behind(at), 1);
    return rows instanceof Promise ? rows.then(first) : first(rows);
  }

  async range(from: string, to: string, limit: number): Promise<Row[]> {
    const [end, found]: [string, Row[]] = [toBytes(to), []];
    for (let at = toBytes(from); at < end && found.length < limit; ) {
      const wanted = Math.min(limit - found.length, PAGE);
      const stored = await this.#stored(at, end, wanted);
      // Up to here everything stored is known; own deletions may have left too little, then it goes on from there.
      const horizon = stored.length < wanted ? end : behind(stored.at(-1)![0]);
      for (const [key, value] of this.#covered(stored, at, horizon)) {
        if (value !== null && found.length < limit) found.push([toText(key), value]);
      }
      at = horizon;
    }
    return found;
  }

  write(writes: Write[]): void {
    for (const [key, value] of writes) this.#writes.set(toBytes(key), value);
  }

  #covered(stored: Row[], from: string, to: string): Write[] {
    const own = [...this.#writes.entries(from, to)];
    if (own.length === 0) return stored;
    return [...new Map<string, string | null>([...stored, ...own])].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  #stored(from: string, to: string, limit: number): Maybe<Row[]> {
    const found: Row[] = [];
    for (let at = from; at < to && found.length < limit; ) {
      const end = this.known.until(at);
      if (end === at) return this.#acrossGap(found, { from: at, to, limit: limit - found.length });
      found.push(...this.known.range(at, end < to ? end : to, limit - found.length));
      at = end;
    }
    return found;
  }

  #acrossGap(found: Row[], gap: Span): Maybe<Row[]> {
    if (this.mayGuess && this.#waited) {
      // Rules that are led astray must come to an end as well.
      if (++this.#guesses > GUESSES) throw new EngineFault("enough");
      this.gaps.set(`${gap.from} ${gap.to} ${gap.limit}`, gap);
      return found;
    }
    this.#waited = true;
    return this.#fetched(gap).then(async () => [...found, ...(await this.#stored(gap.from, gap.to, gap.limit))]);
  }

  async #fetched(gap: Span): Promise<void> {
    try {
      learn(this.known, [gap], await this.fetch([gap]));
    } catch (error) {
      this.fault ??= new EngineFault(error);
      throw this.fault;
    }
  }
}

/**
 * JavaScript orders text by UTF-16 units, engines by bytes. With one character for each byte of UTF-8, both agree; plain
 * ASCII is its own bytes.
 */
const PLAIN = /^[\0-\x7f]*$/;
export const toBytes = (text: string): string => (PLAIN.test(text) ? text : Buffer.from(text).toString("latin1"));
export const toText = (bytes: string): string => (PLAIN.test(bytes) ? bytes : Buffer.from(bytes, "latin1").toString());
