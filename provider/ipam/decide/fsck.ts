import { formatRangeOf, formatRangesOf } from "../errors";
import { fits, freeIn, mergeRanges, subtract, total } from "../ranges";
import type { PoolSpec, ValueRange } from "../types";
import { zonesIn } from "./free-space";
import { listPools } from "./queries";
import { type LeaseRow, type PoolRow, sharingKeyOf } from "./rows";
import type { State } from "./state";

export type Finding = { pool: string; problem: string; repairable: boolean };

/**
 * Leases are the source data. The free space and the counters of a pool follow from them and can be repaired; a conflict between two leases
 * cannot be repaired without an operator.
 */
export function fsck(state: State, repair: boolean): Finding[] {
  const findings: Finding[] = [];
  for (const { name } of listPools(state)) {
    const row = state.pool(name);
    if (row?.spec) findings.push(...checkPool(state, row, row.spec, repair));
  }
  return findings;
}

const ALL = Number.MAX_SAFE_INTEGER;

function checkPool(state: State, row: PoolRow, spec: PoolSpec, repair: boolean): Finding[] {
  const rows = state.page(row.name, -1n, ALL);
  const held = rows.filter(({ endedAt }) => endedAt === undefined);
  const problems = [
    ...describeOverlaps(spec, held),
    ...strays(spec, held),
    ...checkOpener(state, row),
    ...checkOpened(state, held),
  ];
  const found = problems.map((problem): Finding => ({ pool: row.name, problem, repairable: false }));
  if (problems.length > 0) return found;
  return [...checkFree(state, spec, rows, repair), ...checkCounters(state, row, rows, repair)];
}

const named = ({ owner, leaseId }: LeaseRow): string => `${owner} (${leaseId})`;

function describeOverlaps(spec: PoolSpec, leases: LeaseRow[]): string[] {
  const held = leases.flatMap((lease) => lease.ranges.map((range) => ({ range, lease })));
  held.sort((a, b) => (a.range.first < b.range.first ? -1 : 1));
  return held.slice(1).flatMap(({ range, lease }, i) => {
    const before = held[i]!;
    const shared = sharingKeyOf(lease) !== undefined && sharingKeyOf(lease) === sharingKeyOf(before.lease);
    if (range.first > before.range.last || shared) return [];
    return [`${formatRangeOf(spec.kind, range)} is held by ${named(before.lease)} and by ${named(lease)}`];
  });
}

const strays = (spec: PoolSpec, leases: LeaseRow[]): string[] =>
  leases
    .filter((lease) => !fits(spec, lease))
    .map((lease) => `${formatRangesOf(spec.kind, lease.ranges)} of ${named(lease)} is outside the pool`);

function checkOpener(state: State, { opener, name }: PoolRow): string[] {
  const lease = opener === undefined ? undefined : state.lease(opener);
  return opener === undefined || (lease?.childPool === name && lease.endedAt === undefined)
    ? []
    : ["the lease that opened it is gone"];
}

const checkOpened = (state: State, leases: LeaseRow[]): string[] =>
  leases
    .filter(({ uid, childPool }) => childPool !== undefined && state.pool(childPool)?.opener !== uid)
    .map((lease) => `${named(lease)} has the child pool ${lease.childPool}, which does not exist`);

/** Free, held and quarantined values partition each zone of a pool. */
function checkFree(state: State, spec: PoolSpec, leases: LeaseRow[], repair: boolean): Finding[] {
  const taken = leases.flatMap(({ endedAt, ranges, resting = [] }) => (endedAt === undefined ? ranges : resting));
  const findings: Finding[] = [];
  for (const [zone, values] of zonesIn(spec)) {
    const space = state.space(spec.name, zone);
    const [stored, wanted] = [[...space.from(0n)], freeIn(spec, values, taken)];
    const describe = (ranges: ValueRange[], problem: string) => {
      if (ranges.length > 0)
        findings.push({
          pool: spec.name,
          problem: `${formatRangesOf(spec.kind, ranges)} ${problem}`,
          repairable: true,
        });
    };
    describe(subtract(wanted, stored), "is free, but not recorded as free");
    describe(subtract(stored, wanted), "is recorded as free, but is not");
    if (stored.length !== wanted.length && mergeRanges(stored).length === wanted.length)
      findings.push({ pool: spec.name, problem: "adjacent free ranges are not merged", repairable: true });
    if (!repair) continue;
    for (const range of stored) space.drop(spec, range);
    for (const range of wanted) space.add(spec, range);
  }
  return findings;
}

function checkCounters(state: State, row: PoolRow, leases: LeaseRow[], repair: boolean): Finding[] {
  const held = leases.filter(({ endedAt }) => endedAt === undefined);
  const count = (has: LeaseRow["state"]) => held.filter(({ state: each }) => each === has).length;
  const counters = {
    reserved: count("reserved"),
    used: count("used"),
    resting: leases.length - held.length,
    held: total(mergeRanges(held.flatMap(({ ranges }) => ranges))),
  };
  const text = ({ reserved, used, resting, held: values }: typeof counters) =>
    `${reserved} reserved, ${used} used, ${resting} resting, ${values} values`;
  if (text(row) === text(counters)) return [];
  if (repair) state.pools.put({ ...row, ...counters });
  return [{ pool: row.name, problem: `its counters are ${text(row)} instead of ${text(counters)}`, repairable: true }];
}
