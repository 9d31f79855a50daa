/**
 * Names of pools in the store. They are made and taken apart here only. Errors and notes use `describePool`; tables, `--json` and arguments of
 * commands have the name itself.
 */
export const NETWORKS = "network/";
export const RUNNERS = "runner/";
export const IP_POOLS = "pool/";
export const SPACES = "space/";
/** One pool of all ports for each name; pools of ports with that name are cut out of it. */
export const PORT_SPACES = `${SPACES}ports/`;
export const DEFAULT_SPACE = `${SPACES}default`;

export const networkPool = (network: string): string => NETWORKS + network;
export const addressPool = (network: string, runner: string): string => `${RUNNERS}${network}/${runner}`;
/** `NETWORK/RUNNER`, as a reference by name gives it. */
export const runnerPool = (name: string): string => RUNNERS + name;
export const poolNamed = (name: string): string => IP_POOLS + name;
export const portSpace = (name: string): string => PORT_SPACES + name;
export const addressSpace = (name: string): string => SPACES + name;

/** The network of a network's pool. */
export const networkOfPool = (name: string): string => name.slice(NETWORKS.length);

/** undefined: it is not the pool of a runner's addresses. */
export function runnerOfPool(name: string): { network: string; runner: string } | undefined {
  const [, network, runner] = /^runner\/([^/]+)\/([^/]+)$/.exec(name) ?? [];
  return network === undefined ? undefined : { network, runner: runner! };
}

/** How many names an error has at most. */
export const MOST_NAMES = 10;

/** Names for an error: the first ones, and whether there are more. */
export const listNames = (names: string[]): string =>
  names.length > MOST_NAMES ? `${names.slice(0, MOST_NAMES).join(", ")} and others` : names.join(", ") || "none";

/** At the start of a sentence. */
export const capitalize = (text: string): string => text[0]!.toUpperCase() + text.slice(1);

/** In words, for sentences. The pools of tenants have slashes in their names: see tenants.ts. */
export function describePool(name: string): string {
  const [kind, first, second, third, fourth] = name.split("/");
  if (kind === "network" && first) return `network ${first}`;
  if (kind === "runner" && second) return `runner ${second} of network ${first}`;
  if (kind === "space" && first) return second ? `the ports of IPPool ${second}` : `address space ${first}`;
  if (kind !== "pool" || !first) return `pool ${name}`;
  if (first === "tenants" && second) return `the range for tenants' pools of type ${second}`;
  return first === "tenant" && fourth ? `the pool of type ${fourth} of tenant ${second}/${third}` : `IPPool ${first}`;
}

// Names by which leases are found in any pool, besides the names of their child pools. Each is unique in the store.
export const REQUESTS = "request/";
export const PLACED = "placed/";
/** Of devices on hosts. */
export const HOSTS = "host/";
/** Of containers in a network. */
export const USERS = "user/";

/** Of the public keys of hosts. */
export const KEYS = "key/";

export const keyName = (publicKey: string): string => KEYS + publicKey;

/** Of the lease that answers a request which may be repeated. `text` tells the requests of a caller apart. */
export const requestLeaseName = (caller: string, text: string): string => `${REQUESTS}${caller}/${text}`;

/** Of the reservation of an owner for which a pool was chosen: on a runner of this network, or of the tenant with this block. */
export const placementLeaseName = (place: string, owner: string): string => `${PLACED}${place}/${owner}`;
