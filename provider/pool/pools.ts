import { MAX_IP } from "../addressing/ip";
import { isSameTenant } from "../owner";
import { PORT_SPACES, SPACES } from "../pool-names";
import type { Draft } from "./draft";
import { firstEndIn, leaveEnds } from "./ends";
import { freeIn } from "./extents";
import { trees } from "./free";
import { countsKey, freeFrom, freeKey, leasesOf, poolKey, type Span } from "./keys";
import { eventsIn, noteGone, specOf } from "./ledger";
import { extentCodec, type PoolRecord } from "./records";
import { isLive, noCounts, occupies } from "./rows";
import { isFirm, type Lease, type PoolSpec, type Tenant } from "./types";
import { poolInUse, poolMissing, tenantMismatch } from "./wording";

/** Pools: each is opened by a lease and goes with it; only the address spaces stand by themselves. */

const addressSpace = (name: string): PoolRecord => {
  const kind = name.startsWith(PORT_SPACES) ? "port" : "space";
  return { spec: { name, kind, extents: [{ first: 0n, last: MAX_IP }], allocation: "external" } };
};

/** undefined also when the offer that opened it is over. */
export async function poolOf(tx: Draft, name: string): Promise<PoolRecord | undefined> {
  const pool = await tx.get(poolKey(name));
  if (!pool) return name.startsWith(SPACES) ? addressSpace(name) : undefined;
  return pool.until !== undefined && tx.now > pool.until ? undefined : pool;
}

/** A pool in which something may be asked for. */
export async function poolFor(tx: Draft, name: string, firm: boolean): Promise<PoolRecord> {
  const pool = await poolOf(tx, name);
  if (!pool) throw poolMissing(name);
  if (firm && pool.closing) throw poolMissing(name, "is being deleted");
  if (firm && pool.until !== undefined) throw poolMissing(name, "stands only in a preview so far");
  if (!pool.opener && !(await tx.get(poolKey(name)))) await establish(tx, pool);
  return pool;
}

/** A tenant's pool serves that tenant only. A request without a tenant is refused, too. */
export function mustBeOfTenant(spec: PoolSpec, tenant: Tenant | undefined): void {
  if (spec.tenant && !isSameTenant(spec.tenant, tenant)) throw tenantMismatch(spec, spec.tenant, tenant);
}

export async function establish(tx: Draft, pool: PoolRecord): Promise<void> {
  const { name } = pool.spec;
  tx.put(poolKey(name), pool);
  const soonest = await firstEndIn(tx, name);
  const events = await eventsIn(tx, name);
  tx.put(countsKey(name), { ...noCounts(), events, ...(soonest !== undefined && { soonest }) });
  for (const [key, text] of freeRows(pool.spec, [])) tx.set(key, text);
}

/** The rows of free space that a pool with these leases must have. */
export function freeRows(spec: PoolSpec, leases: Lease[]): Map<string, string> {
  const taken = leases.filter(occupies).flatMap(({ extents }) => extents);
  const rows = trees(spec).flatMap(([tree, zone]) =>
    freeIn(spec, zone, taken).map((free): [string, string] => [
      freeKey(tree, spec.name, free.last).at,
      extentCodec.encode(free),
    ]),
  );
  return new Map(rows);
}

/** So many leases of a pool are looked at for those that are held; more only where there were none. */
const LOOKED_AT = 1000;

/** Firm leases in a pool, longest unseen first; with `promised`, offers too. */
export async function holdersIn(tx: Draft, pool: string, limit: number, promised = false): Promise<Lease[]> {
  let held: Lease[] = [];
  for (let rest: Span<Lease> | undefined = leasesOf(pool); rest && held.length === 0; ) {
    const [leases, next]: [Lease[], Span<Lease> | undefined] = await tx.page(rest, LOOKED_AT);
    held = leases.filter((lease) => (promised || isFirm(lease)) && isLive(lease, tx.now));
    rest = next;
  }
  return held.sort((a, b) => Number(isFirm(b)) - Number(isFirm(a)) || a.lastSeen - b.lastSeen).slice(0, limit);
}

export async function mustBeUnused(tx: Draft, name: string): Promise<void> {
  const holders = await holdersIn(tx, name, 10);
  if (holders.length) throw poolInUse(await specOf(tx, name), holders, "still has leases");
}

/** Removes an unused pool, with the offers and resting leases in it. Its history stays for a while, and so do records of ends. */
export async function vanish(tx: Draft, name: string): Promise<void> {
  const pool = await tx.get(poolKey(name));
  if (!pool) return;
  const { events } = (await tx.get(countsKey(name))) ?? noCounts();
  await mustBeUnused(tx, name);
  const leases = await tx.all(leasesOf(name));
  for (const { opens } of leases) if (opens) await vanish(tx, opens);
  await leaveEnds(tx, pool.spec, leases);
  await dropFree(tx, name);
  tx.delete(countsKey(name));
  tx.delete(poolKey(name));
  if (events) await noteGone(tx, name);
}

export async function dropFree(tx: Draft, name: string): Promise<void> {
  for (const tree of ["f", "g"] as const) {
    for (const free of await tx.all(freeFrom(tree, name, 0n))) tx.delete(freeKey(tree, name, free.last));
  }
}
