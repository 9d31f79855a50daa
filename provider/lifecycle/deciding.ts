import { isOverlayError, OverlayError } from "../errors";
import { type Extent, isFirm, type Lease, type Pool, type Request } from "../pool/types";
import { describePool, SPACES } from "../pool-names";
import type { Definition } from "../resource";
import { changesOf } from "./changes";
import { type Caller, cannotPromise } from "./check";
import { endedThere, stampIn } from "./store-version";
import { equal, jsonText, UNKNOWN, unknownPaths, type Values, valueAt, without } from "./values";
import type { World } from "./world";

/** The values of a resource: what it holds already, or else an offer. */
export async function decide(
  def: Definition,
  world: World,
  caller: Caller,
  olds: Values | undefined,
  inputs: Values,
): Promise<Values> {
  const kept = olds && extentsInPlace(def, olds, inputs);
  if (olds && !kept) await planReplacement(def, world, caller, olds, inputs);
  if (kept && (await mayKeep(def, world, olds, kept))) {
    const computed = def.values(inputs, kept);
    const props = { ...inputs, ...computed, owner: caller.owner };
    const { want, onPortConflict } = def.request(inputs, caller.owner);
    const mayMove = want === undefined && onPortConflict === "anotherAddress";
    if (sameDetails(def, olds, inputs, kept) || (await canChange(def, await world.pool(), olds, props, mayMove))) {
      await warnIfFull(def, world, inputs, kept);
      return computed;
    }
  }
  const pool = await world.pool();
  // What stands in an address space opens its pool by itself; whether the store is the right one, diff can tell.
  if (olds && !def.request(olds, String(olds.owner)).pool.startsWith(SPACES)) await refuseLost(def, pool, olds);
  if (olds && (await cannotPromise(world, caller))) return unknownValues(def);
  const before = olds && isKnown(def, olds) ? def.extentsFromProps(olds) : undefined;
  const lease = await offered(def, world, { ...caller, prefer: caller.prefer ?? before }, inputs);
  if (!lease) return unknownValues(def);
  for (const warning of lease.warnings ?? []) world.warn(warning);
  if (!olds && !caller.isReplacement && isFirm(lease)) world.warn(takesOver(def, lease));
  const computed = def.values(inputs, lease.extents);
  await validate(def, pool, caller.owner, { ...inputs, ...computed }, olds);
  return computed;
}

/** A pool that cannot change in place is deleted first: refused while that cannot be done. */
async function planReplacement(
  def: Definition,
  { pool: openedPool, unreachableOnDelete }: World,
  { owner }: Caller,
  olds: Values,
  inputs: Values,
): Promise<void> {
  if (!def.opens || !isKnown(def, olds)) return;
  const pool = await openedPool();
  const before = String(olds.owner);
  const lease = await pool.find(def.request(olds, before).pool, { owner: before });
  const { name } = def.opens(olds, def.extentsFromProps(olds));
  if (lease?.opens !== name) return; // it has ended, and another owner may have a pool of this name
  await pool.planReplacement({
    pool: name,
    owners: [before, owner],
    changed: changesNotInPlace(def, olds, inputs, def.request(inputs, before).want ?? def.extentsFromProps(olds)),
    leavesForgotten: unreachableOnDelete === "forget",
  });
}

/** `olds`: the properties of the resource that it replaces. */
async function validate(def: Definition, pool: Pool, owner: string, props: Values, olds?: Values): Promise<void> {
  const replacedPool = olds && def.opens?.(olds, def.extentsFromProps(olds)).name;
  await def.validate?.(props, { pool, owner, replacedPool });
}

/**
 * Its time may have been over, or somebody may have taken it away. What stands on machines is kept as long as nobody else has
 * the value, and where there is no store to ask.
 */
async function mayKeep(def: Definition, world: World, olds: Values, kept: Extent[]): Promise<boolean> {
  try {
    const pool = await world.pool();
    const owner = String(olds.owner);
    const { pool: name } = def.request(olds, owner);
    const lease = await pool.find(name, { owner });
    if (lease && isFirm(lease)) {
      await pool.stays(lease);
      if (lease.deletingSince !== undefined) world.warn(unfinishedDelete(def, lease));
      return true;
    }
    if (def.createBeforeDelete || !equal(kept, def.extentsFromProps(olds))) return false;
    const holder = await pool.find(name, { value: kept[0]!.first });
    return !holder || !isFirm(holder) || holder.owner === owner;
  } catch (error) {
    if (isOverlayError(error, "STORE_UNAVAILABLE") && !def.createBeforeDelete) return true;
    throw error;
  }
}

/**
 * The lease that the owner holds, or an offer. undefined: a preview cannot promise anything, because the pool is about to be
 * replaced, or resized so that what it has now does not serve.
 */
async function offered(def: Definition, world: World, caller: Caller, inputs: Values): Promise<Lease | undefined> {
  const { owner, formerly: formerOwner, dryRun, prefer, program, movesAway } = caller;
  const pool = await world.pool();
  const request = def.request(inputs, owner);
  const change = dryRun ? def.sourcePool?.changeInRun?.(inputs, await pool.spec(request.pool)) : undefined;
  const unshown = (why: string): undefined => {
    world.warn(`Values of new resources in ${describePool(request.pool)} are not shown in this preview: ${why}.`);
  };
  if (change?.replaced) return unshown("it is being replaced");
  const data = def.leaseData && { data: def.leaseData(inputs) };
  const whole = { ...request, ...opening(def, inputs), ...data, owner, type: def.type };
  const options = { inUp: !dryRun, ...(movesAway && { movesAway }) };
  try {
    const lease = await pool.offer(
      { ...whole, ...(formerOwner && { formerOwner }), ...(prefer && { prefer }), ...(program && { program }) },
      options,
    );
    return change && !change.keeps(lease.extents) ? unshown("it is being resized") : lease;
  } catch (error) {
    if (change && isOverlayError(error, "POOL_EXHAUSTED", "IP_OUTSIDE_POOL", "POOL_QUOTA"))
      return unshown("it is being resized");
    throw error;
  }
}

