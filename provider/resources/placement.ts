import { isIpInRange } from "../addressing/ip";
import { OverlayError } from "../errors";
import { findSpec, listSpecs } from "../ipam/interface";
import { type Ipam, isCommitted, type Lease, type PoolSpec, type Usage } from "../ipam/types";
import { isSameStack } from "../owner";
import { addressPool, networkPool, placementLeaseName } from "../pool-names";
import { type AllocationContext, parseSettings } from "../resource";
import { isCordoned, type RunnerSettings, storedRunner } from "./runner-subnet";

/** Chooses the runner for a reservation that may be on any runner of a network. */
export const PLACEMENTS = ["mostFree", "packed", "spread"] as const;
export type Placement = (typeof PLACEMENTS)[number];

export interface PlacementRequest {
  network: string;
  placement: Placement;
  ip?: string | undefined;
}

/**
 * A reservation keeps its runner, by its state, its lease or an offer; `placement` is for new ones. A runner that the program does not create is
 * left by a preview, and by an up of a program to which it was not shown. A replaced reservation, which comes without its state, also leaves a
 * runner that takes no new ones.
 */
export async function chooseRunner(request: PlacementRequest, context: AllocationContext): Promise<RunnerSettings> {
  const { pool, owner } = context;
  const before = formerRunnerPool(request, context);
  if (await isToBeCreatedAgain(request, context, before)) return rejectReplaced(request, context);
  const closed = context.olds ? undefined : await findClosed(request, context);
  const chosen = await findChosen(placementLeaseName(request.network, owner), context, closed);
  const current = [before, chosen?.pool].filter((name) => !name || !closed?.has(name));
  const mayLeave = mayLeavePool(context, chosen);
  for (const name of current) {
    const spec = name === undefined ? undefined : await findSpec(pool.ipam, name);
    if (
      spec &&
      hasAddress(spec, request) &&
      !(mayLeave && isOnlyOffered(await pool.ipam.find({ name: spec.name }), pool))
    )
      return parseSettings(storedRunner, spec);
  }
  const candidates = await findCandidates(pool.ipam, request);
  const onlyOffered = await findOnlyOffered(request.network, pool);
  const left = new Set([...onlyOffered, ...(closed ?? (await findClosed(request, context)))]);
  const best = pickRunner(
    request.placement,
    candidates.filter(({ spec }) => !left.has(spec.name)),
  );
  if (!best && context.dryRun) await withdrawChosen(placementLeaseName(request.network, owner), context);
  if (!best) throw noRunnerError(request);
  return parseSettings(storedRunner, best.spec);
}

/** The address pools of runners that are cordoned, or that this up deletes. A request by value goes there nevertheless. */
async function findClosed({ network, ip }: PlacementRequest, { pool, owner, declares }: AllocationContext) {
  if (ip !== undefined) return new Set<string>();
  const runners = await pool.ipam.leases(networkPool(network));
  const specs = await listSpecs(pool.ipam, { prefix: addressPool(network, "") });
  const isDeleted = (runner: Lease) =>
    isSameStack(runner.owner, owner) && declares?.(runner.owner) === false && !pool.isInRun(runner);
  const cordoned = specs.filter((spec) => isCordoned(pool.plannedSpec(spec))).map(({ name }) => name);
  return new Set([...cordoned, ...runners.filter(isDeleted).flatMap(({ childPool = [] }) => childPool)]);
}

function formerRunnerPool({ network }: PlacementRequest, { olds }: AllocationContext): string | undefined {
  const before = olds?.runner as RunnerSettings | undefined;
  return before?.networkName === network ? addressPool(network, before.runnerName) : undefined;
}

/** In a preview: whether the network is replaced, and the reservation is new, or Pulumi deletes it first. */
async function isToBeCreatedAgain(
  { network }: PlacementRequest,
  { pool, olds, dryRun }: AllocationContext,
  before: string | undefined,
): Promise<boolean> {
  if (!dryRun || !pool.isReplaced(networkPool(network))) return false;
  const held = before === undefined ? undefined : await pool.ipam.find({ pool: before, owner: String(olds!.owner) });
  return !held || !isCommitted(held) || pool.isEnding(held);
}

/** The runners of the network are created again, too. Which one is chosen then cannot be promised. */
async function rejectReplaced({ network }: PlacementRequest, context: AllocationContext): Promise<never> {
  await withdrawChosen(placementLeaseName(network, context.owner), context);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `Network ${network} is being replaced, and its runners with it.`,
    "A runner is chosen once they exist.",
  );
}

/** A preview that shows no value ends what earlier ones have promised to the owner in the pool that was chosen. */
export async function withdrawChosen(name: string, { pool, owner, program }: AllocationContext): Promise<void> {
  const offer = await pool.ipam.find({ owner, program: program ?? NO_PROGRAM });
  if (offer?.names?.includes(name)) await pool.withdrawOffer({ pool: offer.pool, owner, ...(program && { program }) });
}

