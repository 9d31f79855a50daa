import { isOverlayError } from "../errors";
import { Semaphore } from "../host/semaphore";
import type { RunPlan } from "../ipam/run-plan";
import { dataEntries, isCommitted, type Lease } from "../ipam/types";
import { forgottenOwner, isForgotten, shortName } from "../owner";
import { type Definition, targetsOf, type Underlays } from "../resource";
import type { Dependencies } from "./dependencies";
import { applyPeers, askHosts } from "./hosts";
import { changeOwned, findLeaseInState, type OwnedLease, readLeaseData, readStoreId } from "./lease";
import { compareRoutes, findPeers, idOfRoute, meshPool, type Peer, readDirectRoutes } from "./mesh-peers";
import type { Values } from "./values";

/**
 * The runners of a mesh get each other as peers, beside their own create, update and delete:
 *
 *   join    device with all peers → member by its lease → the others get it as a peer → routes to those that answered
 *   change  the same; the route to a runner with another key or address is a new one
 *   leave   its own routes removed → no member → the others remove it → its device removed
 *
 * The others are those whose connection this run has; those of other stacks are changed by their next up. A direct route is set only after data has passed
 * over it. Until then packets take the route by the hub, also where a host does not answer: that is a warning, and no failed up.
 */
export class MeshRunners {
  /** Owner → properties of members that no create, update or delete of this run is working on. */
  readonly #reachable = new Map<string, Values>();
  /** Owner → the last request to update its routes. */
  readonly #requests = new Map<string, { work: Promise<void>; hasBegun: boolean }>();
  /** uids of the members whose create or update is in this step. */
  readonly #joining = new Set<string>();
  readonly #hosts = new Semaphore(HOSTS_AT_ONCE);
  /** uid → uids of the peers that this run has given its host. */
  readonly #peers = new Map<string, Set<string>>();
  /** Owner → its running update, if it was a member before it. */
  readonly #busy = new Map<string, { hasEnded: Promise<void>; end: () => void }>();

  /** During the update of a resource with these properties no other one changes its routes. */
  async during<T>(def: Definition, olds: Values, update: () => Promise<T>): Promise<T> {
    const owner = String(olds.owner);
    this.remove(owner);
    if (meshPool(def, olds) === undefined) return update();
    let end = (): void => {};
    const hasEnded = new Promise<void>((resolve) => {
      end = () => {
        this.#busy.delete(owner);
        resolve();
      };
    });
    this.#busy.set(owner, { hasEnded, end });
    try {
      return await update();
    } finally {
      end();
    }
  }

