import type { Change, Holding } from "../answers";
import { formatTime } from "../format-time";
import { historyOf, listSpecs } from "../ipam/interface";
import type { Event, Lease } from "../ipam/types";
import { formatTenant } from "../owner";
import { poolNamed } from "../pool-names";
import { addressPools, findByShortName, findNamedPool, findPoolOf, hasInRange, requirePool } from "./address-pools";
import { type Context, isVisible, refuseOtherTenant } from "./context";
import type { AddressInput } from "./inputs";
import { formatValue, isPort } from "./leases";
import { findLeases } from "./search";

export function describeEvent(event: Event): Change {
  const { at, what, ranges, pool, owner, usedBy, by, takenBy, formerOwner, tenant, leaseId } = event;
  const value = ranges.map(({ first, last }) => {
    if (first === last) return formatValue(first);
    return isPort(first) ? `${first}-${last}` : `${formatValue(first)}-${formatValue(last)}`;
  });
  return {
    ...{ at: formatTime(at), what, value: value.join(", "), pool, owner, usedBy, by, takenBy, formerOwner },
    tenant: tenant && formatTenant(tenant),
    leaseId,
  };
}

/** The changes of a pool, oldest first, also of a deleted one. Without a name: of all pools that the caller may see. */
export async function historyOfPool(context: Context, name?: string): Promise<Event[]> {
  const { pool } = context;
  if (name === undefined) {
    const specs = (await listSpecs(pool)).filter((spec) => isVisible(spec, context));
    return readHistory(
      context,
      specs.map((spec) => spec.name),
    );
  }
  const spec = await findByShortName(pool, name);
  if (spec) refuseOtherTenant(spec, context);
  const events = await readHistory(context, name.includes("/") ? [name] : [name, poolNamed(name)]);
  if (!spec && events.length === 0) await requirePool(context, name); // rejects a name that no pool has had
  return events;
}

/** The changes of an address in the pools that have it now. */
export async function historyOfAddress(context: Context, input: AddressInput): Promise<Event[]> {
  const place = await findNamedPool(context, input);
  const specs = place ? [place.spec] : (await addressPools(context)).filter((spec) => hasInRange(spec, input.ip));
  const events = await readHistory(
    context,
    specs.map((spec) => spec.name),
  );
  return events.filter(({ ranges }) => ranges.some(({ first, last }) => first <= input.ip && input.ip <= last));
}

async function readHistory(context: Context, names: string[]): Promise<Event[]> {
  const events: Event[] = [];
  for (const name of names) events.push(...(await historyOf(context.pool, name)));
  return events.filter((event) => isVisible(event, context)).sort((a, b) => a.at - b.at || rankOf(a) - rankOf(b));
}

/** Events of one millisecond are stored in no particular order. */
const rankOf = (event: Event): number => (isBeginning(event) ? 0 : isEnd(event) ? 2 : 1);

/** Whether a lease began with it. */
export const isBeginning = ({ what }: Event): boolean => what === "claimed" || what === "imported";

/** Whether a lease ended with it. */
export const isEnd = ({ what }: Event): boolean => ["released", "expired", "reclaimed", "handed over"].includes(what);

/** The present holders of an address, else the offer or the quarantine on it; and the earlier holders, latest first. */
export async function showAddress(
  context: Context,
  input: AddressInput,
): Promise<{ holders: Lease[]; before: Holding[] }> {
  const before = findHoldings(await historyOfAddress(context, input)).reverse();
  const holders = await findLeases(context, input);
  for (const state of ["offered", "quarantined"] as const)
    if (holders.length === 0) holders.push(...(await findLeases(context, { ...input, state })));
  if (holders.length + before.length === 0) await findPoolOf(context, input, input.ip); // rejects an address that is in no pool
  return { holders, before };
}

function findHoldings(events: Event[]): Holding[] {
  const open = new Map<string, { since?: string; usedBy?: string }>();
  const holdings: Holding[] = [];
  for (const event of events) {
    const { at, what, pool, owner, uid, usedBy } = event;
    const begun = isBeginning(event) ? { since: formatTime(at) } : open.get(uid);
    const holding = { ...begun, ...(usedBy !== undefined && { usedBy }) };
    open.set(uid, holding);
    if (!isEnd(event)) continue;
    open.delete(uid);
    holdings.push({ owner, pool, ...holding, until: formatTime(at), end: what });
  }
  return holdings;
}
