import { InvalidField } from "../../storage/fields";
import { decodeRow } from "../../storage/records";
import { hasSecret } from "../../storage/secrets";
import type { Row, Write } from "../../storage/store";
import {
  type Commit,
  type CommitLog,
  Conflict,
  type KeyRange,
  type LogUpdate,
  MAX_UPDATE,
  type Version,
} from "../server-engine";
import type { Compare, RequestOp } from "./api";
import { FirstRowSearch, isFirstRowSearch } from "./first-row";
import { del, type EtcdKv, get, isAbsent, put, type TxnResult, valueIs } from "./kv";

/** The keys of a store, under its prefix. */
export const keysUnder = (prefix: string) => ({
  head: `${prefix}head`,
  log: (number: number) => `${prefix}log/${padNumber(number)}`,
  logEnd: `${prefix}log0`,
  part: (number: number, name = "") => `${prefix}part/${padNumber(number)}${name}`,
  row: (key: string) => `${prefix}row/${key}`,
  rowKey: (at: string) => at.slice(prefix.length + 4),
  lock: (id = "") => `${prefix}lock/${id}`,
  lockEnd: `${prefix}lock0`,
});
export type Keys = ReturnType<typeof keysUnder>;

const padNumber = (number: number): string => String(number).padStart(16, "0");

/** Commits in the log. */
const MAX_LOG = 1000;
/** etcd takes 128 operations and 1.5 MiB in a Txn. Rows are sent twice, for the log, and a character has up to 3 bytes. */
const [OPERATIONS, LENGTH] = [120, 200_000];

/** The value of the head. With `parts`, its rows are still in that many parts, and have to be moved to their places before the next commit. */
export type Head = Version & { parts?: number };

export const parseHead = (rows: Row[]): Head => (rows[0] ? JSON.parse(rows[0][1]) : { number: 0, id: "", at: 0 });

function parseCommitId(text: string): string {
  const commit: unknown = JSON.parse(text);
  if (typeof commit === "object" && commit && "id" in commit && typeof commit.id === "string") return commit.id;
  throw new InvalidField("id");
}

const formatHead = ({ number, id, at, parts }: Head): string => JSON.stringify({ number, id, at, parts });
const headIs = (keys: Keys, head: Head) => valueIs(keys.head, head.number === 0 ? undefined : formatHead(head));

/** The newest version that was seen, and the revision of etcd that has it. */
export type LastSeen = { id?: string; revision: string };

export interface RowReader {
  kv: EtcdKv;
  firstRows: FirstRowSearch;
}

export class EtcdCommitLog implements CommitLog {
  constructor(
    readonly kv: EtcdKv,
    private readonly keys: Keys,
    private readonly seen: LastSeen,
    readonly firstRows = new FirstRowSearch(kv),
    /** Without the lock, commits fail while the lock queue is not empty. */
    private readonly hasLock = false,
  ) {}

  async readUpdate(since?: Version): Promise<LogUpdate> {
    return this.parseUpdate(await this.kv.txn([], this.updateOps(since)), since);
  }

  async findId(number: number): Promise<string | undefined> {
    const { found } = await this.kv.txn([], [get(this.keys.log(number))]);
    const [row] = found[0]!;
    return row && decodeRow({ decode: parseCommitId }, ...row);
  }

  async readRows(at: Version, ranges: KeyRange[]): Promise<Row[][]> {
    if (this.seen.id !== at.id) throw new Conflict();
    return readRowsAt(this, this.keys, this.seen.revision, ranges);
  }