  /** It has no direct routes any more. Waits until no other member has one to it, as far as this run has their connections. */
  async waitForOthers(def: Definition, deps: Dependencies, props: Values): Promise<void> {
    this.#busy.get(String(props.owner))?.end();
    await this.updateOthers(def, deps, props);
    if (this.#busy.size === 0) return;
    await Promise.all([...this.#busy.values()].map(({ hasEnded }) => hasEnded));
    await this.updateOthers(def, deps, props);
  }

  add(def: Definition, props: Values): void {
    if (meshPool(def, props) !== undefined) this.#reachable.set(String(props.owner), props);
  }

  remove(owner: string): void {
    this.#reachable.delete(owner);
  }

  setPeers(uid: string, peers: Peer[]): void {
    this.#peers.set(uid, new Set(peers.map((peer) => peer.uid)));
  }

  /** Whether its host does not answer this runner yet, because it was given its peers before this runner joined. */
  isWithout(uid: string, runner: string): boolean {
    return this.#peers.get(uid)?.has(runner) === false;
  }

  /** The others get it as a peer, it gets routes to those that answer, and then the others ask again: they may join at the same time. */
  async join(def: Definition, deps: Dependencies, props: Values): Promise<void> {
    this.add(def, props);
    this.#joining.add(String(props.uid));
    try {
      await this.updateOthers(def, deps, props);
      await this.update(def, deps, String(props.owner));
      await this.updateOthers(def, deps, props);
    } finally {
      this.#joining.delete(String(props.uid));
    }
  }

  isJoining = (uid: string): boolean => this.#joining.has(uid);

  /** The other members of the mesh of a runner. */
  async updateOthers(def: Definition, deps: Dependencies, props: Values): Promise<void> {
    const pool = meshPool(def, props);
    const others = [...this.#reachable.values()].filter(
      (other) => other.owner !== props.owner && meshPool(def, other) === pool,
    );
    await Promise.all(others.map(({ owner }) => this.update(def, deps, String(owner))));
  }

  /** One at a time for each member; requests that wait are one, which uses properties and peers as they are when it begins. */
  update(def: Definition, deps: Dependencies, owner: string): Promise<void> {
    const last = this.#requests.get(owner);
    if (last && !last.hasBegun) return last.work;
    const request = { hasBegun: false, work: Promise.resolve() };
    const begin = async (): Promise<void> => {
      request.hasBegun = true;
      const props = this.#reachable.get(owner);
      if (props) await updateRoutes(def, deps, props);
    };
    const before = last?.work.catch(() => {}) ?? Promise.resolve();
    request.work = before.then(() => this.#hosts.run(begin));
    this.#requests.set(owner, request);
    return request.work;
  }
}

/** In all requests of a run together. */
const HOSTS_AT_ONCE = 16;

/**
 * After its create or update. Where nothing is missing, no host is contacted. A peer that is still joining asks this runner again, so a route that is
 * missing then is in the warning of that peer.
 */
export async function joinMesh(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: OwnedLease,
): Promise<void> {
  if (meshPool(def, props) === undefined) return;
  const lease = await pool.ipam.find({ pool: owned.pool, leaseId: owned.leaseId });
  if (lease && !readDirectRoutes(lease))
    await changeOwned(pool, owned, { data: { ...dataEntries(lease), directRoutes: [] } });
  await deps.mesh.join(def, deps, props);
  const peers = await findPeers(def, pool.ipam, props);
  const silent = peers.filter(({ isRouted, uid }) => !isRouted && !deps.mesh.isJoining(uid)).map(({ name }) => name);
  if (silent.length > 0) deps.warn(silentWarning(owned.owner, silent));
}

/** Before its device is removed. Returns the lease without its direct routes. A host that does not answer is reported by what follows. */
export async function leaveMesh<L extends OwnedLease & Lease>(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: L,
): Promise<L> {
  deps.mesh.remove(owned.owner);
  if (!readDirectRoutes(owned)) return owned;
  try {
    const underlays = await askHosts(def, deps, props);
    const peers = await findPeers(def, pool.ipam, props, underlays.runner);
    await applyPeers(def, deps, pool, props, owned, underlays, withRoutes(peers, new Set()));
  } catch (error) {
    if (!isOverlayError(error)) throw error;
  }
  const { directRoutes: _, ...data } = dataEntries(owned);
  const changed = await changeOwned(pool, owned, { data });
  await deps.mesh.waitForOthers(def, deps, props);
  await releaseIds(pool, owned.pool);
  return { ...owned, data: changed.data ?? data };
}

/** The runners whose hosts may still send directly to this one. Another owner of its id would get what they send, or they would lose it. */
async function findSenders(def: Definition, pool: RunPlan, props: Values, { ranges }: Lease): Promise<Lease[]> {
  const name = meshPool(def, props);
  if (name === undefined) return [];
  const id = Number(ranges[0]!.first);
  return (await pool.ipam.leases(name)).filter(
    (lease) => isCommitted(lease) && readDirectRoutes(lease)?.some((route) => idOfRoute(route) === id),
  );
}

const withRoutes = (peers: Peer[], ids: Set<number>): Peer[] =>
  peers.map((peer) => ({ ...peer, isRouted: ids.has(peer.id) }));

/**
 * Brings the peers of one runner up to date. All else is as its last up has left it. What fails is a warning. A run that was fenced off leaves
 * the rest to the one that has the lease now.
 */
async function updateRoutes(def: Definition, deps: Dependencies, props: Values): Promise<void> {
  try {
    const pool = await deps.pool();
    const lease = await findLeaseInState(def, pool, props);
    if (lease && readDirectRoutes(lease)) await changeRoutes(def, deps, pool, props, lease);
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    if (error.code === "LEASE_FENCED") return;
    const name = shortName(String(props.owner));
    deps.warn(
      `${name}: its direct routes to other runners could not be changed; the next up tries again. ${error.message}`,
    );
  }
}

async function changeRoutes(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  lease: Lease,
): Promise<void> {
  if (compareRoutes(readDirectRoutes(lease), await findPeers(def, pool.ipam, props)).length === 0) return;
  const owned = { ...lease, run: String(readLeaseData(lease).run), store: await readStoreId(pool) };
  const underlays = await askHosts(def, deps, props);
  const peers = await findPeers(def, pool.ipam, props, underlays.runner);
  await applyPeers(def, deps, pool, props, owned, underlays, peers);
  const routed = withRoutes(peers, await findAnswering(def, deps, props, underlays, peers));
  if (routed.some(({ isRouted }, i) => isRouted !== peers[i]!.isRouted))
    await applyPeers(def, deps, pool, props, owned, underlays, routed);
  const directRoutes = routed.filter(({ isRouted }) => isRouted).map(({ route }) => route);
  await changeOwned(pool, owned, { data: { ...dataEntries(lease), directRoutes } });
  await releaseIds(pool, lease.pool);
}

const silentWarning = (owner: string, silent: string[]): string =>
  `${shortName(owner)}: no data passes directly to ${silent.join(", ")}, so packets to there go by the hub. If the other runner is in another stack, ` +
  "it gets this one as a peer with its next up; else look for a firewall that drops UDP between the two hosts. The next up tries again.";

/** Those with a route keep it. Hosts that still lack this runner are not waited for: after they get it, it is asked to probe again. */
async function findAnswering(
  def: Definition,
  { fleet, mesh }: Dependencies,
  props: Values,
  underlays: Underlays,
  peers: Peer[],
): Promise<Set<number>> {
  const { connection } = targetsOf(def, props).find(({ role }) => role === "runner")!;
  const waiting = peers.filter(({ isRouted, uid }) => !isRouted && !mesh.isWithout(uid, String(props.uid)));
  const script = def.host!.mesh!.probe(props, underlays, waiting);
  const { stdout } = waiting.length > 0 ? await fleet.run(connection, script) : { stdout: "" };
  const answered = new Set(stdout.split("\n").filter(Boolean).map(Number));
  return new Set(peers.filter(({ id, isRouted }) => isRouted || answered.has(id)).map(({ id }) => id));
}

/** Keeps the id of a deleted runner while hosts may still send directly to it. Returns their leases; none: it is not kept. */
export async function reserveForSenders(
  def: Definition,
  pool: RunPlan,
  props: Values,
  lease: OwnedLease & Lease,
): Promise<Lease[]> {
  const senders = await findSenders(def, pool, props, lease);
  if (senders.length === 0) return [];
  const data = { ...readLeaseData(lease), forgotten: senders.flatMap(hostsOf), reservedForSenders: true };
  await changeOwned(pool, lease, { owner: forgottenOwner(lease.owner), names: [], data });
  await releaseIds(pool, lease.pool); // they may have left meanwhile
  return senders;
}

/**
 * Releases the ids of deleted runners to which no host has a direct route any more. It follows each removal of routes: a destroy deletes runner
 * after runner, and knows no connection to those that are still to come.
 */
async function releaseIds(pool: RunPlan, name: string): Promise<void> {
  const leases = (await pool.ipam.leases(name)).filter(isCommitted);
  const used = new Set(leases.flatMap((lease) => readDirectRoutes(lease) ?? []).map(idOfRoute));
  for (const lease of leases)
    if (isForgotten(lease.owner) && isReservedForSenders(lease) && !used.has(Number(lease.ranges[0]!.first)))
      await pool.release(lease.pool, lease.leaseId);
}

const isReservedForSenders = (lease: Lease): boolean => dataEntries(lease).reservedForSenders === true;

const hostsOf = ({ names = [] }: Lease): string[] => [
  ...new Set(names.flatMap((name) => /^host\/([^/]+)\//.exec(name)?.[1] ?? [])),
];
