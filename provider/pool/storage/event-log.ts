import { OverlayError } from "../../errors";
import type { EventPage, LoggedEvent } from "../types";
import { headKey, lastIdOfKey, loggedEventsFrom, loggedEventsKey, loggedEventsUntil } from "./keys";
import type { WriteBuffer } from "./write-buffer";

/**
 * The event log: the newest changes of all pools, in one row for each commit. Their ids are counted in the head of the store, which every
 * commit compares, so that they follow the order of the commits without gaps, whichever process makes them.
 */
const KEPT = 20_000;
/** After so many events, those that are no longer kept are deleted: most commits need not look for them. */
const TRIM_EVERY = 500;

/** Adds the changes of this transaction behind the event `last`. */
export async function appendEvents(tx: WriteBuffer, last: number): Promise<LoggedEvent[]> {
  if (tx.events.length === 0) return [];
  const newest = last + tx.events.length;
  tx.put(loggedEventsKey(newest), [...tx.events]);
  if (Math.floor(newest / TRIM_EVERY) > Math.floor(last / TRIM_EVERY)) {
    for (const [key] of await tx.allRows(loggedEventsUntil(newest - KEPT))) tx.set(key, null);
  }
  return tx.events.map((event, i) => ({ ...event, id: last + 1 + i }));
}

export const newestEvent = async (tx: WriteBuffer): Promise<number> => (await tx.get(headKey))?.events ?? 0;

/** Without `after`: none, only the id of the newest one. */
export async function readEvents(tx: WriteBuffer, after: number | undefined, limit: number): Promise<EventPage> {
  const last = await newestEvent(tx);
  if (after === undefined || after === last) return { events: [], last };
  const rows = after < last ? await tx.rows(loggedEventsFrom(after + 1), limit) : [];
  const events = rows
    .flatMap(([key, list]) => list.map((event, i) => ({ ...event, id: lastIdOfKey(key) - list.length + 1 + i })))
    .filter(({ id }) => id > after)
    .slice(0, limit);
  if (events[0]?.id !== after + 1) throw eventsLostError(after, last);
  return { events, last };
}

const eventsLostError = (after: number, last: number): OverlayError =>
  new OverlayError(
    "EVENTS_LOST",
    after > last
      ? `There is no event ${after} in the store, whose newest one is ${last}: an older backup of it was restored.`
      : `Events after ${after} are no longer kept; the newest one is ${last}, and ${KEPT} are kept.`,
    `List all leases again, and follow the events after ${last}.`,
  );
