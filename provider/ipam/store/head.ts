import { randomBytes } from "node:crypto";
import { type Changes, EPOCH_MS, type Head, KEPT_EPOCHS, KEPT_EVENTS, LAYOUT } from "./store";

/** Of a new store. */
export const emptyHead = (): Head => ({
  id: randomBytes(16).toString("hex"),
  layout: LAYOUT,
  version: 0,
  epoch: "",
  epochSince: 0,
  lastEvent: 0,
  at: 0,
});

/** Whether the commit changes the row of the store. */
export const changesHead = ({ isVersion, events, head, resetEpochs }: Changes): boolean =>
  isVersion || events.length > 0 || head !== undefined || resetEpochs !== undefined;

/** The row of the store after a commit. */
export function nextHead(before: Head, { isVersion, nextEpoch, events, head = {} }: Changes, now: number): Head {
  const isNewEpoch = isVersion && Math.abs(now - before.epochSince) >= EPOCH_MS;
  return {
    ...before,
    ...(isVersion && { version: before.version + 1 }),
    ...(isNewEpoch && { epoch: nextEpoch, epochSince: now }),
    lastEvent: before.lastEvent + events.length,
    ...head,
    at: Math.max(before.at, now, head.at ?? 0),
  };
}

/** One commit in so many deletes the events and epochs that are no longer kept: most need not look for them. */
const TRIM_EVERY = 500;

export const isTimeToTrim = (): boolean => Math.random() < 1 / TRIM_EVERY;

/** Parameters: the time before which events are deleted. Each looks only at what it deletes, and one row more. */
export const TRIM_EVENTS = [
  `DELETE FROM {event} WHERE id <= (SELECT last_event FROM {store}) - ${KEPT_EVENTS}`,
  "DELETE FROM {event} WHERE id < (SELECT id FROM {event} WHERE at >= ? ORDER BY id LIMIT 1)",
];
export const TRIM_EPOCHS = `DELETE FROM {epoch} WHERE first < (SELECT first FROM {epoch} ORDER BY first DESC LIMIT 1 OFFSET ${KEPT_EPOCHS - 1})`;
