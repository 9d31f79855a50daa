/** Names by which leases are found in any pool, besides the names of their child pools. Each is unique in the store. */
export const REQUESTS = "request/";
export const PLACED = "placed/";
/** Of devices on hosts. */
export const HOSTS = "host/";
/** Of containers in a network. */
export const USERS = "user/";

/** Of the lease that answers a request which may be repeated. `text` tells the requests of a caller apart. */
export const requestLeaseName = (caller: string, text: string): string => `${REQUESTS}${caller}/${text}`;

/** Of the reservation of an owner for which a pool was chosen: on a runner of this network, or of the tenant with this block. */
export const placementLeaseName = (place: string, owner: string): string => `${PLACED}${place}/${owner}`;
