import { type Draft, drafted, type Terms } from "./draft";
import { merged, total } from "./extents";
import { countsKey, derivedOf, leaseKey, leasesOf, names, poolKey, poolsFrom } from "./keys";
import { fits } from "./openings";
import { freeRows } from "./pools";
import { type PoolRecord, seatCodec } from "./records";
import { counted, noCounts, rowsOf } from "./rows";
import type { Rule } from "./rule";
import type { Store } from "./store";
import type { Finding, Lease } from "./types";
import { listOf } from "./wording";

/**
 * The truth is the pools and the leases. Everything else must be exactly what follows from them: free and held extents
 * partition each pool, and every index row has its lease. What follows can be written again; contradictions between
 * leases cannot, and are for a person to decide.
 */
export function fsck(store: Store, terms: Terms, repair: boolean): Promise<Finding[]> {
  if (!repair) return store.read((tx) => drafted(tx, terms, check));
  return store.transact("", (tx) =>
    drafted(tx, terms, function* (draft) {
      const findings = yield* check(draft);
      yield* draft.flush();
      return findings;
    }),
  );
}

type Report = (pool: string, problem: string, repairable: boolean) => void;

/** Writes what it would repair into the draft. */
function* check(tx: Draft): Rule<Finding[]> {
  const findings: Finding[] = [];
  const report: Report = (pool, problem, repairable) => findings.push({ pool, problem, repairable });
  const nameRows = new Map<string, string>();
  for (const pool of yield* tx.all(poolsFrom(""))) {
    const leases = yield* tx.all(leasesOf(pool.spec.name));
    const wanted = wantedRows(pool, leases, nameRows, report);
    if (wanted) yield* compare(tx, pool.spec.name, derivedOf(pool.spec.name), wanted, report);
    yield* checkCounts(tx, pool.spec.name, leases, report);
    yield* checkOpener(tx, pool, report);
    for (const lease of leases) yield* checkOpened(tx, lease, report);
  }
  yield* compare(tx, "", [names], nameRows, report);
  return findings;
}

/** undefined when leases contradict each other: then no row is better than another. */
function wantedRows({ spec }: PoolRecord, leases: Lease[], nameRows: Map<string, string>, report: Report) {
  const rows = freeRows(spec, leases);
  let sound = true;
  const put = (into: Map<string, string>, key: string, text: string, lease: Lease) => {
    if ((into.get(key) ?? text) !== text) {
      report(spec.name, `${key} is claimed by ${into.get(key)} and by ${lease.owner} (${lease.leaseId})`, false);
      sound = false;
    }
    into.set(key, text);
  };
  for (const lease of leases) {
    if (!fits(spec, lease))
      report(spec.name, `${listOf(spec.kind, lease.extents)} of ${lease.owner} is outside the pool`, false);
    for (const [key, text] of rowsOf(lease)) {
      if (key !== leaseKey(lease.pool, lease.uid).at)
        put(key.startsWith(names.from) ? nameRows : rows, key, text, lease);
    }
  }
  return overlapping(spec.name, rows, report) || !sound ? undefined : rows;
}

function overlapping(pool: string, rows: Map<string, string>, report: Report): boolean {
  const seats = [...rows].filter(([key]) => key.startsWith("a/")).map(([, text]) => seatCodec.decode(text));
  seats.sort((a, b) => (a.extent.first < b.extent.first ? -1 : 1));
  const clash = seats.find((seat, i) => i > 0 && seat.extent.first <= seats[i - 1]!.extent.last);
  if (clash)
    report(pool, `two leases hold ${clash.extent.first}: ${clash.uid ?? clash.sharedAs} and one before it`, false);
  return clash !== undefined;
}

function* compare(
  tx: Draft,
  pool: string,
  spans: (typeof names)[],
  wanted: Map<string, string>,
  report: Report,
): Rule<void> {
  const missing = new Map(wanted);
  for (const span of spans) {
    for (const [key, text] of yield* tx.rows(span, Number.MAX_SAFE_INTEGER)) {
      if (missing.get(key) === text) {
        missing.delete(key);
        continue;
      }
      if (missing.has(key)) continue;
      report(pool, `${key} should not be there`, true);
      tx.writes.set(key, null);
    }
  }
  for (const [key, text] of missing) {
    report(pool, `${key} is missing or wrong`, true);
    tx.writes.set(key, text);
  }
}

function* checkCounts(tx: Draft, pool: string, leases: Lease[], report: Report): Rule<void> {
  const has = (yield* tx.get(countsKey(pool))) ?? noCounts();
  const held = leases.filter(({ state }) => state !== "resting").flatMap(({ extents }) => extents);
  const wanted = {
    ...leases.reduce((counts, lease) => counted(counts, lease, 1, 0n), noCounts()),
    held: total(merged(held)),
  };
  const text = ({ soonest: _, ...counts }: typeof has) => countsKey(pool).codec.encode(counts);
  const tooLate = (has.soonest ?? Infinity) > (wanted.soonest ?? Infinity);
  if (text(has) === text(wanted) && !tooLate) return;
  report(pool, `counts are ${text(has)} instead of ${text(wanted)}`, true);
  tx.put(countsKey(pool), wanted);
}

function* checkOpener(tx: Draft, { spec, opener }: PoolRecord, report: Report): Rule<void> {
  const lease = opener && (yield* tx.get(leaseKey(opener.pool, opener.uid)));
  if (opener && lease?.opens !== spec.name) report(spec.name, "the lease that opened it is gone", false);
}

function* checkOpened(tx: Draft, { pool, uid, owner, opens }: Lease, report: Report): Rule<void> {
  if (opens === undefined) return;
  const opened = yield* tx.get(poolKey(opens));
  if (opened?.opener?.uid !== uid) report(pool, `${owner} opens ${opens}, which is not there or another's`, false);
}
