import { randomBytes } from "node:crypto";
import type { LoggedEvent } from "../../types";
import { epochs } from "../schema";
import {
  type Changes,
  type Commit,
  Conflict,
  EPOCH_MS,
  type Head,
  isTimeToTrim,
  KEPT_EPOCHS,
  KEPT_EVENTS,
  KEPT_MS,
  type Query,
  type Rows,
  type Transaction,
} from "../store";
import type { RequestOp } from "./api";
import type { Committer, Made } from "./commit";
import { headText, openingOf, type StoreRow } from "./head";
import { EVENTS_IN_COMMIT, eventsAt, eventsText, parseObject, rowText } from "./keys";
import { choose, del, type Entry, type EtcdKv, isUnchangedSince, MAX_COMPARES, put, wasPutAt } from "./kv";
import type { EtcdLock } from "./lock";
import { answerAll, EVENT_WINDOW, type Moment } from "./queries";
import { clearedBy, guardsOf, type LockedPool, type Write, writesOf } from "./writes";

export interface Parts {
  kv: EtcdKv;
  lock: EtcdLock;
  committer: Committer;
  onConflict(): void;
}

/** Events of one key. */
const MAX_EVENTS = 1000;

export class EtcdTransaction implements Transaction {
  readonly head: Head;

  constructor(
    private readonly parts: Parts,
    private readonly moment: Moment,
    readonly now: number,
    private readonly locked: LockedPool[],
    readonly rows: Rows,
  ) {
    this.head = moment.opening.head;
  }

  load(queries: Query[]): Promise<Rows> {
    return this.moment.run(answerAll(this.moment, queries));
  }

  async rollBack(): Promise<void> {
    if (this.locked.length > 0) await this.parts.lock.release();
  }

  async commit(changes: Changes): Promise<Commit> {
    try {
      return await this.#commit(changes);
    } catch (error) {
      if (error instanceof Conflict) this.parts.onConflict();
      throw error;
    }
  }

  async #commit(changes: Changes): Promise<Commit> {
    const { lock, committer } = this.parts;
    const { moment, now, locked } = this;
    const [keys, { storeRevision }] = [moment.keys, moment.opening];
    const id = randomBytes(8).toString("hex");
    const writes = writesOf(keys, changes, locked);
    const { row, putsHead, ...head } = this.#headChange(changes);
    const made = await committer.commit({
      ...{ at: now, id, row, putsRow: changes.head !== undefined, cleared: clearedBy(keys, changes) },
      groups: [...[...writes].map((write) => [write]), ...this.#headWrites(changes, id, putsHead)],
      operations: [...head.operations, ...lock.operations],
      compares: [
        ...[wasPutAt(keys.store, storeRevision), ...lock.compares, ...head.compares],
        ...guardsOf(keys, changes, locked, moment.revision, writes),
      ].slice(0, MAX_COMPARES),
    });
    lock.noteCommit();
    const events = await this.#eventsOf(made, changes, id, row);
    if (isTimeToTrim()) await this.#trim().catch(() => {});
    const { version, epoch } = openingOf(row, 0, made.head, made.epoch).head;
    return { version, epoch, events };
  }

