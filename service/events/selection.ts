import { type Bounds, expandPoolName, isEventInBounds, showEvents } from "../../provider/access/caller";
import type { LoggedEvent, Tenant } from "../../provider/ipam/types";
import type { EventFeed } from "./feed";

/** Milliseconds between signs of life, which also tell a client up to which event it has seen all of its own. */
const HEARTBEAT_MS = 15_000;

/** Which events a client asks for. */
export interface EventFilter {
  pool?: string | undefined;
  network?: string | undefined;
  tenant?: Tenant | undefined;
}

/** Of these events, those that are asked for, as the caller may see them. */
export type Selection = (events: LoggedEvent[]) => LoggedEvent[];

export function selectEvents(caller: Bounds, { pool, network, tenant }: EventFilter): Selection {
  const filter: Bounds = {
    ...(pool !== undefined && { pool: expandPoolName(pool) }),
    ...(network !== undefined && { network }),
    ...(tenant && { tenant }),
  };
  return (events) => showEvents(caller, events).filter((event) => isEventInBounds(filter, event));
}

export interface SelectedEvents {
  /** Empty: a heartbeat. */
  events: LoggedEvent[];
  /** The newest event that was read, for whichever client; undefined: none yet. */
  newest: LoggedEvent | undefined;
}

export interface FollowOptions {
  after: number;
  select: Selection;
  signal: AbortSignal;
  heartbeatMs?: number | undefined;
}

/** Follows the events for one client. While none is for it, it gets heartbeats: so a client whose filter matches few events does not fall behind. */
export async function* followSelected(
  feed: EventFeed,
  { after, select, signal, heartbeatMs = HEARTBEAT_MS }: FollowOptions,
): AsyncGenerator<SelectedEvents, void, void> {
  let newest: LoggedEvent | undefined;
  let sentAt = Date.now();
  for await (const events of feed.follow(after, signal, heartbeatMs)) {
    newest = events.at(-1) ?? newest;
    const selected = select(events);
    const isForOthers = events.length > 0 && selected.length === 0;
    if (isForOthers && Date.now() - sentAt < heartbeatMs) continue;
    yield { events: selected, newest };
    sentAt = Date.now();
  }
}
