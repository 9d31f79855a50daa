import { createHash } from "node:crypto";
import { isOverlayError, OverlayError } from "../../provider/errors";
import type { Ipam, LoggedEvent } from "../../provider/ipam/types";

/**
 * The last event that a client has. After an older backup of the store was restored, new events get the ids of lost ones; the fingerprint tells them
 * apart.
 */
export interface Position {
  id: number;
  /** undefined: the client knows only the id. */
  fingerprint?: string | undefined;
}

/** Lease ids are random: another event with the same id has another fingerprint. */
export const positionOf = ({ id, at, what, leaseId }: LoggedEvent): Position => ({
  id,
  fingerprint: createHash("sha256").update(`${at} ${what} ${leaseId}`).digest("hex").slice(0, 8),
});

/** `ID.FINGERPRINT`, as clients send it back. */
export const formatPosition = ({ id, fingerprint }: Position): string =>
  fingerprint === undefined ? String(id) : `${id}.${fingerprint}`;

export const POSITION_FORM = /^(\d{1,15})(?:\.([0-9a-f]{8}))?$/;

/** Of a text that has this form. */
export function parsePosition(text: string): Position {
  const [, id, fingerprint] = POSITION_FORM.exec(text)!;
  return { id: Number(id), fingerprint };
}

/** The newest event of the store. */
export async function readNewest(pool: Pick<Ipam, "events">): Promise<Position> {
  const { last } = await pool.events({});
  const event = await readEvent(pool, last);
  return event ? positionOf(event) : { id: last };
}

/** `EVENTS_LOST` if the store no longer has the event after this one, or has another one in its place. */
export async function requirePosition(pool: Pick<Ipam, "events">, { id, fingerprint }: Position): Promise<void> {
  const { last } = await pool.events({ after: id, limit: 1 });
  if (fingerprint === undefined) return;
  const event = await readEvent(pool, id);
  if (event && positionOf(event).fingerprint !== fingerprint) throw otherEventError(id, last);
}

/** undefined: it is no longer kept. */
async function readEvent(pool: Pick<Ipam, "events">, id: number): Promise<LoggedEvent | undefined> {
  if (id === 0) return undefined;
  const page = await pool.events({ after: id - 1, limit: 1 }).catch((error: unknown) => {
    if (isOverlayError(error, "EVENTS_LOST")) return undefined;
    throw error;
  });
  return page?.events[0];
}

const otherEventError = (id: number, last: number): OverlayError =>
  new OverlayError(
    "EVENTS_LOST",
    `Event ${id} of the store is another one: an older backup of it was restored.`,
    `List all leases again, and follow the events after ${last}.`,
  );
