import {
  type Changes,
  type Commit,
  EPOCH_MS,
  type EpochRow,
  type Head,
  isTimeToTrim,
  KEPT_EPOCHS,
  KEPT_EVENTS,
  KEPT_MS,
  type Query,
  type Rows,
  type Transaction,
} from "../store";
import type { Compare, RequestOp } from "./api";
import { type Committer, type Made, newCommitId } from "./commit";
import { headOf, type OpenHead, type StoreRow } from "./head";
import { EVENTS_IN_COMMIT, type Keys, lastComponents, TREES } from "./keys";
import { choose, del, type Entry, type EtcdKv, get, isUnchangedSince, put, wasPutAt, wasPutTimes } from "./kv";
import type { EtcdLock } from "./lock";
import { answerQueries, EVENT_WINDOW, epochText, type Moment } from "./queries";
import { eventWrites, guardsOf, type LockedPool, splitWrites, writesOf } from "./writes";

/** What every transaction reads. Revisions are 0 for keys that are absent. */
export interface Opening extends OpenHead {
  storeRevision: number;
  headRevision: number;
  pending: Entry | undefined;
}

export interface Parts {
  kv: EtcdKv;
  keys: Keys;
  lock: EtcdLock;
  committer: Committer;
}

export class EtcdTransaction implements Transaction {
  readonly head: Head;

  constructor(
    private readonly parts: Parts,
    private readonly moment: Moment,
    private readonly opening: Opening,
    readonly now: number,
    private readonly locked: LockedPool[],
    readonly rows: Rows,
  ) {
    this.head = opening.head;
  }

  load(queries: Query[]): Promise<Rows> {
    return answerQueries(this.moment, queries);
  }

  async commit(changes: Changes): Promise<Commit> {
    const { now, opening, locked, moment, parts } = this;
    const { keys, lock, committer } = parts;
    const id = newCommitId();
    const writes = writesOf(keys, changes, locked, await this.#readCleared(changes));
    const stem = (count: number) => [opening.headRevision, now, count, id];
    const events = eventWrites(keys, changes, stem);
    const head = this.#headOperations(changes);
    const split = splitWrites(writes, events);
    const made = await committer.commit({
      at: now,
      id,
      compares: [
        ...locked.map(({ name, entry }) => wasPutAt(keys.pool(name), entry?.revision ?? 0)),
        wasPutAt(keys.store, opening.storeRevision),
        ...lock.compares,
        ...head.compares,
        ...guardsOf(keys, changes, writes, moment.reader.revision),
      ],
      operations: [...head.operations, ...lock.operations],
      parts: split,
    });
    lock.noteCommit();
    const logged =
      split.length > 1 ? await committer.findEvents([opening.headRevision, now], id, opening.eventOffset) : undefined;
    if ((changes.isVersion || changes.events.length > 0) && isTimeToTrim()) await this.#trim().catch(() => {});
    const first = made.revision * EVENTS_IN_COMMIT + opening.eventOffset;
    return {
      ...this.#versionAfter(made, changes),
      events: logged ?? changes.events.map((event, i) => ({ ...event, id: first + i })),
    };
  }

  async rollBack(): Promise<void> {}

  async #readCleared({ free }: Changes): Promise<string[]> {
    const { reader, keys } = this.moment;
    const found = await Promise.all(
      free.cleared.map(({ pool, zone }) => reader.read({ ...keys.below("free", pool, zone), keysOnly: true })),
    );
    return found.flat().map(({ key }) => key);
  }

