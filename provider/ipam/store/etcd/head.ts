import { store as storeTable } from "../schema";
import { type EpochRow, type Head, LAYOUT } from "../store";
import { EVENTS_IN_COMMIT, parseObject } from "./keys";
import type { Entry } from "./kv";
import type { Moment, Plan } from "./queries";

/** The value of `store`. The version is how often `head` was put, and `offset`, for a store that was moved or recovered. */
export interface StoreRow {
  id: string;
  layout: number;
  offset: number;
  /** Is added to the ids of events. */
  eventOffset: number;
  /** The last revision of events that are no longer kept. */
  trimmed?: number | undefined;
  move?: string | undefined;
  /** A commit that is made, with parts that are not in their places yet. */
  pending?: string | undefined;
}

/** What every transaction reads. Revisions are 0 for keys that are absent. */
export interface Opening {
  row: StoreRow;
  storeRevision: number;
  head: Head;
  headRevision: number;
  /** How often `head` was put. */
  commits: number;
  /** The epoch, if there is one. */
  present?: EpochRow;
}

/** The value of `head`: the number of events of the commit, or the last event, if it had none. */
interface HeadValue {
  at: number;
  events?: number;
  last?: number;
}
export const headText = (value: HeadValue): string => JSON.stringify(value);

/** Also of the other plans of the moment. */
export function* readOpening(moment: Moment): Plan<Opening> {
  const { store, head, epoch } = moment.keys;
  const found = yield [{ key: store }, { key: head }, { key: epoch }];
  const [row, ...rest] = found.map(([entry]) => entry);
  moment.opening = openingOf(row && parseObject(row.value), row?.revision, ...rest);
  return moment.opening;
}

export function openingOf(stored?: object, storeRevision = 0, head?: Entry, epoch?: Entry): Opening {
  const row = (stored ?? { id: "none", layout: LAYOUT, offset: 0, eventOffset: 0 }) as StoreRow;
  const { tag, since, first } = epoch ? parseObject(epoch.value) : { tag: "", since: 0, first: 0 };
  const { at, events = 0, last } = head ? parseObject(head.value) : { at: 0, last: row.eventOffset };
  const commits = head?.puts ?? 0;
  const lastEvent = last ?? (head?.revision ?? 0) * EVENTS_IN_COMMIT + Number(events) - 1 + row.eventOffset;
  const version = commits + row.offset;
  const columns = { one: 1, ...row, version, epoch: tag, epoch_since: since, last_event: lastEvent, at };
  const { one: _, ...found } = storeTable.decode(columns);
  return {
    ...{ row, storeRevision },
    head: found,
    headRevision: head?.revision ?? 0,
    commits,
    ...(epoch && { present: { first: Number(first), tag: found.epoch } }),
  };
}
