/** RFC 3339, in UTC, to the second. */
export const formatTime = (time: number): string => new Date(time).toISOString().replace(/\.\d+Z$/, "Z");