  /** `extra`: further operations of the same Txn. */
  async commit(
    from: Version,
    commit: Required<Commit>,
    assertEmpty: KeyRange[],
    extra: RequestOp[] = [],
  ): Promise<LogUpdate | undefined> {
    const parts = splitIntoParts(commit.writes);
    const compares = [...this.#isNext(from), ...assertEmpty.map((range) => this.#isEmpty(range))];
    return parts.length === 1
      ? this.#commitAtOnce(from, commit, compares, extra)
      : this.#commitInParts(from, commit, parts, compares, extra);
  }

  async #commitAtOnce(
    from: Version,
    commit: Required<Commit>,
    compares: Compare[],
    extra: RequestOp[],
  ): Promise<LogUpdate | undefined> {
    const { writes, ...version } = commit;
    const rows = writes.map((write) => this.#operation(write));
    // The log can be read by roles that may not read secrets. If it has no rows of a commit, other processes read them again.
    const logged = hasSecret(writes) ? version : commit;
    const operations = [...this.#headOps(from, version, logged), ...extra, ...rows];
    const answer = await this.kv.txn(compares, operations, this.updateOps(from));
    if (!answer.succeeded) return this.parseUpdate(answer, from);
    this.#remember(version, answer.revision);
    return undefined;
  }

  /** Puts the parts first. The commit is made when the head points to them, even if another process finishes it. */
  async #commitInParts(
    from: Version,
    commit: Required<Commit>,
    parts: Write[][],
    compares: Compare[],
    extra: RequestOp[],
  ): Promise<LogUpdate | undefined> {
    const { writes: _, ...version } = commit;
    const head = { ...version, parts: parts.length };
    for (const [i, part] of parts.entries()) await this.kv.txn([], [put(this.#part(head, i), JSON.stringify(part))]);
    const operations = [...this.#headOps(from, head, version), ...extra];
    const answer = await this.kv.txn(compares, operations, this.updateOps(from));
    if (!answer.succeeded) return this.parseUpdate(answer, from);
    await this.#finish(head);
    return undefined;
  }

  async #finish({ parts = 0, ...version }: Head): Promise<void> {
    const { keys, kv } = this;
    const unfinished = headIs(keys, { ...version, parts });
    for (let i = 0; i < parts; i++) {
      const { succeeded, found } = await kv.txn([unfinished], [get(this.#part(version, i))]);
      if (!succeeded) return;
      const writes: Write[] = JSON.parse(found[0]![0]![1]);
      await kv.txn(
        [unfinished],
        writes.map((write) => this.#operation(write)),
      );
    }
    const leftovers = del(keys.part(0), keys.part(version.number + 1));
    const { succeeded, revision } = await kv.txn([unfinished], [put(keys.head, formatHead(version)), leftovers]);
    if (succeeded) this.#remember(version, revision);
  }

  #headOps(from: Version, head: Head, logged: Commit): RequestOp[] {
    const { keys } = this;
    return [
      put(keys.head, formatHead(head)),
      put(keys.log(head.number), JSON.stringify(logged)),
      ...(from.number === 0 ? [put(keys.log(0), JSON.stringify(from))] : []),
      ...(head.number >= MAX_LOG ? [del(keys.log(head.number - MAX_LOG))] : []),
    ];
  }

  #isNext(from: Version) {
    const { keys, hasLock } = this;
    return [headIs(keys, from), ...(hasLock ? [] : [isAbsent(keys.lock(), keys.lockEnd)])];
  }

  #isEmpty({ from, to }: KeyRange): Compare {
    return isAbsent(this.keys.row(from), this.keys.row(to));
  }

  /** Their results are what `parseUpdate` takes. */
  updateOps(since?: Version) {
    const { keys } = this;
    return [get(keys.head), ...(since ? [get(keys.log(since.number), keys.logEnd, { limit: MAX_UPDATE + 1 })] : [])];
  }

  async parseUpdate({ found: [heads, log = []], revision }: TxnResult, since?: Version): Promise<LogUpdate> {
    const { parts, ...head } = parseHead(heads!);
    if (parts) {
      await this.#finish({ ...head, parts });
      return this.readUpdate(since);
    }
    this.#remember(head, revision);
    const commits: Commit[] = log.map(([, text]) => JSON.parse(text));
    const reaches = since !== undefined && commits[0]?.id === since.id && commits.at(-1)!.id === head.id;
    return { head, ...(reaches && { commits: commits.slice(1) }) };
  }

  #remember({ id }: Version, revision: string): void {
    this.seen.id = id;
    this.seen.revision = revision;
  }

  #part({ number, id }: Version, i: number): string {
    return this.keys.part(number, `/${id}/${i}`);
  }

  #operation([key, value]: Write): RequestOp {
    return value === null ? del(this.keys.row(key)) : put(this.keys.row(key), value);
  }
}

export async function readRowsAt(
  { kv, firstRows }: RowReader,
  keys: Keys,
  revision: string,
  ranges: KeyRange[],
): Promise<Row[][]> {
  const all = ranges.map(({ from, to, limit }) => ({ from: keys.row(from), to: keys.row(to), limit }));
  const readOthers = async (): Promise<Row[][]> => {
    const [others, answers] = [all.filter((range) => !isFirstRowSearch(range)), [] as Row[][]];
    for (let i = 0; i < others.length; i += OPERATIONS) {
      for (const { rows } of await kv.getAt(revision, others.slice(i, i + OPERATIONS))) answers.push(rows);
    }
    return answers;
  };
  const [others, first] = await Promise.all([readOthers(), firstRows.find(revision, all.filter(isFirstRowSearch))]);
  const answers = all.map((range) => (isFirstRowSearch(range) ? first : others).shift()!);
  return answers.map((rows) => rows.map(([at, value]) => [keys.rowKey(at), value]));
}

function splitIntoParts(writes: Write[]): Write[][] {
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
