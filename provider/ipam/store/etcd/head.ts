import { store as storeTable } from "../schema";
import { type Head, LAYOUT } from "../store";
import { EVENTS_IN_COMMIT, parseObject } from "./keys";
import type { Entry } from "./kv";

/** The value of `store`. The version is how often `head` was put, and `offset`, for a store that was moved or recovered. */
export interface StoreRow {
  id: string;
  layout: number;
  offset: number;
  /** Is added to the ids of events. */
  eventOffset?: number;
  move?: string | undefined;
}

export interface OpenHead {
  head: Head;
  offset: number;
  eventOffset: number;
  /** How often `head` was put. */
  commits: number;
}

/** The row of the store, which is the values of four keys. */
export function headOf(entries: Partial<Record<"store" | "head" | "epoch" | "events", Entry | undefined>>): OpenHead {
  const { store, head, epoch, events } = entries;
  const objectOf = (entry: Entry | undefined) => (entry ? parseObject(entry.value) : undefined);
  const { id, layout, move, offset, eventOffset = 0 } = objectOf(store) ?? { id: NO_ID, layout: LAYOUT, offset: 0 };
  const { tag, since } = objectOf(epoch) ?? { tag: "", since: 0 };
  const { at } = objectOf(head) ?? { at: 0 };
  const commits = head?.puts ?? 0;
  const lastEvent = events ? events.revision * EVENTS_IN_COMMIT + Number(events.value) - 1 : 0;
  const last_event = lastEvent + Number(eventOffset);
  const version = commits + Number(offset);
  const stored = { one: 1, id, layout, version, epoch: tag, epoch_since: since, last_event, at, move };
  const { one: _, ...row } = storeTable.decode(stored);
  return { head: row, offset: Number(offset), eventOffset: Number(eventOffset), commits };
}

/** Of a store that is not there, and cannot be made. */
const NO_ID = "none";
