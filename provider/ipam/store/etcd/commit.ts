import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../../errors";
import { isListOf } from "../columns";
import { Conflict, StoreUnavailable } from "../store";
import type { Compare, RequestOp } from "./api";
import type { StoreRow } from "./head";
import { type Keys, parse, type Range } from "./keys";
import { choose, del, type Entry, type EtcdKv, get, isAbsent, isPresent, put, wasPutAt } from "./kv";
import type { Write } from "./writes";

/**
 * A commit is one Txn. It puts a key with a random id, that of its events if it has any, so that its outcome is known even if the answer was lost:
 * then that key is found, or put with another value, after which the Txn can no longer be made.
 *
 * Writes that do not fit into one Txn are put as parts first. The Txn names them in the row of the store: with it the commit is made. Nothing else
 * is read or committed before they are in their places, by the process that made it or by the next one.
 */
export interface NewCommit {
  at: number;
  id: string;
  compares: Compare[];
  /** Besides the writes. */
  operations: RequestOp[];
  /** All keys of these ranges are deleted, but for those that are put. */
  cleared: Range[];
  /** Each goes into one Txn as a whole. */
  groups: Write[][];
  row: StoreRow;
  /** The row of the store is changed. */
  putsRow: boolean;
}

export interface Made {
  revision: number;
  /** `head` and `epoch` after it. */
  head: Entry | undefined;
  epoch: Entry | undefined;
  hasParts: boolean;
}

/** How long outcomes are kept, in milliseconds. A request is not on its way for so long. */
const KEPT_OUTCOMES_MS = 10 * 60_000;
/** The outcome; a commit that was not made has no events. */
const [MADE, VOID] = ["made", "[]"];

const writeOp = ([key, text]: Write): RequestOp => (text === null ? del(key) : put(key, text));

/** etcd does not take a Txn that puts a key and deletes it. */
function clear({ key, end }: Range, writes: Write[]): RequestOp[] {
  const kept = writes.map(([each]) => each).filter((each) => key <= each && each < end);
  return [...kept.sort(), end].map((edge, i) => del(i === 0 ? key : `${kept[i - 1]}\0`, edge));
}

export class Committer {
  constructor(
    private readonly kv: EtcdKv,
    private readonly keys: Keys,
    /** How long to ask for the outcome of a commit, in milliseconds. */
    private readonly patience: number,
  ) {}

  /** `Conflict`: it was not made, and never will be. */
  async commit({ at, id, compares, operations, cleared, groups, row, putsRow }: NewCommit): Promise<Made> {
    const { keys, kv } = this;
    const parts = partsOf(groups);
    const hasParts = parts.length > 1;
    const event = hasParts ? undefined : parts[0]?.find(([key]) => key.startsWith(keys.at("event", "")))?.[0];
    const mark = event ?? keys.at("commit", at, id);
    const pending = keys.at("part", at, id);
    for (const [i, part] of hasParts ? parts.entries() : [])
      await kv.txn([], [put(keys.at("part", at, id, i), JSON.stringify(part))]);
    const success = [
      ...cleared.flatMap((range) => clear(range, hasParts ? [] : parts.flat())),
      ...operations,
      ...(hasParts || putsRow ? [put(keys.store, JSON.stringify(hasParts ? { ...row, pending } : row))] : []),
      ...(hasParts ? [] : parts.flat().map(writeOp)),
      ...(event ? [] : [put(mark, MADE)]),
      ...this.#getHead(),
    ];
    const made = await this.#send(mark, [isAbsent(mark), ...compares], success);
    if (!hasParts) return made;
    return this.#persist(async () => {
      await this.finish({ ...row, pending }, made.revision);
      return { ...(await this.#readHead(made.revision)), hasParts };
    });
  }

