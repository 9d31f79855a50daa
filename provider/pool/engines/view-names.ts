/** The SQL views that stores have for people and dashboards. */
export const VIEWS = ["leases", "pools", "free_ranges", "history"];

export const describeMissingViews = (place: string, reason: string): string =>
  `The views ${VIEWS.join(", ")} are not up to date in ${place}: ${reason}`;

export const describeOldViews = (place: string): string =>
  `The views ${VIEWS.join(", ")} in ${place} are of an older release and miss columns. The owner of the tables must open the store once, for instance with \`overlayctl store check\`.`;

/** Why there are none where other relations have their names. */
export const namesTaken = (relations: string[]): string =>
  `${relations.join(", ")} exists and is not ours. Rename it to get them; the pool needs none.`;
