import { type Entry, type EtcdKv, get, type KeyRange } from "./kv";

/** etcd takes 128 operations in a Txn. */
const MAX_RANGES = 120;

interface Read {
  range: KeyRange;
  resolve(entries: Entry[]): void;
  reject(error: unknown): void;
}

/**
 * Reads ranges, all at the revision of the first request. Reads that wait at the same time share a request, so that a list of queries takes as many
 * round trips as the longest of them alone.
 */
export class Reader {
  #revision: number | undefined;
  readonly #answers = new Map<string, Promise<Entry[]>>();
  #waiting: Read[] = [];
  #isScheduled = false;

  constructor(private readonly kv: EtcdKv) {}

  /** Of the answers. Known after the first one. */
  get revision(): number {
    return this.#revision!;
  }

  /** A range that was read before is not read again. */
  read(range: KeyRange): Promise<Entry[]> {
    const answer = this.known(range) ?? this.#ask(range);
    this.#answers.set(JSON.stringify(range), answer);
    return answer;
  }

  /** The answer of an earlier `read` of the same range. */
  known(range: KeyRange): Promise<Entry[]> | undefined {
    return this.#answers.get(JSON.stringify(range));
  }

  #ask(range: KeyRange): Promise<Entry[]> {
    const answer = new Promise<Entry[]>((resolve, reject) => this.#waiting.push({ range, resolve, reject }));
    if (!this.#isScheduled) setImmediate(() => void this.#flush());
    this.#isScheduled = true;
    return answer;
  }

  async #flush(): Promise<void> {
    const reads = this.#waiting.splice(0);
    this.#isScheduled = false;
    if (this.#revision === undefined)
      await this.#answer(reads.splice(0, MAX_RANGES), (ranges) => this.#readFirst(ranges));
    while (reads.length > 0)
      void this.#answer(reads.splice(0, MAX_RANGES), (ranges) => this.kv.getAt(this.revision, ranges));
  }

  async #readFirst(ranges: KeyRange[]): Promise<Entry[][]> {
    const { found, revision } = await this.kv.txn([], ranges.map(get));
    this.#revision = revision;
    return found;
  }

  async #answer(reads: Read[], ask: (ranges: KeyRange[]) => Promise<Entry[][]>): Promise<void> {
    try {
      const found = await ask(reads.map(({ range }) => range));
      for (const [i, { resolve }] of reads.entries()) resolve(found[i]!);
    } catch (error) {
      for (const { reject } of reads) reject(error);
    }
  }
}