  #versionAfter({ head, epoch }: Made, { head: given = {} }: Changes): Pick<Commit, "version" | "epoch"> {
    const { version, epoch: tag } = headOf({ head, epoch }).head;
    return { version: given.version ?? version + this.opening.offset, epoch: tag };
  }

  /** How a commit changes the version, the epoch, and the row of the store. */
  #headOperations(changes: Changes): { compares: Compare[]; operations: RequestOp[] } {
    const { now, opening } = this;
    const { keys } = this.parts;
    const { isVersion, events, head: given, resetEpochs, clear } = changes;
    const { version, epoch = resetEpochs?.tag, epochSince, lastEvent, at = 0, ...rest } = given ?? {};
    const putsHead = isVersion || at > 0;
    const putHead = putsHead ? [put(keys.head, JSON.stringify({ at: Math.max(now, opening.head.at, at) }))] : [];
    // See `EVENT_WINDOW`.
    const isRecent = isUnchangedSince(keys.head, undefined, opening.headRevision + EVENT_WINDOW);
    const compares = events.length > 0 ? [isRecent] : [];
    const isReplaced = version !== undefined || epoch !== undefined || epochSince !== undefined;
    if (isReplaced) compares.push(wasPutTimes(keys.head, opening.commits));
    const { id, layout, move } = opening.head;
    const commits = opening.commits + (putsHead ? 1 : 0);
    const offset = version === undefined ? opening.offset : version - commits;
    const eventOffset = lastEvent ?? opening.eventOffset;
    const row: StoreRow = { id, layout, move, ...rest, offset, ...(eventOffset > 0 && { eventOffset }) };
    const operations = [
      ...(clear ? TREES.map((tree) => keys.below(tree)).map(({ key, end }) => del(key, end)) : []),
      // Ids of events begin again, behind those of the other store. Positions before these are not known.
      ...(lastEvent === undefined ? [] : [del(keys.events), put(keys.trimmed, "0")]),
      ...(given ? [put(keys.store, JSON.stringify(row))] : []),
      ...(resetEpochs ? this.#resetEpochs(resetEpochs) : []),
      ...(isReplaced ? [this.#putEpoch(epoch, epochSince)] : this.#nextEpoch(changes)),
      ...putHead,
    ];
    return { compares, operations };
  }

  #putEpoch(tag = this.opening.head.epoch, since = this.opening.head.epochSince): RequestOp {
    return put(this.parts.keys.epoch, JSON.stringify({ tag, since }));
  }

  /** A Txn must not delete what it puts. */
  #resetEpochs({ first, tag }: EpochRow): RequestOp[] {
    const { keys } = this.parts;
    const { key: start, end } = keys.below("epochs");
    const key = keys.at("epochs", epochText(first));
    return [del(start, key), put(key, tag), del(`${key}\0`, end)];
  }

  /** Begins an epoch if the present one is older than a second, and no other version was made meanwhile. */
  #nextEpoch({ isVersion, nextEpoch }: Changes): RequestOp[] {
    const { now, opening } = this;
    const { keys } = this.parts;
    if (!isVersion || Math.abs(now - opening.head.epochSince) < EPOCH_MS) return [];
    const begin = [
      this.#putEpoch(nextEpoch, now),
      put(keys.at("epochs", epochText(opening.head.version + 1)), nextEpoch),
    ];
    return [choose([wasPutTimes(keys.head, opening.commits)], begin)];
  }

  /** Deletes what is no longer kept. */
  async #trim(): Promise<void> {
    const { keys, kv, committer } = this.parts;
    await committer.trim(this.now);
    const { found } = await kv.txn(
      [],
      [
        get({ ...keys.below("event"), keysOnly: true }),
        get({ ...keys.below("epochs"), keysOnly: true, limit: KEPT_EPOCHS }),
      ],
    );
    const [events, epochs] = found as [Entry[], Entry[]];
    const gone = events.slice(0, countOld(events, this.now));
    const operations = [
      ...gone.slice(-1).map(({ key }) => del(keys.below("event").key, `${key}\0`)),
      ...(gone.length > 0 ? [put(keys.trimmed, String(Math.max(...gone.map(({ revision }) => revision))))] : []),
      ...(epochs.length === KEPT_EPOCHS ? [del(`${epochs.at(-1)!.key}\0`, keys.below("epochs").end)] : []),
    ];
    if (operations.length > 0) await kv.txn([], operations);
  }
}

/** How many of these keys of events, the oldest first, are no longer kept. */
function countOld(all: Entry[], now: number): number {
  let count = 0;
  for (let i = all.length - 1; i >= 0; i--) {
    const [, at, events] = lastComponents(all[i]!.key, 5).map(Number);
    count += events!;
    if (count > KEPT_EVENTS || at! < now - KEPT_MS) return i + 1;
  }
  return 0;
}
