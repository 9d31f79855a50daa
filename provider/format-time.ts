/** The latest time that a Date can have. Milliseconds. */
const LATEST = 8.64e15;

/** A time of the store as RFC 3339, in UTC. Other programs write to the store, too: a time that no Date has is shown as the nearest one. */
export const toTimeText = (time: number): string => new Date(Math.min(Math.max(time, -LATEST), LATEST)).toISOString();

/** The same to the second. */
export const formatTime = (time: number): string => toTimeText(time).replace(/\.\d+Z$/, "Z");