  /** Puts the parts of a commit into their places, also of one that another process has made. */
  async finish({ pending = "", ...row }: StoreRow, revision: number): Promise<void> {
    const { keys, kv } = this;
    if (!String(pending).startsWith(keys.at("part", ""))) throw corrupt(keys.store);
    const isPending = wasPutAt(keys.store, revision);
    for (;;) {
      const { found } = await kv.read([{ key: `${pending}/`, end: `${pending}0`, limit: 1 }, { key: keys.store }]);
      const [[part], [store]] = found as [Entry[], Entry[]];
      if (store?.revision !== revision) return;
      if (!part) await kv.txn([isPending], [put(keys.store, JSON.stringify(row))]);
      else await kv.txn([isPending, isPresent(part.key)], [...partOf(part, keys.prefix).map(writeOp), del(part.key)]);
    }
  }

  /** Forgets outcomes of old commits, and parts of those that were never made. */
  trim(now: number): RequestOp[] {
    const { keys } = this;
    return ["commit", "part"].map((tree) => del(keys.below(tree).key, keys.at(tree, now - KEPT_OUTCOMES_MS)));
  }

  async #send(mark: string, compares: Compare[], success: RequestOp[]): Promise<Made> {
    const outcome = [choose([isAbsent(mark)], [put(mark, VOID)]), get({ key: mark })];
    try {
      const { succeeded, found, revision } = await this.kv.txn(compares, success, outcome);
      if (succeeded) return madeOf(revision, found);
      return await this.#madeAt(found[0]![0]);
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      return this.#persist(async () => this.#madeAt((await this.kv.txn([], outcome)).found[0]![0]));
    }
  }

  /** What the key of the commit says about an earlier copy of the request. */
  #madeAt(mark: Entry | undefined): Promise<Made> {
    if (!mark || mark.value === VOID) throw new Conflict();
    return this.#readHead(mark.revision);
  }

  #getHead(): RequestOp[] {
    return [get({ key: this.keys.head }), get({ key: this.keys.epoch })];
  }

  /** As it is now: that includes the commit. */
  async #readHead(revision: number): Promise<Made> {
    return madeOf(revision, (await this.kv.txn([], this.#getHead())).found);
  }

  /** Tries again while etcd does not answer, and throws the cause in the end. */
  async #persist<T>(work: () => Promise<T>): Promise<T> {
    for (const deadline = Date.now() + this.patience; ; ) {
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof StoreUnavailable)) throw error;
        if (Date.now() > deadline) throw error.cause;
      }
      await sleep(Math.random() * 200);
    }
  }
}

const madeOf = (revision: number, [head, epoch]: Entry[][]): Made => ({
  ...{ revision, head: head?.[0], epoch: epoch?.[0], hasParts: false },
});

/** Operations of a Txn, and bytes, which etcd limits to 1.5 MB. A part is text in JSON again. */
const [MAX_WRITES, MAX_BYTES] = [2000, 700_000];

/** No part has a key twice. */
function partsOf(groups: Write[][]): Write[][] {
  const parts: Map<string, string | null>[] = [new Map()];
  let bytes = 0;
  for (const group of groups) {
    const size = group.reduce((sum, [key, text]) => sum + key.length + Buffer.byteLength(text ?? ""), 0);
    const part = parts.at(-1)!;
    const isFull =
      part.size + group.length > MAX_WRITES || bytes + size > MAX_BYTES || group.some(([key]) => part.has(key));
    if (isFull) parts.push(new Map());
    bytes = size + (isFull ? 0 : bytes);
    for (const [key, text] of group) parts.at(-1)!.set(key, text);
  }
  return parts.map((part) => [...part]).filter(({ length }) => length > 0);
}

function partOf({ key, value }: Entry, prefix: string): Write[] {
  const isKey = (it: unknown) => typeof it === "string" && it.startsWith(prefix);
  const isValue = (it: unknown) => it === null || typeof it === "string";
  const isWrite = (it: unknown) => Array.isArray(it) && it.length === 2 && isKey(it[0]) && isValue(it[1]);
  const part = parse(value);
  if (!isListOf(isWrite)(part)) throw corrupt(key);
  return part as Write[];
}

const corrupt = (key: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The key ${key} of the store is not valid.`,
    "It was damaged, or written by another program. Find out by which, and restore the store from a backup, or rebuild it with `overlayctl recover`.",
  );
