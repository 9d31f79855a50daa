import { OverlayError } from "../../errors";
import type { EventPage, LoggedEvent } from "../types";
import { headKey, idOfLoggedEvent, loggedEventKey, loggedEventsFrom } from "./keys";
import type { WriteBuffer } from "./write-buffer";

/**
 * The event log: the newest changes of all pools. Their ids are counted in the head of the store, which every commit compares, so that they
 * follow the order of the commits without gaps, whichever process makes them.
 */
const KEPT = 20_000;

/** Adds the changes of this transaction behind the event `last`, and removes as many old ones. */
export function appendEvents(tx: WriteBuffer, last: number): LoggedEvent[] {
  return tx.events.map((event, i) => {
    const id = last + 1 + i;
    tx.put(loggedEventKey(id), event);
    if (id > KEPT) tx.delete(loggedEventKey(id - KEPT));
    return { ...event, id };
  });
}

export const newestEvent = async (tx: WriteBuffer): Promise<number> => (await tx.get(headKey))?.events ?? 0;

export async function readEvents(tx: WriteBuffer, after: number | undefined, limit: number): Promise<EventPage> {
  const last = await newestEvent(tx);
  if (after === undefined) return { events: [], last };
  const rows = after < last ? await tx.rows(loggedEventsFrom(after + 1), limit) : [];
  const events = rows.map(([key, event]) => ({ ...event, id: idOfLoggedEvent(key) }));
  const isGap = after < last && events[0]?.id !== after + 1;
  if (after > last || isGap) throw eventsLostError(after, last);
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
