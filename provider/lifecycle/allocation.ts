import { isOverlayError } from "../errors";
import { toTimeText } from "../format-time";
import { findSpec, findUsage } from "../ipam/interface";
import type { RunPlan } from "../ipam/run-plan";
import { isCommitted, type Lease, type ValueRange } from "../ipam/types";
import { describePool, SPACES } from "../pool-names";
import type { Definition } from "../resource";
import type { Caller, Dependencies } from "./dependencies";
import { buildChildPool, buildRequest, diffLease, rejectLostStore } from "./lease";
import { isEqual, UNKNOWN, unknownPaths, type Values, valueAt, withoutPaths } from "./values";

/** The computed values of a resource: from the lease that it has, or else from an offer. */
export async function allocateOrKeep(
  def: Definition,
  deps: Dependencies,
  caller: Caller,
  olds: Values | undefined,
  inputs: Values,
): Promise<Values> {
  const kept = olds && rangesInPlace(def, olds, inputs);
  if (olds && !kept) await planReplacement(def, deps, caller, olds, inputs);
  const keepable = kept && (await findKeepable(def, deps, olds, kept));
  if (kept && keepable) {
    const computed = def.values(inputs, kept);
    const props = { ...inputs, ...computed, owner: caller.owner };
    const { values, onPortConflict } = def.request(inputs, caller.owner);
    const mayMove = values === undefined && onPortConflict === "anotherAddress";
    if (hasSameDetails(def, olds, inputs, kept) || (await canChange(def, await deps.pool(), olds, props, mayMove))) {
      await keepLease(def, deps, props, keepable.lease);
      await warnIfFull(def, deps, inputs, kept);
      return computed;
    }
  }
  const pool = await deps.pool();
  // A resource in an address space creates its own pool; diff checks that the store is the right one.
  if (olds && !def.request(olds, String(olds.owner)).pool.startsWith(SPACES)) await rejectLostStore(def, pool, olds);
  if (olds && (await cannotOffer(deps, caller))) return unknownValues(def);
  const before = olds && hasKnownValues(def, olds) ? def.rangesFromProps(olds) : undefined;
  const lease = await offerLease(def, deps, { ...caller, preferred: caller.preferred ?? before }, inputs);
  if (!lease) return unknownValues(def);
  for (const warning of lease.warnings ?? []) deps.warn(warning);
  if (!olds && !caller.isReplacement && isCommitted(lease)) deps.warn(takeoverWarning(def, lease));
  const computed = def.values(inputs, lease.ranges);
  const props = { ...inputs, ...computed };
  const childPool = buildChildPool(def, props);
  if (childPool) pool.planSpec(childPool);
  await def.validateCoHolders?.(props, { pool, owner: caller.owner, isHeld: isCommitted(lease) });
  await validate(def, pool, caller.owner, props, olds);
  return computed;
}

/** A pool that cannot change in place is deleted first: rejects if it cannot be deleted. */
async function planReplacement(
  def: Definition,
  { pool: openPool }: Dependencies,
  { owner }: Caller,
  olds: Values,
  inputs: Values,
): Promise<void> {
  if (!def.childPool || !hasKnownValues(def, olds)) return;
  const pool = await openPool();
  const before = String(olds.owner);
  const lease = await pool.ipam.find({ pool: def.request(olds, before).pool, owner: before });
  const { name } = def.childPool(olds, def.rangesFromProps(olds));
  if (lease?.childPool !== name) return; // it has ended, and another owner may have a pool of this name
  const { values = def.rangesFromProps(olds) } = def.request(inputs, before);
  const changed = changesNotInPlace(def, olds, inputs, values);
  await pool.planReplacement({ pool: name, owners: [before, owner], changed });
}

/** `olds`: the properties of the resource that it replaces. */
async function validate(def: Definition, pool: RunPlan, owner: string, props: Values, olds?: Values): Promise<void> {
  const replacedPool = olds && def.childPool?.(olds, def.rangesFromProps(olds)).name;
  await def.validate?.(props, { pool, owner, replacedPool });
}

