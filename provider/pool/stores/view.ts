import { Sorted } from "../sorted";
import { EngineFault, type Row, type Tx, type Write } from "../store";
import { behind, type Known } from "./known";

/** Asks the engine for rows, as they are at the version that the transaction runs on. */
export type Fetch = (from: string, to: string, limit: number) => Promise<Row[]>;

/** So many rows are fetched at once at most. */
const PAGE = 1000;

/** One transaction's view: its own writes over what is known over what the engine has. Keys here are bytes. */
export class View implements Tx {
  readonly #writes = new Sorted<string | null>();
  /** The first failure of the engine: whatever the rule made of it, this view has no result. */
  fault: EngineFault | undefined;

  constructor(
    readonly time: number,
    private readonly known: Known,
    private readonly fetch: Fetch,
    writes: Iterable<Write> = [],
  ) {
    for (const [key, value] of writes) this.#writes.set(key, value);
  }

  get writes(): Write[] {
    return [...this.#writes.entries()];
  }

  now(): number {
    return this.time;
  }

  async get(key: string): Promise<string | undefined> {
    const at = toBytes(key);
    const own = this.#writes.get(at);
    if (own !== undefined) return own ?? undefined;
    return (await this.#stored(at, behind(at), 1))[0]?.[1];
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

  async #stored(from: string, to: string, limit: number): Promise<Row[]> {
    const found: Row[] = [];
    for (let at = from; at < to && found.length < limit; ) {
      const end = this.known.until(at);
      if (end === at) await this.#learn(at, to, limit - found.length);
      else {
        found.push(...this.known.range(at, end < to ? end : to, limit - found.length));
        at = end;
      }
    }
    return found;
  }

  async #learn(from: string, to: string, limit: number): Promise<void> {
    try {
      const rows = await this.fetch(from, to, limit);
      this.known.learn(from, rows.length < limit ? to : behind(rows.at(-1)![0]), rows);
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
