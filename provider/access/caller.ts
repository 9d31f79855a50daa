import { z } from "zod";
import { OverlayError } from "../errors";
import type { AccessToken } from "../ipam/admin";
import { findSpec } from "../ipam/interface";
import type { Event, Ipam } from "../ipam/types";
import { formatTenant, isSameTenant } from "../owner";
import { IP_POOLS, NETWORKS, networkPool, poolNamed, RUNNERS, SPACES } from "../pool-names";
import { resourceName, tenantText } from "../resources/inputs";

/** A part of the store: of one tenant, and of one network with its runners, one pool, or both. Without any, all of it. */
export type Bounds = Pick<AccessToken, "tenant" | "network" | "pool">;

export const isPoolInBounds = ({ network, pool }: Bounds, name: string): boolean =>
  (network === undefined && pool === undefined) ||
  (network !== undefined && (name === networkPool(network) || name.startsWith(`${RUNNERS}${network}/`))) ||
  name === pool;

export const isEventInBounds = (bounds: Bounds, { pool, tenant }: Event): boolean =>
  isPoolInBounds(bounds, pool) && (bounds.tenant === undefined || isSameTenant(tenant, bounds.tenant));

/** Of these events, those in the bounds of their reader, as it may see them. */
export const showEvents = <E extends Event>(bounds: Bounds, events: E[]): E[] =>
  events.filter((event) => isEventInBounds(bounds, event)).map((event) => showEvent(bounds, event));

/** An event as its reader may see it. The owner that has the values now, and the user that took them, may be of another tenant. */
export function showEvent<E extends Event>({ tenant }: Bounds, event: E): E {
  if (!tenant || event.takenBy === undefined) return event;
  const { takenBy: _, by: __, ...shown } = event;
  return shown as E;
}

/** Bounds as a user writes them. */
export const boundsFields = {
  tenant: tenantText.optional(),
  network: resourceName.optional(),
  pool: z.string().min(1).optional(),
};

type BoundsInput = z.output<z.ZodObject<typeof boundsFields>>;

/** `POOL_NOT_FOUND` if the network or the pool does not exist. */
export async function resolveBounds(pool: Ipam, { tenant, network, pool: given }: BoundsInput): Promise<Bounds> {
  return {
    ...(tenant && { tenant }),
    ...(network !== undefined && { network: await requireNetworkName(pool, network) }),
    ...(given !== undefined && { pool: await requirePoolName(pool, given) }),
  };
}

async function requireNetworkName(pool: Ipam, network: string): Promise<string> {
  if (await findSpec(pool, networkPool(network))) return network;
  throw missingError(`network '${network}'`);
}

/** `web` and `pool/web` are the same pool. Names of other kinds, such as `runner/NETWORK/RUNNER`, are always whole. */
export const expandPoolName = (given: string): string =>
  [IP_POOLS, RUNNERS, NETWORKS, SPACES].some((prefix) => given.startsWith(prefix)) ? given : poolNamed(given);

async function requirePoolName(pool: Ipam, given: string): Promise<string> {
  const name = expandPoolName(given);
  if (await findSpec(pool, name)) return name;
  throw missingError(`pool '${given}'`);
}

const missingError = (what: string): OverlayError =>
  new OverlayError("POOL_NOT_FOUND", `There is no ${what} in the store.`, "`overlayctl pool list` shows the names.");

/** Bounds, for JSON. */
export interface BoundsInfo {
  /** `ORGANIZATION/PROJECT`. */
  tenant?: string;
  network?: string;
  pool?: string;
}

export const describeBounds = ({ tenant, network, pool }: Bounds): BoundsInfo => ({
  ...(tenant && { tenant: formatTenant(tenant) }),
  ...(network !== undefined && { network }),
  ...(pool !== undefined && { pool }),
});

/** `admin` includes all others, and `deploy` includes `preview`. */
export type Scope = AccessToken["scopes"][number];

/** The sender of a request, and the part of the store that it may see and change. Without bounds, it is the operator. */
export interface Caller extends Bounds {
  /** The name of its access token, which the history gets. */
  name: string;
  scopes: readonly Scope[];
}

export const hasScope = ({ scopes }: Pick<Caller, "scopes">, scope: Scope): boolean =>
  scopes.includes(scope) || scopes.includes("admin") || (scope === "preview" && scopes.includes("deploy"));

export function requireScope(caller: Caller, scope: Scope): void {
  if (hasScope(caller, scope)) return;
  throw new OverlayError(
    "ACCESS_DENIED",
    `This needs the scope ${scope}; access token ${caller.name} has ${caller.scopes.join(", ")}.`,
    `Use a token that was made with \`overlayctl access create NAME --scope ${scope}\`.`,
  );
}