/**
 * Whether the resource can keep its values, and with which lease. Its lease may have expired or been taken over. Values that are configured
 * on hosts are kept as long as no other owner holds them, and while the store does not answer.
 */
async function findKeepable(
  def: Definition,
  deps: Dependencies,
  olds: Values,
  kept: ValueRange[],
): Promise<{ lease?: Lease } | undefined> {
  try {
    const pool = await deps.pool();
    const owner = String(olds.owner);
    const { pool: name } = def.request(olds, owner);
    const lease = await pool.ipam.find({ pool: name, owner });
    if (lease && isCommitted(lease)) {
      return pool.isEnding(lease) ? undefined : { lease }; // Renamed: Pulumi deletes it with its pool, under its old name.
    }
    if (def.createBeforeDelete || !isEqual(kept, def.rangesFromProps(olds))) return undefined;
    const holder = await pool.ipam.find({ pool: name, value: kept[0]!.first });
    return !holder || !isCommitted(holder) || holder.owner === owner ? {} : undefined;
  } catch (error) {
    if (isOverlayError(error, "STORE_UNAVAILABLE") && !def.createBeforeDelete) return {};
    throw error;
  }
}

/** Tells the run that the resource keeps its lease, and compares it with those that share its values. */
async function keepLease(def: Definition, deps: Dependencies, props: Values, lease: Lease | undefined): Promise<void> {
  if (!lease) return;
  const pool = await deps.pool();
  const { ports } = buildRequest(def, props);
  const data = def.leaseData?.(props);
  await pool.markKept(lease, { ...(data && { data }), ...(ports && { ports }) });
  if (lease.deletingSince !== undefined) deps.warn(unfinishedDeleteWarning(def, lease));
  await def.validateCoHolders?.(props, { pool, owner: lease.owner, isHeld: true });
}

/** The lease that the owner holds, or an offer. undefined: a preview can show no values, because the run replaces the pool. */
async function offerLease(
  def: Definition,
  deps: Dependencies,
  caller: Caller,
  inputs: Values,
): Promise<Lease | undefined> {
  const { owner, formerOwner, dryRun, preferred, program, declared, movesAway } = caller;
  const pool = await deps.pool();
  const request = def.request(inputs, owner);
  const full = {
    ...request,
    ...(def.childPool && { childPool: (ranges: ValueRange[]) => def.childPool!(inputs, ranges) }),
    ...(def.leaseData && { data: def.leaseData(inputs) }),
    owner,
    type: def.type,
    ...(formerOwner && { formerOwner }),
    ...(preferred && { preferred }),
    ...(program && { program }),
    ...(declared && !request.values && { declared }),
  };
  if (dryRun && (await isReplacedInRun(def, pool, request.pool, inputs))) {
    deps.warn(
      `Values of new resources in ${describePool(request.pool)} are not shown in this preview: it is being replaced.`,
    );
    await pool.withdrawOffer(full);
    return undefined;
  }
  const general = { pool: request.pool, type: def.type, ...(program && { program }), ...(declared && { declared }) };
  for (const each of caller.earlier ?? []) await pool.offerAhead({ ...general, ...each }, !dryRun);
  return pool.offer(full, { inUp: !dryRun, ...(movesAway && { movesAway }) });
}

async function isReplacedInRun(def: Definition, pool: RunPlan, name: string, inputs: Values): Promise<boolean> {
  if (pool.isReplaced(name)) return true;
  const stored = def.sourcePool?.isReplacedInRun && (await findSpec(pool.ipam, name));
  return stored ? def.sourcePool!.isReplacedInRun!(inputs, stored) : false;
}

const unfinishedDeleteWarning = ({ type }: Definition, { owner, deletingSince }: Lease): string =>
  `${type} ${owner.split("::").at(-1)}: a delete that began at ${toTimeText(deletingSince!)} was not finished. Up restores what is missing.`;

/** The owner already has a committed lease, and Pulumi passes no state: a forced replacement, a create that failed, another stack of the same name. */
const takeoverWarning = ({ type }: Definition, { owner, createdAt, by }: Lease): string =>
  `${type} ${owner.split("::").at(-1)} has a lease in the store since ${toTimeText(createdAt)}${by ? ` (${by})` : ""}, and gets it again. That is right with --replace, or if an earlier up did not finish. Else a stack of the same name on another backend holds it: set overlay:scope there or here.`;

