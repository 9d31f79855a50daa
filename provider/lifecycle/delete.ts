import { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import { toTimeText } from "../format-time";
import { listSpecs } from "../ipam/interface";
import type { RunPlan } from "../ipam/run-plan";
import { type Changes, isCommitted, type Lease } from "../ipam/types";
import { forgottenOwner, isForgotten, shortName } from "../owner";
import { type Definition, targetsOf } from "../resource";
import { releaseContainerLeases } from "./container-leases";
import type { Dependencies } from "./dependencies";
import { cleanRemovedHosts, removeItems } from "./hosts";
import {
  buildChildPool,
  buildLeaseData,
  changeOwned,
  fence,
  ifOwned,
  isLeaseGone,
  leaseInState,
  type OwnedLease,
  overtakenError,
  readLeaseData,
  rejectLostStore,
  type TakenLease,
  throwFenced,
} from "./lease";
import { leaveMesh, reserveForSenders } from "./mesh";
import { configuredTargets, hostIds, removedTargets } from "./target-hosts";
import { pickInputs, type Values } from "./values";

/**
 * Deletes a resource: closes the pool that it opened, removes its items from the hosts, releases its lease. With the setting
 * `overlay:unreachableOnDelete` hosts that do not answer are forgotten: their addresses stay reserved.
 */
export async function removeAndRelease(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: TakenLease,
  clean: string[],
): Promise<void> {
  const inputs = pickInputs(def, props);
  owned = await leaveMesh(def, deps, pool, props, owned);
  const released =
    def.host?.containerLeases && owned.childPool ? await releaseContainerLeases(pool, owned.childPool) : [];
  // The resource stays, so its pool is opened again, with the leases of containers. If hosts were changed, so does the mark of the delete.
  const restore = async (changes: Changes): Promise<void> => {
    const childPool = buildChildPool(def, inputs);
    const data = buildLeaseData(def, inputs, owned.run, readLeaseData(owned), clean);
    await changeOwned(pool, owned, { ...changes, data, ...(childPool && { childPool }) }).catch(ignoreFenced);
    if (released.length > 0) await pool.ipam.importLeases(released);
  };
  const restoreAndThrow = (changes: Changes) => async (error: unknown) => {
    await restore(changes).catch((failure: Error) =>
      deps.warn(`${def.id(props)} was not restored: ${failure.message}`),
    );
    throw error;
  };
  const isRangeReserved = await closeOwnPool(deps, pool, owned).catch(restoreAndThrow({ deleting: false }));
  const unreachable = await removeAllItems(def, deps, pool, props, owned, clean).catch(restoreAndThrow({}));
  if (unreachable) await keepReserved(hostIds(configuredTargets(def, props, clean)), deps, pool, owned, unreachable);
  else if (isRangeReserved) await keepReserved([], deps, pool, owned);
  else {
    const senders = await reserveForSenders(def, pool, props, owned);
    if (senders.length > 0) deps.warn(describeSenders(owned, senders));
    else await releaseOwned(pool, owned);
  }
}

/** Closes the pool that it opened. true: only forgotten hosts have leases in it, so its range must stay reserved, too. */
async function closeOwnPool(deps: Dependencies, pool: RunPlan, owned: TakenLease): Promise<boolean> {
  try {
    await pool.ipam.close(owned.pool, owned.leaseId, ifOwned(owned)).catch(throwFenced(owned));
    return false;
  } catch (error) {
    if (!isOverlayError(error, "POOL_IN_USE") || deps.unreachableOnDelete !== "forget") throw error;
    const leases = (await pool.ipam.leases(owned.childPool!)).filter(isCommitted);
    if (!leases.every(({ owner }) => isForgotten(owner))) throw error;
    return true;
  }
}

/** Removes all items from the hosts, and adds those to `clean`. Returns the error of an unreachable host that is to be forgotten. */
async function removeAllItems(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: OwnedLease,
  clean: string[],
): Promise<OverlayError | undefined> {
  try {
    const targets = configuredTargets(def, props, clean);
    await removeItems(def, deps, pool, props, owned, targets, () => fence(pool, owned), clean);
    await cleanRemovedHosts(def, deps, pool, props, owned, removedTargets(def, props, props, clean));
    return undefined;
  } catch (error) {
    return forgetOrThrow(
      error,
      deps,
      "its addresses then stay reserved, because the host may still be using them, until `overlayctl gc --forgotten` releases them",
    );
  }
}

/** A lease that has expired meanwhile needs no release. One that a later run has taken over is not released. */
async function releaseOwned(pool: RunPlan, owned: OwnedLease): Promise<void> {
  const { pool: name, leaseId } = owned;
  if (await pool.release(name, leaseId, ifOwned(owned))) return;
  if (await pool.ipam.find({ pool: name, leaseId })) throw overtakenError(name, leaseId);
}

/**
 * If a later resource has renewed the lease, there is nothing to do. Else the items in our record on the hosts are removed; those
 * in other records stay.
 */
export async function deleteWithoutLease(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
): Promise<void> {
  const targets = targetsOf(def, props);
  // A pool that no longer exists must not block the delete, but an empty store must.
  const isEmpty = (await listSpecs(pool.ipam)).length === 0;
  if (isEmpty) await rejectLostStore(def, pool, props);
  const owned = await leaseInState(def, pool, props);
  const later = await pool.ipam.find({ pool: owned.pool, uid: owned.uid });
  if (later && isCommitted(later) && !pool.wasClaimedInRun(later)) deps.warn(takenOverWarning(def, later));
  if (later || targets.length === 0) return;
  const rejectIfRecreated = async (): Promise<void> => {
    if (!(await isLeaseGone(pool, owned, owned.uid)))
      throw new OverlayError(
        "LEASE_FENCED",
        `${owned.owner} was created again while it was deleted.`,
        "Nothing was changed.",
      );
  };
  try {
    await removeItems(def, deps, pool, props, owned, targets, rejectIfRecreated);
  } catch (error) {
    const { message } = forgetOrThrow(error, deps);
    deps.warn(`${message} Nothing is reserved for it, because the lease is no longer in the store.`);
  }
}

/** The lease id differs from the state: another state has claimed the lease since, such as that of a stack of the same name. */
const takenOverWarning = ({ type }: Definition, { owner, leaseId, updatedAt, by }: Lease): string =>
  `${type} ${owner.split("::").at(-1)}: its lease was taken over at ${toTimeText(updatedAt)}${by ? ` by ${by}` : ""} (${leaseId}), and is not released.`;

/** A later run has taken the lease over, and stored its own data. */
const ignoreFenced = (error: unknown): void => {
  if (!isOverlayError(error, "LEASE_FENCED")) throw error;
};

/** Returns the error if its host is to be forgotten, else throws it. `effect` of forgetting it, for the advice. */
function forgetOrThrow(error: unknown, { unreachableOnDelete }: Dependencies, effect = ""): OverlayError {
  if (!isOverlayError(error, "SSH_UNREACHABLE")) throw error;
  if (unreachableOnDelete === "forget") return error;
  const advice = "run `pulumi config set overlay:unreachableOnDelete forget` and destroy again";
  throw new OverlayError(
    error.code,
    error.what,
    `${error.fix} If the host is gone for good, ${advice}${effect && `: ${effect}`}.`,
    error,
  );
}

/**
 * Keeps the lease of a deleted resource reserved for these hosts, which did not answer (`error`). No hosts: other forgotten hosts have
 * leases in the pool that it opens.
 */
async function keepReserved(
  hosts: string[],
  deps: Dependencies,
  pool: RunPlan,
  lease: OwnedLease & Lease,
  error?: OverlayError,
): Promise<void> {
  const data = { ...readLeaseData(lease), forgotten: hosts };
  await changeOwned(pool, lease, { owner: forgottenOwner(lease.owner), names: [], data });
  deps.warn(error ? describeKept(hosts, error) : describeWithheld(lease));
}

const describeSenders = ({ owner }: Lease, senders: Lease[]): string =>
  `${shortName(owner)} is deleted, but its id stays reserved until an up changes or deletes ${senders.map((each) => shortName(each.owner)).join(", ")}: hosts may still send to it directly.`;

function describeKept(hosts: string[], { message }: OverlayError): string {
  const words = hosts.map((host) => (host.includes(" ") ? `'${host}'` : host)).join(" ");
  return (
    `${message} Its addresses stay reserved, because the host may still be using them. Once ${hosts.join(" and ")} cannot use ` +
    `them any more, run \`overlayctl gc --forgotten ${words} --yes\` to release them.`
  );
}

const describeWithheld = ({ owner }: Lease): string =>
  `${shortName(owner)} is deleted, but its range stays reserved, because forgotten hosts may still use addresses in it. ` +
  "`overlayctl gc --forgotten` lists them.";

const forgottenData = z.object({ forgotten: z.array(z.string()) });

/** Hosts that may still use the values of this lease; undefined: it does not say. */
export const forgottenHosts = ({ data }: Lease): string[] | undefined => forgottenData.safeParse(data).data?.forgotten;