/** The program of a caller without the SDK, for a request without values. */
const NO_PROGRAM = "?";

/** The pool that was chosen for an owner. */
export interface Chosen {
  pool: string;
  /** By a lease, or by what this program was shown: an up does not leave it. */
  isFirm: boolean;
}

/**
 * By what the owner holds; by what this program was shown, if its values are still free; by what another program was shown. A lease in a closed
 * pool is that of a resource which Pulumi replaces.
 */
export async function findChosen(
  name: string,
  { pool, owner, program }: AllocationContext,
  closed?: ReadonlySet<string>,
): Promise<Chosen | undefined> {
  const found = await pool.ipam.find({ name });
  const lease = found && closed?.has(found.pool) ? undefined : found;
  if (lease && isCommitted(lease)) return { pool: lease.pool, isFirm: true };
  const shown = await pool.ipam.find({ owner, program: program ?? NO_PROGRAM });
  if (shown?.names?.includes(name) && (await isStillFree(shown, pool))) return { pool: shown.pool, isFirm: true };
  return lease && { pool: lease.pool, isFirm: false };
}

async function isStillFree(
  { owner, pool: name, ranges }: Lease,
  { ipam }: AllocationContext["pool"],
): Promise<boolean> {
  for (const { first } of ranges) {
    const holder = await ipam.find({ pool: name, value: first });
    if (holder && holder.owner !== owner) return false;
  }
  return true;
}

/** A preview of another program or stack has shown the pool of this lease, and this run does not create it. */
export const isOnlyOffered = (lease: Lease | undefined, pool: AllocationContext["pool"]): boolean =>
  lease !== undefined && !isCommitted(lease) && !pool.isInRun(lease);

/** Whether a resource may leave a pool that is only offered: an up keeps what its program was shown. */
export const mayLeavePool = ({ dryRun = false }: AllocationContext, chosen: Chosen | undefined): boolean =>
  dryRun || (chosen !== undefined && !chosen.isFirm);

/** The address pools of runners that are only offered. */
async function findOnlyOffered(network: string, pool: AllocationContext["pool"]): Promise<Set<string | undefined>> {
  const runners = await pool.ipam.leases(networkPool(network));
  return new Set(runners.filter((lease) => isOnlyOffered(lease, pool)).map((lease) => lease.childPool));
}

/** A runner that can have the reservation. */
export interface Candidate {
  /** Of the pool of its addresses. */
  spec: PoolSpec;
  /** Absent where the address is given, because then there is no choice. */
  usage?: Usage | undefined;
}

export async function findCandidates(
  ipam: Pick<Ipam, "pools">,
  request: Pick<PlacementRequest, "network" | "ip">,
): Promise<Candidate[]> {
  const prefix = addressPool(request.network, "");
  const pools = await ipam.pools({ prefix, withUsage: request.ip === undefined });
  return pools.filter(({ spec }) => hasAddress(spec, request));
}

/** The best of them; of equal ones the first. */
export const pickRunner = <C extends Candidate>(placement: Placement, candidates: C[]): C | undefined =>
  candidates.reduce<C | undefined>(
    (best, next) => (best && compareRunners(placement, best.usage, next.usage) <= 0 ? best : next),
    undefined,
  );

const hasAddress = (spec: PoolSpec, { ip }: Pick<PlacementRequest, "ip">): boolean =>
  ip === undefined || parseSettings(storedRunner, spec).subnets.some((cidr) => isIpInRange(ip, cidr));

/** Negative: the first is preferred. Full runners come last, and equal ones stay in the order of their names. */
function compareRunners(placement: Placement, a: Usage | undefined, b: Usage | undefined): number {
  if (!a || !b) return 0;
  const [free, other] = [a.capacity - a.held, b.capacity - b.held];
  if (free <= 0n || other <= 0n) return compareBigints(other, free);
  if (placement === "spread") return countLeases(a) - countLeases(b) || compareBigints(other, free);
  return placement === "packed" ? compareBigints(free, other) : compareBigints(other, free);
}

const compareBigints = (a: bigint, b: bigint): number => (a < b ? -1 : a > b ? 1 : 0);

const countLeases = ({ offered, reserved, used }: Usage): number => offered + reserved + used;

export const noRunnerError = ({ network, ip }: Pick<PlacementRequest, "network" | "ip">): OverlayError =>
  ip === undefined
    ? new OverlayError(
        "POOL_NOT_FOUND",
        `Network ${network} has no runner yet that takes new reservations.`,
        "If its runners are made by the same program, name them in dependsOn. Those that are cordoned, or that the program no longer declares, take none.",
      )
    : new OverlayError(
        "IP_OUTSIDE_POOL",
        `${ip} is in the subnet of no runner of network ${network}.`,
        "Request another address, or omit `ip`.",
      ).about("ip");