  /** How a commit changes the version, the epoch, and the row of the store. */
  #headChange({ isVersion, events, head: given = {}, resetEpochs, nextEpoch }: Changes) {
    const { now } = this;
    const { keys, opening } = this.moment;
    const { head, headRevision, commits } = opening;
    const { version, epoch = resetEpochs?.tag, epochSince, lastEvent, at = 0, ...rest } = given;
    const isReplaced = version !== undefined || epoch !== undefined || epochSince !== undefined;
    const putsHead = isVersion || events.length > 0 || at > 0 || lastEvent !== undefined;
    const next = version ?? head.version + (isVersion || events.length > 0 ? 1 : 0);
    const row: StoreRow = { ...opening.row, ...rest, offset: next - commits - (putsHead ? 1 : 0) };
    // Ids of events begin again, behind those of the other store. Positions before these are not known.
    if (lastEvent !== undefined) Object.assign(row, { eventOffset: lastEvent, trimmed: 0 });
    const isUnchanged = wasPutAt(keys.head, headRevision);
    const isRecent = isUnchangedSince(headRevision + EVENT_WINDOW, keys.head);
    const putEpoch = (tag = head.epoch, since = head.epochSince, first?: number) =>
      put(keys.epoch, JSON.stringify({ tag, since, first }));
    const operations: RequestOp[] = [];
    if (isReplaced) operations.push(putEpoch(epoch, epochSince, resetEpochs?.first));
    else if (isVersion && Math.abs(now - head.epochSince) >= EPOCH_MS) {
      const begun = { first: next, tag: nextEpoch };
      const begin = [putEpoch(nextEpoch, now, next), put(keys.row(epochs, begun), rowText(epochs, begun))];
      // Unless another version was made meanwhile.
      operations.push(choose([isUnchanged], begin));
    }
    const isFixed = isReplaced || (putsHead && events.length === 0);
    return { row, putsHead, operations, compares: isFixed ? [isUnchanged] : putsHead ? [isRecent] : [] };
  }

  #headWrites({ events, head: { at = 0, lastEvent } = {} }: Changes, id: string, putsHead: boolean): Write[][] {
    const { keys, opening } = this.moment;
    const { head, headRevision } = opening;
    const latest = Math.max(this.now, head.at, at);
    if (events.length === 0)
      return putsHead ? [[[keys.head, headText({ at: latest, last: lastEvent ?? head.lastEvent })]]] : [];
    return Array.from({ length: Math.ceil(events.length / MAX_EVENTS) }, (_, i) => {
      const group = events.slice(i * MAX_EVENTS, (i + 1) * MAX_EVENTS);
      const key = keys.at("event", headRevision, this.now, group.length, id, i);
      return [
        [key, eventsText(group)],
        [keys.head, headText({ at: latest, events: group.length })],
      ];
    });
  }

  async #eventsOf(
    { revision, hasParts }: Made,
    { events }: Changes,
    id: string,
    row: StoreRow,
  ): Promise<LoggedEvent[]> {
    const { keys, opening } = this.moment;
    const first = revision * EVENTS_IN_COMMIT + row.eventOffset;
    if (!hasParts) return events.map((event, i) => ({ ...event, id: first + i }));
    const { found } = await this.parts.kv.read([keys.below("event", opening.headRevision, this.now)]);
    const own = found[0]!.filter(({ key }) => keys.componentsOf(key)[3] === id);
    return own.flatMap((entry) => eventsAt(entry, row.eventOffset)).sort((a, b) => a.id - b.id);
  }

  /** Deletes what is no longer kept. */
  async #trim(): Promise<void> {
    const { kv, committer } = this.parts;
    const { keys } = this.moment;
    const [events, epoch] = [keys.below("event"), keys.below("epoch")];
    const ranges = [{ ...events, keysOnly: true }, { ...epoch, keysOnly: true }, { key: keys.store }];
    const [logged, begun, [store]] = (await kv.read(ranges)).found as [Entry[], Entry[], Entry[]];
    const row = parseObject(store?.value ?? "");
    if (row.pending !== undefined) return;
    const gone = logged.slice(0, this.#countOld(logged));
    const firstKept = begun.at(-KEPT_EPOCHS);
    const operations = committer.trim(this.now);
    if (gone.length > 0) {
      const trimmed = Math.max(...gone.map(({ revision }) => revision));
      operations.push(del(events.key, `${gone.at(-1)!.key}\0`), put(keys.store, JSON.stringify({ ...row, trimmed })));
    }
    if (firstKept) operations.push(del(epoch.key, firstKept.key));
    await kv.txn([wasPutAt(keys.store, store?.revision ?? 0)], operations);
  }

  /** How many of these keys of events, the oldest first, are no longer kept. */
  #countOld(all: Entry[]): number {
    let count = 0;
    for (let i = all.length - 1; i >= 0; i--) {
      const [, at, events] = this.moment.keys.componentsOf(all[i]!.key).map(Number);
      count += events!;
      if (count > KEPT_EVENTS || at! < this.now - KEPT_MS) return i + 1;
    }
    return 0;
  }
}
