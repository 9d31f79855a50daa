import type { Event, Lease, Pool } from "../pool/types";
import { poolNamed } from "../pool-names";
import { addressPools, findNamedPool, findPoolOf, hasInRange } from "./address-pools";
import type { AddressInput } from "./inputs";
import { formatTime, formatValue, isPort } from "./leases";
import { findLeases } from "./search";

/** More than a pool keeps. */
const MOST_EVENTS = 20_000;

/** One change of a pool, for JSON. */
export interface Change {
  at: string;
  what: Event["what"];
  value: string;
  pool: string;
  owner: string;
  usedBy?: string;
  by?: string;
  takenBy?: string;
  formerOwner?: string;
  leaseId: string;
}

export const describeEvent = ({
  at,
  what,
  extents,
  pool,
  owner,
  usedBy,
  by,
  takenBy,
  formerOwner,
  leaseId,
}: Event): Change => ({
  at: formatTime(at),
  what,
  value: extents
    .map(({ first, last }) =>
      first === last
        ? formatValue(first)
        : isPort(first)
          ? `${first}-${last}`
          : `${formatValue(first)}-${formatValue(last)}`,
    )
    .join(", "),
  pool,
  owner,
  ...(usedBy !== undefined && { usedBy }),
  ...(by !== undefined && { by }),
  ...(takenBy !== undefined && { takenBy }),
  ...(formerOwner !== undefined && { formerOwner }),
  leaseId,
});

/** The changes of a pool, oldest first, also of a deleted one. Without a name: of all pools. */
export async function historyOfPool(pool: Pool, name?: string): Promise<Event[]> {
  if (name === undefined)
    return readHistory(
      pool,
      (await pool.pools()).map((spec) => spec.name),
    );
  const events = await readHistory(pool, [name]);
  return events.length > 0 || name.includes("/") ? events : readHistory(pool, [poolNamed(name)]);
}

/** The changes of an address in the pools that have it now. */
export async function historyOfAddress(pool: Pool, input: AddressInput): Promise<Event[]> {
  const place = await findNamedPool(pool, input);
  const specs = place ? [place.spec] : (await addressPools(pool)).filter((spec) => hasInRange(spec, input.ip));
  const events = await readHistory(
    pool,
    specs.map((spec) => spec.name),
  );
  return events.filter(({ extents }) => extents.some(({ first, last }) => first <= input.ip && input.ip <= last));
}

async function readHistory(pool: Pool, names: string[]): Promise<Event[]> {
  const events: Event[] = [];
  for (const name of names) events.push(...(await pool.history(name, { limit: MOST_EVENTS })));
  return events.sort((a, b) => a.at - b.at || rankOf(a) - rankOf(b));
}

/** Events of one millisecond are stored in no particular order. */
const rankOf = ({ what }: Event): number => (BEGINNINGS.includes(what) ? 0 : ENDS.includes(what) ? 2 : 1);

/** A time for which a lease held an address. */
export interface Holding {
  owner: string;
  pool: string;
  usedBy?: string;
  /** Absent when the beginning is no longer in the history. */
  since?: string;
  until: string;
  /** How it ended. */
  end: Event["what"];
}

export interface AddressStatus {
  holders: Lease[];
  before: Holding[];
}

const BEGINNINGS: Event["what"][] = ["claimed", "imported"];
const ENDS: Event["what"][] = ["released", "expired", "reclaimed", "handed over"];

/** The present holders of an address, else the offer or the quarantine on it; and the earlier holders, latest first. */
export async function showAddress(pool: Pool, input: AddressInput): Promise<AddressStatus> {
  const before = findHoldings(await historyOfAddress(pool, input)).reverse();
  const holders = await findLeases(pool, input);
  for (const state of ["offered", "quarantined"] as const)
    if (holders.length === 0) holders.push(...(await findLeases(pool, { ...input, state })));
  if (holders.length + before.length === 0) await findPoolOf(pool, input, input.ip); // rejects an address that is in no pool
  return { holders, before };
}

function findHoldings(events: Event[]): Holding[] {
  const open = new Map<string, { since?: string; usedBy?: string }>();
  const holdings: Holding[] = [];
  for (const { at, what, pool, owner, uid, usedBy } of events) {
    const begun = BEGINNINGS.includes(what) ? { since: formatTime(at) } : open.get(uid);
    const holding = { ...begun, ...(usedBy !== undefined && { usedBy }) };
    open.set(uid, holding);
    if (!ENDS.includes(what)) continue;
    open.delete(uid);
    holdings.push({ owner, pool, ...holding, until: formatTime(at), end: what });
  }
  return holdings;
}
