import { InvalidField } from "../fields";
import { decodeRow } from "../records";
import { hasSecret } from "../secrets";
import type { Row, Write } from "../store";
import type { Compare, RequestOp } from "./etcd-api";
import { isSeek, Seeker } from "./etcd-seek";
import { type Answer, isNotThere, isStill, look, put, remove, type Wire } from "./etcd-wire";
import { CAUGHT_UP, type Commit, type Journal, LostRace, type News, type Version } from "./journal";
import type { Span } from "./view";

/** Where things lie under the prefix. */
export const keysUnder = (prefix: string) => ({
  head: `${prefix}head`,
  log: (number: number) => `${prefix}log/${padded(number)}`,
  logEnd: `${prefix}log0`,
  part: (number: number, name = "") => `${prefix}part/${padded(number)}${name}`,
  row: (key: string) => `${prefix}row/${key}`,
  rowKey: (at: string) => at.slice(prefix.length + 4),
  lock: (id = "") => `${prefix}lock/${id}`,
  lockEnd: `${prefix}lock0`,
});
export type Keys = ReturnType<typeof keysUnder>;

const padded = (number: number): string => String(number).padStart(16, "0");

/** So many commits can be looked up by those who missed them. */
const KEPT = 1000;
/** etcd takes 128 operations and 1.5 MiB at once. Everything goes out twice, for the log, and characters have up to 3 bytes. */
const [OPERATIONS, LENGTH] = [120, 200_000];

/**
 * The head as it is written. With `parts` it is not finished: its rows are still on their way from these parts to their
 * places, and whoever wants to go on from here takes them there first.
 */
export type Head = Version & { parts?: number };

export const headOf = (rows: Row[]): Head => (rows[0] ? JSON.parse(rows[0][1]) : { number: 0, id: "", at: 0 });

function commitIdOf(text: string): string {
  const commit: unknown = JSON.parse(text);
  if (typeof commit === "object" && commit && "id" in commit && typeof commit.id === "string") return commit.id;
  throw new InvalidField("id");
}

const headText = ({ number, id, at, parts }: Head): string => JSON.stringify({ number, id, at, parts });
const isHead = (keys: Keys, head: Head) => isStill(keys.head, head.number === 0 ? undefined : headText(head));

/** At which revision of etcd the newest version was seen. */
export type Seen = { id?: string; revision: string };

export interface Reading {
  wire: Wire;
  seeker: Seeker;
}

export class EtcdJournal implements Journal {
  constructor(
    readonly wire: Wire,
    private readonly keys: Keys,
    private readonly seen: Seen,
    readonly seeker = new Seeker(wire),
    /** Without the lock nothing is committed while others wait for it. */
    private readonly isTurn = false,
  ) {}

  async news(since?: Version): Promise<News> {
    return this.newsFrom(await this.wire.txn([], this.looks(since)), since);
  }

  async findId(number: number): Promise<string | undefined> {
    const { found } = await this.wire.txn([], [look(this.keys.log(number))]);
    const [row] = found[0]!;
    return row && decodeRow({ decode: commitIdOf }, ...row);
  }

  async rows(at: Version, spans: Span[]): Promise<Row[][]> {
    if (this.seen.id !== at.id) throw new LostRace();
    return rowsAt(this, this.keys, this.seen.revision, spans);
  }

