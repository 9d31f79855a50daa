/** The SQL views that stores have for people and dashboards. */
export const VIEWS = ["leases", "pools", "free_ranges", "history"];

export const describeMissingViews = (place: string, reason: string): string =>
  `The views ${VIEWS.join(", ")} are not made in ${place}: ${reason}`;

/** Why there are none where other relations have their names. */
export const namesTaken = (relations: string[]): string =>
  `${relations.join(", ")} exists and is not ours. Rename it to get them; the pool needs none.`;
