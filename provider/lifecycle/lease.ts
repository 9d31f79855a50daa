import { randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../errors";
import { findSpec } from "../ipam/interface";
import type { RunPlan } from "../ipam/run-plan";
import {
  type Changes,
  type Condition,
  dataEntries,
  type Json,
  type Lease,
  PLAIN_DETAILS,
  type Request,
  type StoreIdentity,
} from "../ipam/types";
import { describePool, SPACES } from "../pool-names";
import type { Definition } from "../resource";
import { isEqual, pickInputs, unknownPaths, type Values, withoutPaths } from "./values";

/** The lease of a resource: the request for it, its changes, the run that may change it, and the store that has it. */

/** The request for its lease, from the inputs that are known. */
export function buildRequest(def: Definition, inputs: Values): Request {
  const owner = String(inputs.owner);
  return { ...def.request(withoutPaths(inputs, unknownPaths(inputs)), owner), owner, type: def.type };
}

/** The child pool of its lease. */
export const buildChildPool = (def: Definition, inputs: Values) =>
  def.childPool?.(withoutPaths(inputs, unknownPaths(inputs)), def.rangesFromProps(inputs));

/** Stored with the lease. `clean`: hosts that have no items of the resource, see target-hosts.ts. `tunnel`, `directRoutes`: see tunnel-end.ts, mesh-peers.ts; they stay. */
export const buildLeaseData = (
  def: Definition,
  inputs: Values,
  run: string,
  { tunnel, directRoutes }: LeaseData = {},
  clean: string[] = [],
) => ({
  run,
  ...(tunnel !== undefined && { tunnel }),
  ...(directRoutes !== undefined && { directRoutes }),
  ...(def.nameInput && { name: String(inputs[def.nameInput]) }),
  ...def.leaseData?.(inputs),
  ...(clean.length > 0 && { clean }),
});

interface LeaseData {
  run?: Json;
  name?: Json;
  clean?: Json;
  tunnel?: Json;
  directRoutes?: Json;
}

export const readLeaseData = (lease: Lease): LeaseData => dataEntries(lease);

export const findLeaseInState = (def: Definition, pool: RunPlan, props: Values): Promise<Lease | undefined> =>
  pool.ipam.find({ pool: buildRequest(def, pickInputs(def, props)).pool, leaseId: String(props.leaseId) });

/** The lease as the state has it, whether or not the pool still has it. */
export async function leaseInState(def: Definition, pool: RunPlan, props: Values): Promise<Omit<OwnedLease, "run">> {
  const { pool: name, owner } = buildRequest(def, pickInputs(def, props));
  const [leaseId, uid] = [String(props.leaseId), String(props.uid)];
  return { pool: name, leaseId, uid, owner, store: await readStoreId(pool) };
}

/** Changes of the lease that follow from a change of inputs. Changes by others are kept: the user, the expiry. */
export function diffLease(def: Definition, olds: Values, news: Values, lease: Lease): Changes {
  const [before, after] = [buildRequest(def, olds), buildRequest(def, news)];
  const childPool = buildChildPool(def, news);
  const [rangesBefore, ranges] = [def.rangesFromProps(olds), def.rangesFromProps(news)];
  // Names that are not from the resource, such as that of the container that uses the address.
  const otherNames = lease.names?.filter((name) => !before.names?.includes(name)) ?? [];
  return {
    owner: after.owner,
    names: [...new Set([...otherNames, ...(after.names ?? [])])],
    ...Object.fromEntries(PLAIN_DETAILS.map((name) => [name, after[name] ?? null])),
    ...(childPool && { childPool }),
    tenant: after.tenant ?? null,
    ...(!isEqual(rangesBefore, ranges) && { ranges }),
    ...((before.sharingKey !== undefined || after.sharingKey !== undefined) && {
      sharingKey: after.sharingKey ?? null,
    }),
    ...(after.ports && { ports: after.ports, evictSameTenant: after.evictSameTenant ?? false }),
    ...diffUse(before, after),
  };
}

function diffUse(before: Request, after: Request): Changes {
  if (before.usedBy !== after.usedBy) {
    return after.usedBy === undefined
      ? { state: "reserved", ttl: after.ttl ?? null }
      : { state: "used", usedBy: after.usedBy };
  }
  return before.ttl === after.ttl ? {} : { ttl: after.ttl ?? null };
}

// Fencing: a run that was overtaken by a later one must change neither the lease nor the hosts.

/** A lease, and the run that works with it. */
export interface OwnedLease extends Pick<Lease, "pool" | "leaseId" | "uid" | "owner"> {
  /** Stored with the lease, and replaced by each create, update and delete: if it differs, a later run has taken over. */
  run: string;
  /** Id of its store. */
  store: string;
}

/** A lease that this run has taken over, and the stamp of its store for the state. */
export type TakenLease = OwnedLease & Lease & { stamp: Values };

/**
 * Changes the lease and takes it over: an earlier run is fenced off. Rejects if another run has taken it over since it was read,
 * because its list of clean hosts may be outdated.
 */
export async function takeOverLease(
  def: Definition,
  pool: RunPlan,
  before: Lease,
  inputs: Values,
  changes: Changes,
  clean: string[] = [],
): Promise<TakenLease> {
  const run = randomUUID();
  const data = buildLeaseData(def, inputs, run, readLeaseData(before), clean);
  const lease = await changeOwned(pool, { ...before, run: readLeaseData(before).run }, { ...changes, data });
  const store = await readStoreId(pool);
  return { ...lease, run, store, stamp: makeStamp(store, lease) };
}

/** Called before each write to a host, because a provider process can outlive its run. */
export async function fence(pool: RunPlan, { pool: name, leaseId, run }: OwnedLease): Promise<void> {
  const lease = await pool.ipam.find({ pool: name, leaseId });
  if (lease && readLeaseData(lease).run === run) return;
  throw overtakenError(name, leaseId);
}

/** Whether no lease of this uid is left in the same pool. */
export const isLeaseGone = async (
  pool: RunPlan,
  { pool: name }: Pick<OwnedLease, "pool">,
  uid: string,
): Promise<boolean> => (await pool.ipam.find({ pool: name, uid })) === undefined;

type OwnedLeaseId = Pick<OwnedLease, "pool" | "leaseId"> & { run: Json | undefined };

/** Rejects with `LEASE_FENCED` if a later run has taken the lease over. */
export const changeOwned = (pool: RunPlan, owned: OwnedLeaseId, changes: Changes): Promise<Lease> =>
  pool.change(owned.pool, owned.leaseId, changes, ifOwned(owned)).catch(throwFenced(owned));

export const ifOwned = ({ run }: Pick<OwnedLeaseId, "run">): { onlyIf: Condition } => ({ onlyIf: { data: { run } } });

export const throwFenced =
  ({ pool, leaseId }: Pick<OwnedLeaseId, "pool" | "leaseId">) =>
  (error: unknown): never => {
    throw isOverlayError(error, "LEASE_CHANGED") ? overtakenError(pool, leaseId) : error;
  };

export const overtakenError = (pool: string, leaseId: string): OverlayError =>
  new OverlayError(
    "LEASE_FENCED",
    `Lease ${leaseId} in ${describePool(pool)} does not belong to this run any more: it has expired, or a later run has taken it over.`,
    "Nothing was changed. To continue, run up again.",
  );

/** Records on hosts have this id. Those of another store are never changed. */
export const readStoreId = async (pool: RunPlan): Promise<string> => (await pool.describeStore()).id;

/**
 * The state of each resource has the id of its store, and the version of the commit that changed it last. A store with another id, or
 * without that version, lacks leases of the stack: it is another store, or an older backup.
 */
export function makeStamp(storeId: string, { version: commit }: Lease): Values {
  return { storeId, ...(commit && { storeVersion: `${commit.version}-${commit.epoch}` }) };
}

/** undefined: a resource of an earlier release, which has neither. */
export function parseStamp({ storeId, storeVersion }: Values): StoreIdentity | undefined {
  const [, version, epoch] = /^(\d{1,15})-([0-9a-f]*)$/.exec(String(storeVersion)) ?? [];
  return typeof storeId === "string" && version !== undefined
    ? { id: storeId, version: Number(version), epoch: epoch! }
    : undefined;
}

export async function rejectOlderStore(pool: RunPlan, props: Values): Promise<void> {
  const stamp = parseStamp(props);
  if (stamp) await pool.mustInclude(stamp);
}

/** A lost pool must not be taken for an empty one: a resource that is in the state but not in the store stops all allocation. */
export async function rejectLostStore(def: Definition, pool: RunPlan, olds: Values): Promise<void> {
  const { pool: from } = def.request(olds, String(olds.owner));
  if (await hasEnded(pool, from, olds)) return;
  if (parseStamp(olds)) throw notRecoveredError(def, olds, from);
  // An address space always exists; a resource in it has opened a pool.
  const name = from.startsWith(SPACES) ? def.childPool!(olds, def.rangesFromProps(olds)).name : from;
  if (await findSpec(pool.ipam, name)) return;
  throw new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but the store does not have ${describePool(name)}. Nothing is given out.`,
    "Point overlay:store at the store that this stack was deployed with, or rebuild it with `overlayctl recover`.",
  );
}

/**
 * Whether a lease that is not in the store has ended. Not so in a store that was rebuilt since without this stack's export: leases of
 * the stack are missing there, and their values may be given to others.
 */
async function hasEnded(pool: RunPlan, poolName: string, props: Values): Promise<boolean> {
  const stamp = parseStamp(props);
  if (!stamp) return false;
  const { recovered } = await pool.mustInclude(stamp);
  if (!recovered || (await pool.ipam.find({ pool: poolName, endedUid: String(props.uid) }))) return true;
  return (await pool.ipam.find({ pool: poolName, owner: String(props.owner) })) !== undefined; // found on hosts, under another lease id
}

const notRecoveredError = (def: Definition, olds: Values, pool: string): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but not in ${describePool(pool)} of the store, which was rebuilt since. Nothing is given out.`,
    "Run `overlayctl recover --stack-export FILE` with an export of this stack.",
  );
