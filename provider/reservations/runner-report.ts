import type { Heartbeat, RunnerReport } from "../answers";
import { type Code, isOverlayError, OverlayError } from "../errors";
import { formatTime } from "../format-time";
import { findSpec } from "../ipam/interface";
import type { Ipam, Lease, PoolSpec } from "../ipam/types";
import { describePool } from "../pool-names";
import { userLeaseName } from "../resources/runner-subnet";
import { type AddressPool, addressPoolOf, hasInRange } from "./address-pools";
import { type Context, isVisible } from "./context";
import type { ReportInput, RunnerInput } from "./inputs";
import { describeLease, formatValue, ipOf, isImported, isOfVm } from "./leases";
import { releaseOrReturn } from "./release";
import { findRunnerNamed, type Runner } from "./runners";
import { findLeases } from "./search";
import { useValue } from "./use";

/** Records that a runner is alive, so that its id is not reclaimed as inactive. */
export async function heartbeatRunner(context: Context, input: RunnerInput): Promise<Heartbeat> {
  const runner = await findRunnerNamed(context, input);
  return describeHeartbeat(runner, await touchRunner(context.pool, runner));
}

/** Returns the time of the store. */
async function touchRunner(pool: Ipam, { lease }: Runner): Promise<number> {
  await pool.touch(lease.pool, lease.leaseId);
  return (await pool.find({ pool: lease.pool, leaseId: lease.leaseId }))?.lastSeen ?? lease.lastSeen;
}

const describeHeartbeat = ({ network, name, lease }: Runner, lastSeen: number): Heartbeat => ({
  network,
  runner: name,
  runnerId: Number(lease.ranges[0]!.first),
  lastSeen: formatTime(lastSeen),
});

interface Workload {
  name: string;
  ip: bigint;
  ip6?: bigint | undefined;
  vm: boolean;
}

/** Marks what runs as used, and lists what has gone. Only a complete report with `free` releases anything. */
export async function reportRunner(context: Context, input: ReportInput): Promise<RunnerReport> {
  const { pool } = context;
  const runner = await findRunnerNamed(context, input);
  const place = addressPoolOf(runner);
  const now = await touchRunner(pool, runner);
  const workloads = [
    ...(input.containers ?? []).map((each) => ({ ...each, vm: false })),
    ...(input.vms ?? []).map((each) => ({ ...each, vm: true })),
  ];
  const leases = await findLeases(context, { network: runner.network, runner: runner.name });
  const reported = new Set(workloads.flatMap(({ ip, ip6 }) => (ip6 === undefined ? [ip] : [ip, ip6])));
  const gone = input.complete ? leases.filter((lease) => isGone(lease, reported, input, now)) : [];
  const released: Lease[] = [];
  if (input.free) for (const lease of gone) if (await releaseOrReturn(pool, lease)) released.push(lease);
  const report: RunnerReport = {
    ...describeHeartbeat(runner, now),
    ...{ used: [], unchanged: 0, unmanaged: [], conflicts: [] },
    gone: gone.map(describeLease),
    released: released.map(describeLease),
  };
  await recordWorkloads(context, place, workloads, leases, report);
  return report;
}

/** Whether nothing that was reported has the address. Imported addresses may be used by any program, and new ones may be newer than the report. */
function isGone(
  lease: Lease,
  reported: Set<bigint>,
  { containers, vms, olderThan }: ReportInput,
  now: number,
): boolean {
  const isListed = (isOfVm(lease) ? vms : containers) !== undefined;
  const isOld = lease.updatedAt <= now - olderThan * 1000;
  return (
    lease.state === "used" &&
    lease.usedBy !== undefined &&
    !isImported(lease) &&
    isListed &&
    isOld &&
    !lease.ranges.some(({ first }) => reported.has(first))
  );
}

const hasValue = ({ ranges }: Lease, value: bigint): boolean =>
  ranges.some(({ first, last }) => first <= value && value <= last);

/** Calls that wait at the same time share transactions. */
const AT_ONCE = 64;

async function recordWorkloads(
  context: Context,
  place: AddressPool,
  workloads: Workload[],
  leases: Lease[],
  report: RunnerReport,
): Promise<void> {
  const spec = (await findSpec(context.pool, place.pool)) ?? place.spec;
  const byValue = new Map(leases.flatMap((lease) => lease.ranges.map(({ first }) => [first, lease] as const)));
  const isKnown = ({ name, ip, ip6, vm }: Workload) => {
    const lease = byValue.get(ip);
    return lease?.usedBy === name && (!vm || isOfVm(lease)) && (ip6 === undefined || hasValue(lease, ip6));
  };
  const others = workloads.filter((workload) => !isKnown(workload));
  report.unchanged = workloads.length - others.length;
  for (let at = 0; at < others.length; at += AT_ONCE)
    await Promise.all(
      others.slice(at, at + AT_ONCE).map((workload) => recordWorkload(context, place, spec, workload, report)),
    );
}

async function recordWorkload(
  context: Context,
  place: AddressPool,
  spec: PoolSpec,
  workload: Workload,
  report: RunnerReport,
): Promise<void> {
  const { name, ip, ip6, vm } = workload;
  if (spec.reserved?.some(({ first, last }) => first <= ip && ip <= last)) {
    report.unmanaged.push({ name, ip: formatValue(ip) });
    return;
  }
  try {
    if (!hasInRange(spec, ip)) throw outsideError(spec, ip);
    const lease = await useValue(context, place, ip, { ip, ip6, by: name, vm });
    if (ip6 !== undefined && !hasValue(lease, ip6)) throw otherAddressError(name, lease, ip6);
    report.used.push(describeLease(lease));
  } catch (error) {
    if (!isOverlayError(error, ...CONFLICTS)) throw error;
    const holder = await findHolder(context, place, workload, error.code);
    report.conflicts.push({
      ...{ name, ip: formatValue(ip), code: error.code, reason: error.what },
      ...(holder !== undefined && { holder }),
    });
  }
}

/** Errors that contradict the report; others, such as a store that does not answer, fail it. */
const CONFLICTS: Code[] = ["IP_IN_USE", "IP_OUTSIDE_POOL", "IP_RESERVED", "RESERVATION_EXISTS", "TENANT_MISMATCH"];

/** The holder of the address, or the other lease of the container in this network. */
async function findHolder(
  context: Context,
  { pool: name, runner }: AddressPool,
  { name: by, ip }: Workload,
  code: Code,
): Promise<string | undefined> {
  const lease =
    code === "RESERVATION_EXISTS"
      ? await context.pool.find({ name: userLeaseName(runner!.network, by) })
      : await context.pool.find({ pool: name, value: ip });
  if (!lease || !isVisible(lease, context)) return undefined;
  return lease.usedBy ?? lease.owner;
}

const outsideError = (spec: PoolSpec, ip: bigint): OverlayError =>
  new OverlayError(
    "IP_OUTSIDE_POOL",
    `${formatValue(ip)} is not an address for workloads of ${describePool(spec.name)}.`,
    "Give the container an address of its runner.",
  );

const otherAddressError = (name: string, lease: Lease, ip6: bigint): OverlayError =>
  new OverlayError(
    "RESERVATION_EXISTS",
    `${name} holds ${ipOf(lease)} without ${formatValue(ip6)}.`,
    "Release its lease, and report again.",
  );
