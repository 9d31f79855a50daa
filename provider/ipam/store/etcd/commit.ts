import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../../errors";
import type { LoggedEvent } from "../../types";
import { isCount, isListOf, isOf, isWord } from "../columns";
import { Conflict, StoreUnavailable } from "../store";
import type { Compare, RequestOp } from "./api";
import { fromBytes, type Keys, lastComponents } from "./keys";
import { choose, del, type Entry, type EtcdKv, get, isAbsent, put, type TxnResult, wasPutAt } from "./kv";
import { eventsAt } from "./queries";
import type { Write } from "./writes";

/**
 * A commit is one Txn. It puts a key with a random id, so that its outcome is known even if the answer was lost: then that key is found, or put
 * with another value, after which the Txn can no longer be made.
 *
 * Writes that do not fit into one Txn are put as parts first. The Txn has the first of them, and `pending`, which names the others: with it the
 * commit is made. Nothing else is read or committed before the other parts are in their places, by the process that made it or by the next one.
 */
export interface NewCommit {
  at: number;
  id: string;
  compares: Compare[];
  /** Besides the writes. */
  operations: RequestOp[];
  parts: Write[][];
}

export interface Made {
  revision: number;
  /** `head` and `epoch` after it. */
  head: Entry | undefined;
  epoch: Entry | undefined;
}

export const newCommitId = (): string => randomBytes(8).toString("hex");

/** How long outcomes are kept, in milliseconds. A request is not on its way for so long. */
const KEPT_OUTCOMES_MS = 10 * 60_000;
const [MADE, VOID] = ["made", "void"];
/** Parts that go with the Txn. */
const MAX_BYTES = 300_000;

const writeOp = ([key, text]: Write): RequestOp => (text === null ? del(key) : put(key, text));

export class Committer {
  constructor(
    private readonly kv: EtcdKv,
    private readonly keys: Keys,
    /** How long to ask for the outcome of a commit, in milliseconds. */
    private readonly patience: number,
  ) {}

  /** `Conflict`: it was not made, and never will be. */
  async commit({ at, id, compares, operations, parts: [first = [], ...parts] }: NewCommit): Promise<Made> {
    const { keys, kv } = this;
    const mark = keys.at("commit", at, id);
    const puts = parts.map((part, i) => put(keys.at("part", at, id, i), JSON.stringify(part)));
    const isLarge = JSON.stringify(parts).length > MAX_BYTES;
    if (isLarge) for (const operation of puts) await kv.txn([], [operation]);
    const pending = put(keys.pending, JSON.stringify({ at, id, parts: parts.length }));
    const success = [
      ...first.map(writeOp),
      ...operations,
      ...(isLarge ? [] : puts),
      ...(parts.length > 0 ? [pending] : []),
      put(mark, MADE),
      get({ key: keys.head }),
      get({ key: keys.epoch }),
    ];
    const isNew = [isAbsent(mark), isAbsent(keys.pending), ...compares];
    const failure = [choose([isAbsent(mark)], [put(mark, VOID)]), get({ key: mark })];
    const made = await this.#send(mark, () => kv.txn(isNew, success, failure));
    if (parts.length > 0)
      await this.#persist(() => this.#finish({ at, id, parts: parts.length }, made.revision, parts));
    return made;
  }

  /** Writes the other parts of a commit that another process has made. */
  async finish(pending: Entry): Promise<void> {
    await this.#finish(pendingOf(pending), pending.revision);
  }

  /** Events of a commit with several parts. */
  async findEvents(stem: (string | number)[], id: string, offset: number): Promise<LoggedEvent[]> {
    const { found } = await this.kv.txn([], [get(this.keys.below("event", ...stem))]);
    const own = found[0]!.filter(({ key }) => lastComponents(key, 2)[0] === id);
    return own.flatMap((entry) => eventsAt(entry, offset)).sort((a, b) => a.id - b.id);
  }

  /** Forgets outcomes of old commits, and parts of those that were never made. */
  async trim(now: number): Promise<void> {
    const { keys, kv } = this;
    const old = ["commit", "part"].map((tree) =>
      del(keys.below(tree).key, keys.at(tree, Math.max(0, now - KEPT_OUTCOMES_MS))),
    );
    await kv.txn([isAbsent(keys.pending)], old);
  }

  async #send(mark: string, send: () => Promise<TxnResult>): Promise<Made> {
    try {
      const { succeeded, found, revision } = await send();
      if (succeeded) return { revision, head: found[0]![0], epoch: found[1]![0] };
      return await this.#madeAt(found[0]![0]);
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      return this.#persist(async () => {
        const { succeeded, found } = await this.kv.txn([isAbsent(mark)], [put(mark, VOID)], [get({ key: mark })]);
        return this.#madeAt(succeeded ? undefined : found[0]![0]);
      });
    }
  }

  /** What the key of the commit says about an earlier copy of the request. */
  async #madeAt(mark: Entry | undefined): Promise<Made> {
    if (mark?.value !== MADE) throw new Conflict();
    const { keys, kv } = this;
    const { revision } = mark;
    const ranges = [{ key: keys.head }, { key: keys.epoch }];
    const [head, epoch] = await kv.getAt(revision, ranges).catch(async (error: unknown) => {
      if (!(error instanceof Conflict)) throw error;
      // That revision was compacted away. The present version includes it.
      return (await kv.txn([], ranges.map(get))).found;
    });
    return { revision, head: head![0], epoch: epoch![0] };
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

  async #finish({ at, id, parts }: Pending, revision: number, own?: Write[][]): Promise<void> {
    const { keys, kv } = this;
    const isPending = [wasPutAt(keys.pending, revision)];
    for (let i = 0; i < parts; i++) {
      const writes = own?.[i] ?? (await this.#readPart(isPending, keys.at("part", at, id, i)));
      if (!writes) return;
      const { key, end } = keys.below("part", at, id);
      const clean = i === parts - 1 ? [del(keys.pending), del(key, end)] : [];
      const { succeeded } = await kv.txn(isPending, [...writes.map(writeOp), ...clean]);
      if (!succeeded) return;
    }
  }

  /** undefined: another process has written all parts. */
  async #readPart(isPending: Compare[], key: string): Promise<Write[] | undefined> {
    const { succeeded, found } = await this.kv.txn(isPending, [get({ key })]);
    return succeeded ? partOf(key, this.keys.prefix, found[0]![0]?.value) : undefined;
  }
}

/** The value of `pending`. */
interface Pending {
  at: number;
  id: string;
  parts: number;
}
const isPending = isOf<Pending>({ at: isCount, id: isWord, parts: isCount });

function pendingOf({ key, value }: Entry): Pending {
  const pending = parse(key, value);
  if (!isPending(pending)) throw corrupt(key);
  return pending as Pending;
}

function partOf(key: string, prefix: string, text = ""): Write[] {
  const isKey = (it: unknown) => typeof it === "string" && it.startsWith(prefix);
  const isValue = (it: unknown) => it === null || typeof it === "string";
  const isWrite = (it: unknown) => Array.isArray(it) && it.length === 2 && isKey(it[0]) && isValue(it[1]);
  const part = parse(key, text);
  if (!isListOf(isWrite)(part)) throw corrupt(key);
  return part as Write[];
}

function parse(key: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw corrupt(key);
  }
}

const corrupt = (key: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The key ${fromBytes(key)} of the store is not valid.`,
    "It was damaged, or written by another program. Find out by which, and restore the store from a backup, or rebuild it with `overlayctl recover`.",
  );