const hasSameDetails = (def: Definition, olds: Values, inputs: Values, ranges: ValueRange[]): boolean =>
  isEqual(leaseDetails(def, olds, def.rangesFromProps(olds), olds), leaseDetails(def, inputs, ranges, olds));

const leaseDetails = (def: Definition, inputs: Values, ranges: ValueRange[], { owner }: Values) => {
  const known = withoutPaths(inputs, unknownPaths(inputs));
  const { names, tenant, sharingKey, ports, evictSameTenant } = def.request(known, String(owner));
  return {
    names,
    tenant,
    sharingKey,
    ports,
    evictSameTenant,
    childPool: def.childPool?.(known, ranges),
    data: def.leaseData?.(known),
  };
};

/**
 * A change in place can conflict with others, too: a name, a hub of another network, leases outside the new bounds. Throws the
 * conflict; false: a port is taken, and the resource may move to another address (`mayMove`).
 */
async function canChange(
  def: Definition,
  pool: RunPlan,
  olds: Values,
  props: Values,
  mayMove: boolean,
): Promise<boolean> {
  const owner = String(olds.owner);
  const lease = await pool.ipam.find({ pool: def.request(olds, owner).pool, owner });
  try {
    if (lease && lease.state !== "offered")
      await pool.change(lease.pool, lease.leaseId, diffLease(def, olds, props, lease), { dryRun: true });
  } catch (error) {
    if (mayMove && isOverlayError(error, "PORT_CONFLICT")) return false;
    throw error;
  }
  await validate(def, pool, owner, props);
  const childPool = buildChildPool(def, props);
  if (childPool) pool.planSpec(childPool);
  return true;
}

/** A preview that changes nothing also warns of a pool that is nearly full. */
async function warnIfFull(def: Definition, deps: Dependencies, inputs: Values, ranges: ValueRange[]): Promise<void> {
  const spec = def.childPool?.(inputs, ranges);
  if (spec?.warnAtPercent === undefined) return;
  try {
    const usage = await findUsage((await deps.pool()).ipam, spec.name);
    if (usage?.warning) deps.warn(usage.warning);
  } catch (error) {
    if (!isOverlayError(error, "STORE_UNAVAILABLE")) throw error;
  }
}

const hasKnownValues = (def: Definition, olds: Values): boolean =>
  !unknownPaths(olds).some((path) => path[0]! in def.computed.shape);

/** The ranges after an update: those it has, or the new bounds of a block that its inputs ask for. undefined: it is replaced. */
function rangesInPlace(def: Definition, olds: Values, inputs: Values): ValueRange[] | undefined {
  if (!hasKnownValues(def, olds)) return undefined;
  const ranges = def.request(inputs, String(olds.owner)).values ?? def.rangesFromProps(olds);
  return changesNotInPlace(def, olds, inputs, ranges).length === 0 ? ranges : undefined;
}

/** Changed properties that need a replacement. */
function changesNotInPlace(def: Definition, olds: Values, inputs: Values, ranges: ValueRange[]): string[] {
  const candidate = { ...inputs, ...def.values(inputs, ranges) };
  return def.replaceOn.filter((path) => !isEqual(valueAt(candidate, path), valueAt(olds, path)));
}

export const unknownValues = (def: Definition): Values =>
  Object.fromEntries(
    Object.entries(def.computed.shape).flatMap(([key, schema]) =>
      schema.safeParse(undefined).success ? [] : [[key, UNKNOWN]],
    ),
  );

/** Whether this preview may not write offers: then the values of a new resource are not shown. */
export async function cannotOffer(deps: Dependencies, { dryRun }: Caller): Promise<boolean> {
  const reason = dryRun ? (await (await deps.pool()).describeStore()).whyNoOffers : undefined;
  if (reason) deps.warn(`Values of new resources are not shown in this preview: ${reason}.`);
  return reason !== undefined;
}