  /** `aside`: further operations of the same Txn, such as to release the lock. */
  async commit(
    from: Version,
    commit: Required<Commit>,
    hoped: Span[],
    aside: RequestOp[] = [],
  ): Promise<News | undefined> {
    const parts = inParts(commit.writes);
    const may = [...this.#mayFollow(from), ...hoped.map((span) => this.#isEmpty(span))];
    return parts.length === 1
      ? this.#commitAtOnce(from, commit, may, aside)
      : this.#commitInParts(from, commit, parts, may, aside);
  }

  async #commitAtOnce(
    from: Version,
    commit: Required<Commit>,
    may: Compare[],
    aside: RequestOp[],
  ): Promise<News | undefined> {
    const { writes, ...version } = commit;
    const rows = writes.map((write) => this.#operation(write));
    // Users may be let read the log, but no secrets. A commit that is logged without its rows makes others read them again.
    const logged = hasSecret(writes) ? version : commit;
    const operations = [...this.#heading(from, version, logged), ...aside, ...rows];
    const answer = await this.wire.txn(may, operations, this.looks(from));
    if (!answer.succeeded) return this.newsFrom(answer, from);
    this.#see(version, answer.revision);
    return undefined;
  }

  /** The parts lie ready before the head points to them; from then on the commit is made, whoever finishes it. */
  async #commitInParts(
    from: Version,
    commit: Required<Commit>,
    parts: Write[][],
    may: Compare[],
    aside: RequestOp[],
  ): Promise<News | undefined> {
    const { writes: _, ...version } = commit;
    const head = { ...version, parts: parts.length };
    for (const [i, part] of parts.entries()) await this.wire.txn([], [put(this.#part(head, i), JSON.stringify(part))]);
    const operations = [...this.#heading(from, head, version), ...aside];
    const answer = await this.wire.txn(may, operations, this.looks(from));
    if (!answer.succeeded) return this.newsFrom(answer, from);
    await this.#finish(head);
    return undefined;
  }

  async #finish({ parts = 0, ...version }: Head): Promise<void> {
    const { keys, wire } = this;
    const unfinished = isHead(keys, { ...version, parts });
    for (let i = 0; i < parts; i++) {
      const { succeeded, found } = await wire.txn([unfinished], [look(this.#part(version, i))]);
      if (!succeeded) return;
      const writes: Write[] = JSON.parse(found[0]![0]![1]);
      await wire.txn(
        [unfinished],
        writes.map((write) => this.#operation(write)),
      );
    }
    const leftovers = remove(keys.part(0), keys.part(version.number + 1));
    const { succeeded, revision } = await wire.txn([unfinished], [put(keys.head, headText(version)), leftovers]);
    if (succeeded) this.#see(version, revision);
  }

  #heading(from: Version, head: Head, logged: Commit): RequestOp[] {
    const { keys } = this;
    return [
      put(keys.head, headText(head)),
      put(keys.log(head.number), JSON.stringify(logged)),
      ...(from.number === 0 ? [put(keys.log(0), JSON.stringify(from))] : []),
      ...(head.number >= KEPT ? [remove(keys.log(head.number - KEPT))] : []),
    ];
  }

  #mayFollow(from: Version) {
    const { keys, isTurn } = this;
    return [isHead(keys, from), ...(isTurn ? [] : [isNotThere(keys.lock(), keys.lockEnd)])];
  }

  #isEmpty({ from, to }: Span): Compare {
    return isNotThere(this.keys.row(from), this.keys.row(to));
  }

  /** What `newsFrom` needs. */
  looks(since?: Version) {
    const { keys } = this;
    return [look(keys.head), ...(since ? [look(keys.log(since.number), keys.logEnd, { limit: CAUGHT_UP + 1 })] : [])];
  }

  async newsFrom({ found: [heads, log = []], revision }: Answer, since?: Version): Promise<News> {
    const { parts, ...head } = headOf(heads!);
    if (parts) {
      await this.#finish({ ...head, parts });
      return this.news(since);
    }
    this.#see(head, revision);
    const commits: Commit[] = log.map(([, text]) => JSON.parse(text));
    const reaches = since !== undefined && commits[0]?.id === since.id && commits.at(-1)!.id === head.id;
    return { head, ...(reaches && { since: commits.slice(1) }) };
  }

  #see({ id }: Version, revision: string): void {
    this.seen.id = id;
    this.seen.revision = revision;
  }

  #part({ number, id }: Version, i: number): string {
    return this.keys.part(number, `/${id}/${i}`);
  }

  #operation([key, value]: Write): RequestOp {
    return value === null ? remove(this.keys.row(key)) : put(this.keys.row(key), value);
  }
}

export async function rowsAt({ wire, seeker }: Reading, keys: Keys, revision: string, spans: Span[]): Promise<Row[][]> {
  const places = spans.map(({ from, to, limit }) => ({ from: keys.row(from), to: keys.row(to), limit }));
  const looking = async (): Promise<Row[][]> => {
    const [looks, answers] = [places.filter((span) => !isSeek(span)), [] as Row[][]];
    for (let i = 0; i < looks.length; i += OPERATIONS) {
      for (const { rows } of await wire.past(revision, looks.slice(i, i + OPERATIONS))) answers.push(rows);
    }
    return answers;
  };
  const [looks, seeks] = await Promise.all([looking(), seeker.first(revision, places.filter(isSeek))]);
  const answers = places.map((span) => (isSeek(span) ? seeks : looks).shift()!);
  return answers.map((rows) => rows.map(([at, value]) => [keys.rowKey(at), value]));
}

function inParts(writes: Write[]): Write[][] {
  const parts: Write[][] = [[]];
  let length = 0;
  for (const write of writes) {
    length += write[0].length + (write[1]?.length ?? 0);
    if (parts.at(-1)!.length === OPERATIONS || length > LENGTH) {
      parts.push([]);
      length = 0;
    }
    parts.at(-1)!.push(write);
  }
  return parts;
}
