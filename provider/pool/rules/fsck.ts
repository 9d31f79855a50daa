import { formatExtent, formatExtents } from "../errors";
import { fits, mergeExtents, total } from "../extents";
import {
  countsKey,
  derivedOf,
  leaseKey,
  leasesOf,
  names,
  poolKey,
  poolOfKey,
  poolsFrom,
  rowsBehind,
} from "../storage/keys";
import { writeWithBuffer } from "../storage/layout";
import { countEvents, countLease, noCounts, occupies, rowsOf, sharingKeyOf } from "../storage/leases";
import type { PoolRecord } from "../storage/records";

import type { Store } from "../storage/store";
import { type PoolOptions, type WriteBuffer, withBuffer } from "../storage/write-buffer";
import type { Finding, Lease, PoolSpec } from "../types";
import { freeRows } from "./pools";

/**
 * Pools and leases are the source data. All other rows are derived from them: free and held extents partition each pool, and every index row
 * has a lease. Derived rows can be rebuilt; a conflict between two leases cannot be repaired without an operator.
 */
export async function fsck(store: Store, options: PoolOptions, repair: boolean): Promise<Finding[]> {
  if (!repair) return store.read((tx) => withBuffer(tx, options, check));
  const { result: findings } = await store.transact((tx) => writeWithBuffer(tx, options, check));
  return findings;
}

/** Reports a finding. Derived rows are repaired in the buffer at once. */
type Report = (pool: string, problem: string, repairable?: boolean) => void;
/** Derived rows that leases need, with their leases. */
type Demanded = Map<string, { text: string; lease?: Lease }>;

async function check(tx: WriteBuffer): Promise<Finding[]> {
  const findings: Finding[] = [];
  const report: Report = (pool, problem, repairable = false) => findings.push({ pool, problem, repairable });
  const demandedNames: Demanded = new Map();
  const pools = await tx.all(poolsFrom(""));
  for (const pool of pools) await checkPool(tx, pool, demandedNames, report);
  await checkStrangers(tx, new Set(pools.map(({ spec }) => spec.name)), demandedNames, report);
  await compare(tx, "", [names], demandedNames, report);
  return findings;
}

/** Rows of pools that do not exist. */
async function checkStrangers(
  tx: WriteBuffer,
  known: Set<string>,
  demandedNames: Demanded,
  report: Report,
): Promise<void> {
  for (const i of rowsBehind().keys()) {
    for (
      let [row] = await tx.rows(rowsBehind()[i]!, 1);
      row;
      [row] = await tx.rows(rowsBehind(poolOfKey(row[0]))[i]!, 1)
    ) {
      const pool = poolOfKey(row[0]);
      if (known.has(pool)) continue;
      known.add(pool);
      const leases = await tx.all(leasesOf(pool));
      const held = leases.find(({ state }) => state !== "ended");
      if (held) report(pool, `the pool is gone, but ${named(held)} has a lease in it`);
      else {
        const [demanded, clashes] = addDemandedRows(new Map(), leases, {}, demandedNames);
        for (const problem of clashes) report(pool, problem);
        await compare(tx, pool, derivedOf(pool), demanded, report);
        tx.delete(countsKey(pool));
      }
    }
  }
}

async function checkPool(tx: WriteBuffer, pool: PoolRecord, demandedNames: Demanded, report: Report): Promise<void> {
  const { spec } = pool;
  const leases = await tx.all(leasesOf(spec.name));
  const holding = leases.filter(occupies);
  const free: Demanded = new Map([...freeRows(spec, leases)].map(([key, text]) => [key, { text }]));
  const [demanded, clashes] = addDemandedRows(free, leases, spec, demandedNames);
  const problems = [...describeOverlaps(spec, holding), ...clashes, ...strays(spec, holding)];
  for (const problem of problems) report(spec.name, problem);
  // If two leases conflict, neither row is right.
  if (problems.length === 0) {
    await compare(tx, spec.name, derivedOf(spec.name), demanded, report);
    await checkCounts(tx, spec.name, leases, report);
  }
  await checkOpener(tx, pool, report);
  for (const lease of leases) await checkOpened(tx, lease, report);
}

