/** Names by which leases are found in any pool, besides the names of their child pools. Each is unique in the store. */
export const REQUESTS = "request/";
const PLACED = "placed/";
const SHOWN = "shown/";

/** Of the lease that answers a request which may be repeated. `text` tells the requests of a caller apart. */
export const requestLeaseName = (caller: string, text: string): string => `${REQUESTS}${caller}/${text}`;

/** Of the reservation of an owner for which a pool was chosen: on a runner of this network, or of the tenant with this block. */
export const placementLeaseName = (place: string, owner: string): string => `${PLACED}${place}/${owner}`;

/**
 * Of the offer that a preview of this program has shown to such an owner. Two branches may have been shown offers in two pools. Without a
 * program: the placement itself.
 */
export const shownLeaseName = (program: string | undefined, placement: string): string =>
  program === undefined ? placement : `${SHOWN}${program}/${placement.slice(PLACED.length)}`;

export const isPlacementLeaseName = (name: string): boolean => name.startsWith(PLACED);

export const isShownLeaseName = (name: string, program?: string): boolean =>
  name.startsWith(program === undefined ? SHOWN : `${SHOWN}${program}/`);

/** The place and owner in either of these names; undefined: it is another name. */
export function placementInLeaseName(name: string): string | undefined {
  if (isPlacementLeaseName(name)) return name.slice(PLACED.length);
  return isShownLeaseName(name) ? name.slice(name.indexOf("/", SHOWN.length) + 1) : undefined;
}