const unfinishedDelete = ({ type }: Definition, { owner, deletingSince }: Lease): string =>
  `${type} ${owner.split("::").at(-1)}: a delete that began at ${new Date(deletingSince!).toISOString()} was not finished. Up puts back what is missing.`;

/** Its owner holds it already: a create that did not come to its end, or another stack with the same name. */
const takesOver = ({ type }: Definition, { owner, createdAt, by }: Lease): string =>
  `${type} ${owner.split("::").at(-1)} is already held by this stack, since ${new Date(createdAt).toISOString()}${by ? ` (${by})` : ""}: this up takes it over. If a stack of the same name on another backend holds it, set overlay:scope there or here.`;

/** The pool that a lease of it will open, whatever extents it gets. */
const opening = (def: Definition, inputs: Values): Pick<Request, "opens"> =>
  def.opens ? { opens: (extents) => def.opens!(inputs, extents) } : {};

const sameDetails = (def: Definition, olds: Values, inputs: Values, extents: Extent[]): boolean =>
  jsonText(detailsOf(def, olds, def.extentsFromProps(olds), olds)) === jsonText(detailsOf(def, inputs, extents, olds));

const detailsOf = (def: Definition, inputs: Values, extents: Extent[], { owner }: Values) => {
  const known = without(inputs, unknownPaths(inputs));
  const { names, tenant, sharingKey, ports, takes } = def.request(known, String(owner));
  return { names, tenant, sharingKey, ports, takes, opens: def.opens?.(known, extents), notes: def.leaseData?.(known) };
};

/**
 * A change in place can meet others, too: another name, a hub that another network has, leases that would be cut off. Throws
 * the refusal; false: a port is taken, and the resource may move to another address (`mayMove`).
 */
async function canChange(def: Definition, pool: Pool, olds: Values, props: Values, mayMove: boolean): Promise<boolean> {
  const owner = String(olds.owner);
  const lease = await pool.find(def.request(olds, owner).pool, { owner });
  try {
    if (lease && lease.state !== "offered")
      await pool.amend(lease.pool, lease.leaseId, changesOf(def, olds, props, lease), { dryRun: true });
  } catch (error) {
    if (mayMove && isOverlayError(error, "PORT_CONFLICT")) return false;
    throw error;
  }
  await validate(def, pool, owner, props);
  return true;
}

/** Also a preview that asks for nothing says so. */
async function warnIfFull(def: Definition, world: World, inputs: Values, extents: Extent[]): Promise<void> {
  const spec = def.opens?.(inputs, extents);
  if (spec?.warnAtPercent === undefined) return;
  try {
    const usage = await (await world.pool()).usage(spec.name);
    if (usage?.warning) world.warn(usage.warning);
  } catch (error) {
    if (!isOverlayError(error, "STORE_UNAVAILABLE")) throw error;
  }
}

const isKnown = (def: Definition, olds: Values): boolean =>
  !unknownPaths(olds).some((path) => path[0]! in def.computed.shape);

/** What it will have without a new life: what it holds, or the other bounds of a block that its inputs ask for. */
function extentsInPlace(def: Definition, olds: Values, inputs: Values): Extent[] | undefined {
  if (!isKnown(def, olds)) return undefined;
  const extents = def.request(inputs, String(olds.owner)).want ?? def.extentsFromProps(olds);
  return changesNotInPlace(def, olds, inputs, extents).length === 0 ? extents : undefined;
}

/** Properties that are other than before, and cannot change in place. */
function changesNotInPlace(def: Definition, olds: Values, inputs: Values, extents: Extent[]): string[] {
  const candidate = { ...inputs, ...def.values(inputs, extents) };
  return def.replaceOn.filter((path) => !equal(valueAt(candidate, path), valueAt(olds, path)));
}

/** A lost pool is never an empty pool: what stands in Pulumi's state but not in the store stops every allocation. */
export async function refuseLost(def: Definition, pool: Pool, olds: Values): Promise<void> {
  const { pool: from } = def.request(olds, String(olds.owner));
  if (await endedThere(pool, from, olds)) return;
  if (stampIn(olds)) throw notRecovered(def, olds, from);
  // An address space is always there; what stands in it has opened a pool.
  const name = from.startsWith(SPACES) ? def.opens!(olds, def.extentsFromProps(olds)).name : from;
  if (await pool.spec(name)) return;
  throw new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but the store does not have ${describePool(name)}. Nothing is given out.`,
    "Point overlay:store at the store that this stack was deployed with, or rebuild it with `overlayctl recover`.",
  );
}

const notRecovered = (def: Definition, olds: Values, pool: string): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but not in ${describePool(pool)} of the store, which was rebuilt since. Nothing is given out.`,
    "Run `overlayctl recover --stack-export FILE` with an export of this stack.",
  );

export const unknownValues = (def: Definition): Values =>
  Object.fromEntries(
    Object.entries(def.computed.shape).flatMap(([key, schema]) =>
      schema.safeParse(undefined).success ? [] : [[key, UNKNOWN]],
    ),
  );