const named = ({ owner, leaseId }: Lease): string => `${owner} (${leaseId})`;

function describeOverlaps(spec: PoolSpec, leases: Lease[]): string[] {
  const held = leases.flatMap((lease) => lease.extents.map((extent) => ({ extent, lease })));
  held.sort((a, b) => (a.extent.first < b.extent.first ? -1 : 1));
  return held.slice(1).flatMap(({ extent, lease }, i) => {
    const before = held[i]!;
    const shared = sharingKeyOf(lease) !== undefined && sharingKeyOf(lease) === sharingKeyOf(before.lease);
    if (extent.first > before.extent.last || shared) return [];
    return [`${formatExtent(spec.kind, extent)} is held by ${named(before.lease)} and by ${named(lease)}`];
  });
}

const strays = (spec: PoolSpec, leases: Lease[]): string[] =>
  leases
    .filter((lease) => !fits(spec, lease))
    .map((lease) => `${formatExtents(spec.kind, lease.extents)} of ${named(lease)} is outside the pool`);

/** Adds the rows that are derived from these leases. Returns them, and conflicts between leases. */
function addDemandedRows(
  rows: Demanded,
  leases: Lease[],
  spec: Pick<PoolSpec, "reclaimAfter">,
  demandedNames: Demanded,
): [Demanded, string[]] {
  const clashes: string[] = [];
  for (const lease of leases) {
    const own = leaseKey(lease.pool, lease.uid).at;
    for (const [key, text] of rowsOf(lease, spec)) {
      if (key === own) continue;
      const into = key.startsWith(names.from) ? demandedNames : rows;
      const other = into.get(key);
      if (other?.lease && other.text !== text)
        clashes.push(`${key} belongs to ${named(other.lease)} and to ${named(lease)}`);
      into.set(key, { text, lease });
    }
  }
  return [rows, clashes];
}

async function compare(
  tx: WriteBuffer,
  pool: string,
  spans: (typeof names)[],
  demanded: Demanded,
  report: Report,
): Promise<void> {
  const missing = new Map(demanded);
  for (const span of spans) {
    for (const [key, text] of await tx.allRows(span)) {
      if (missing.get(key)?.text === text) missing.delete(key);
      else if (!missing.has(key)) {
        report(pool, `${key} should not be there`, true);
        tx.set(key, null);
      }
    }
  }
  for (const [key, { text }] of missing) {
    report(pool, `${key} is missing or wrong`, true);
    tx.set(key, text);
  }
}

async function checkCounts(tx: WriteBuffer, pool: string, leases: Lease[], report: Report): Promise<void> {
  const has = (await tx.get(countsKey(pool))) ?? noCounts();
  const live = leases
    .filter((lease) => occupies(lease) && lease.state !== "quarantined")
    .flatMap(({ extents }) => extents);
  const demanded = leases.reduce((counts, lease) => countLease(counts, lease, 1, 0n), noCounts());
  demanded.held = total(mergeExtents(live));
  const text = ({ soonest: _, events: __, ...counts }: typeof has) => countsKey(pool).codec.encode(counts);
  const tooLate = (has.soonest ?? Infinity) > (demanded.soonest ?? Infinity);
  if (text(has) === text(demanded) && !tooLate) return;
  report(pool, `counts are ${text(has)} instead of ${text(demanded)}`, true);
  tx.put(countsKey(pool), { ...demanded, events: await countEvents(tx, pool) });
}

async function checkOpener(tx: WriteBuffer, { spec, opener }: PoolRecord, report: Report): Promise<void> {
  const lease = opener && (await tx.get(leaseKey(opener.pool, opener.uid)));
  if (opener && lease?.childPool !== spec.name) report(spec.name, "the lease that opened it is gone");
}

async function checkOpened(tx: WriteBuffer, lease: Lease, report: Report): Promise<void> {
  if (lease.childPool === undefined) return;
  const opened = await tx.get(poolKey(lease.childPool));
  if (opened?.opener?.uid !== lease.uid)
    report(lease.pool, `${named(lease)} has the child pool ${lease.childPool}, which does not exist`);
}
