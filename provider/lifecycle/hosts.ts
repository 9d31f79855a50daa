import { z } from "zod";
import { escapeLine, isOverlayError, OverlayError } from "../errors";
import { type Connection, hostId } from "../host/connection";
import type { ApplyRequest, InspectResult } from "../host/reconcile/requests";
import type { RunPlan } from "../ipam/run-plan";
import type { Ipam } from "../ipam/types";
import type { DesiredState, Item } from "../network/model/items";
import { publicKey } from "../network/model/record";
import type { Underlay } from "../network/plan/hub";
import { renderPings } from "../network/plan/probes";
import { PHASES_WITH_BOTH, planPhases } from "../network/plan/tunnel-change";
import type { MeshPeer } from "../network/plan/tunnels/tunnel";
import { type Definition, type TargetHost, type TunnelChange, targetsOf, type Underlays } from "../resource";
import { importContainerLeases } from "./container-leases";
import type { Dependencies } from "./dependencies";
import { fence, isLeaseGone, type OwnedLease } from "./lease";
import { findPeers, meshPool, type Peer } from "./mesh-peers";
import { findOwnersOn } from "./owners-on-host";
import { changeTunnel, claimKey, storeTunnelEnd, type TunnelHosts } from "./tunnel";
import type { Values } from "./values";

/** What the lifecycle does on hosts: asks them, brings them to the desired state, and probes what it has made. */

/** Items by role. */
export const planItems = (
  def: Definition,
  props: Values,
  underlays: Underlays,
  peers: MeshPeer[] = [],
): Record<string, Item[]> => def.host?.plan(props, underlays, peers) ?? {};

export function desiredState(
  def: Definition,
  props: Values,
  { uid, owner, store }: Omit<OwnedLease, "run">,
  items: Item[],
): DesiredState {
  const network = def.id(props).split("/")[0]!;
  const name = def.nameInput ? String(props[def.nameInput]) : def.id(props);
  return {
    record: { uid, owner, network, name, store },
    items,
    adopt: props.adopt === true,
    persist: def.host?.persist?.(props) ?? true,
  };
}

/** Asks each host for its underlay address and MTU. `makesKeys`: hosts without a key for tunnels make one. */
export async function askHosts(
  def: Definition,
  deps: Pick<Dependencies, "fleet">,
  props: Values,
  makesKeys = false,
): Promise<Underlays> {
  const underlays: Underlays = {};
  const answers = askAll(deps, targetsOf(def, props), () => undefined, makesKeys);
  for (const [role, answer] of answers) underlays[role] = await answer;
  return underlays;
}

/** The question to a host may have the address of one before it, such as the hub's. All are dialled at once. */
function askAll(
  deps: Pick<Dependencies, "fleet">,
  targets: TargetHost[],
  recall: (role: string) => Underlay | undefined,
  makesKeys = false,
): Map<string, Promise<Underlay>> {
  const answers = new Map<string, Promise<Underlay>>();
  const addressOf = async (peer: string): Promise<string | undefined> => {
    const answer = answers.get(peer);
    return answer ? (await answer.catch(() => recall(peer)))?.underlayIp : peer;
  };
  for (const { role, connection, underlayIp, toward, carries, keyFile } of targets) {
    const key = keyFile === undefined ? {} : { keyFile, makeKey: makesKeys };
    const question = async () => ({ underlayIp, toward: toward && (await addressOf(toward)), carries, ...key });
    const answer = deps.fleet.ask(connection, question());
    answer.catch(() => {}); // an earlier one may be thrown first
    answers.set(role, answer);
  }
  return answers;
}

/** What is known of the hosts of a resource, although some do not answer: of those the facts that the last up wrote to the state. */
interface KnownUnderlays {
  underlays: Underlays;
  /** Why hosts did not answer, by role. */
  errors: Map<string, OverlayError>;
  /** The error of a host of which the state has no facts either: nothing can be planned. */
  unknown?: OverlayError;
}

export async function askOrRecall(
  deps: Pick<Dependencies, "fleet">,
  targets: TargetHost[],
  props: Values,
): Promise<KnownUnderlays> {
  const known: KnownUnderlays = { underlays: {}, errors: new Map() };
  const lastSeen = lastUnderlays.parse(props.underlays);
  for (const [role, answer] of askAll(deps, targets, (role) => lastSeen[role])) {
    try {
      const lastKey = lastSeen[role]?.publicKey;
      known.underlays[role] = { ...(lastKey && { publicKey: lastKey }), ...(await answer) };
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      known.errors.set(role, error);
      const last = lastSeen[role];
      if (last) known.underlays[role] = last;
      else known.unknown ??= error;
    }
  }
  return known;
}

/** The planned items of a host whose items are to be removed, because its record may be lost. Without a plan, only the record counts. */
async function planRemoval(
  def: Definition,
  deps: Pick<Dependencies, "fleet">,
  props: Values,
  { role, connection }: TargetHost,
): Promise<Pick<ApplyRequest, "plannedItems" | "planError">> {
  const targets = targetsOf(def, props).map((each) => (each.role === role ? { ...each, connection } : each));
  const { underlays, errors, unknown } = await askOrRecall(deps, targets, props);
  const own = errors.get(role);
  if (own && !isOverlayError(own, "INPUT_INVALID", "HOST_COMMAND_FAILED")) throw own;
  return unknown ? { planError: unknown } : { plannedItems: planItems(def, props, underlays)[role] ?? [] };
}

/** For a dry run: the desired state of each host, and from what it was planned. */
export async function desiredStates(
  def: Definition,
  deps: Pick<Dependencies, "fleet"> & { ipam: Ipam },
  props: Values,
  owned: Omit<OwnedLease, "run">,
) {
  const targets = targetsOf(def, props);
  const underlays = await askHosts(def, deps, props);
  for (const { role, connection, keyFile } of targets)
    if (keyFile !== undefined) underlays[role]!.publicKey ??= keyThatUpMakes(connection);
  def.host?.checkUnderlays?.(props, underlays);
  const peers = await findPeers(def, deps.ipam, props, underlays.runner);
  const plan = planItems(def, props, underlays, peers);
  const states = targets.map((target) => ({
    target,
    desired: desiredState(def, props, owned, plan[target.role] ?? []),
  }));
  return { states, underlays, peers };
}

/** In a plan, in place of a public key. */
const keyThatUpMakes = ({ host }: Connection): string => `KEY-THAT-UP-MAKES-ON-${host}`;

/** For a dry run: the state of a host from which all items are to be removed. */
export const stateAfterRemoval = async (
  def: Definition,
  deps: Pick<Dependencies, "fleet">,
  props: Values,
  owned: Omit<OwnedLease, "run">,
  target: TargetHost,
) => ({
  target,
  desired: { ...desiredState(def, props, owned, []), ...(await planRemoval(def, deps, props, target)) },
});

const underlay = z.object({
  underlayIp: z.string(),
  underlayMtu: z.number(),
  uplink: z.string().optional(),
  publicKey: publicKey.optional(),
});
/** The underlay of each host, by role, as the last run wrote it to the state. */
const lastUnderlays = z
  .record(z.string(), underlay)
  .catch({})
  .transform((underlays) => underlays as Underlays);

/** Brings all hosts to the desired state, runs the probe, and returns outputs. */
export async function apply(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: OwnedLease,
  underlays: Underlays,
): Promise<Values> {
  def.host?.checkUnderlays?.(props, underlays);
  const peers = await findPeers(def, pool.ipam, props, underlays.runner);
  const plan = planItems(def, props, underlays, peers);
  const end = def.host?.tunnelEnd?.(props, underlays);
  if (end) await claimKey(pool, owned, end);
  const request = (target: TargetHost, items: Item[]) => buildRequest(def, pool, props, owned, target, items);
  const planned = (target: TargetHost) => request(target, plan[target.role] ?? []);
  const checks = checkAll(deps, targetsOf(def, props).slice(0, -1), planned);
  const { tunnels = [] } = (await checks[0]?.catch(() => undefined)) ?? {};
  const changes = def.host?.tunnelChanges?.(props, tunnels, underlays) ?? [];
  const seen =
    changes.length > 0
      ? await applyTunnelChanges(def, deps, props, changes, underlays, request)
      : await applyToTargets(deps, targetsOf(def, props), planned, () => {}, checks);
  if (changes.length > 0 && meshPool(def, props) !== undefined)
    await applyPeers(def, deps, pool, props, owned, underlays, peers);
  deps.mesh.setPeers(owned.uid, peers);
  const foreign = foreignObjects(targetsOf(def, props), seen);
  for (const text of foreign) deps.warn(text);
  await importContainerLeases(def, deps, pool, props, seen);
  const failure = await runProbe(def, deps, props, underlays);
  if (failure) {
    throw new OverlayError(
      "VERIFY_FAILED",
      `It is configured, but ${failure}.`,
      "Look for a firewall that drops UDP between the hosts, or a smaller MTU on the way (set mtu); verify: false skips this.",
    );
  }
  if (end) await storeTunnelEnd(pool, owned, end);
  await pool.ipam.touch(owned.pool, owned.leaseId);
  return { ...(end && { tunnelEnd: end }), ...def.host?.report?.(props, underlays), drift: foreign };
}

const buildRequest = (
  def: Definition,
  pool: RunPlan,
  props: Values,
  owned: OwnedLease,
  { connection }: TargetHost,
  items: Item[],
): ApplyRequest => ({
  ...desiredState(def, props, owned, items),
  fence: () => fence(pool, owned),
  isLeaseGone: (uid) => isLeaseGone(pool, owned, uid),
  ownersHere: () => findOwnersOn(pool.ipam, connection),
});

/** Brings the runner's host alone to the desired state, with these peers. */
export async function applyPeers(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: OwnedLease,
  underlays: Underlays,
  peers: Peer[],
): Promise<void> {
  const target = targetsOf(def, props).find(({ role }) => role === "runner")!;
  const { runner = [] } = planItems(def, props, underlays, peers);
  await deps.fleet.apply(target.connection, buildRequest(def, pool, props, owned, target, runner));
  deps.mesh.setPeers(owned.uid, peers);
}

/** Phase by phase, because packets pass meanwhile. What a change leaves to the one after it stays beside that one's tunnel. */
async function applyTunnelChanges(
  def: Definition,
  deps: Dependencies,
  props: Values,
  changes: TunnelChange<Values>[],
  underlays: Underlays,
  request: (target: TargetHost, items: Item[]) => ApplyRequest,
): Promise<InspectResult[]> {
  const targets = targetsOf(def, props);
  const at = (role: string): TargetHost => targets.find((each) => each.role === role)!;
  const hosts: TunnelHosts = {
    apply: (role, items) => deps.fleet.apply(at(role).connection, request(at(role), items)),
    has: async (role, items) => {
      const { differences } = await deps.fleet.inspect(at(role).connection, request(at(role), items));
      return differences.length === 0;
    },
    run: (script) => deps.fleet.run(at("runner").connection, script),
    warn: deps.warn,
  };
  const what = `The new tunnel of ${def.id(props)}`;
  const ends = (plan: Record<string, Item[]>) => ({ hub: plan.hub ?? [], runner: plan.runner ?? [] });
  let seen = new Map<string, InspectResult>();
  for (const [i, { former, target, transition, ...scripts }] of changes.entries()) {
    const before = planItems(def, former, await askHosts(def, deps, former));
    const phases = planPhases(ends(before), ends(planItems(def, target, underlays)), transition);
    const isLast = i === changes.length - 1;
    seen = await changeTunnel(isLast ? phases : phases.slice(0, PHASES_WITH_BOTH), { ...scripts, what }, hosts);
  }
  return targets.flatMap(({ role }) => seen.get(role) ?? []);
}

/** Conflicting objects of other programs that remain after an apply: we never remove them, so they stay drift. */
const foreignObjects = (targets: TargetHost[], seen: InspectResult[]): string[] =>
  targets.flatMap(({ connection }, i) => (seen[i]?.foreign ?? []).map((text) => formatDrift(connection, text)));

/** Text from hosts is escaped: it must neither control the terminal nor imitate a line of Pulumi's output. */
export const formatDrift = (connection: Connection, text: string): string =>
  escapeLine(`${hostId(connection)}: ${text}`);

/**
 * Removes the items of this lease from these hosts: those in its records, or the planned ones where a record is lost. Adds each host
 * that is done to `clean`.
 */
export const removeItems = (
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: Omit<OwnedLease, "run">,
  targets: TargetHost[],
  fence: () => Promise<void>,
  clean: string[] = [],
): Promise<unknown> =>
  applyToTargets(
    deps,
    targets,
    async (target) => ({
      ...desiredState(def, props, owned, []),
      ...(await planRemoval(def, deps, props, target)),
      fence,
      isLeaseGone: (uid) => isLeaseGone(pool, owned, uid),
      ownersHere: () => findOwnersOn(pool.ipam, target.connection),
    }),
    ({ connection }) => clean.push(hostId(connection)),
  );

/** Removes items from hosts that the resource no longer has. Those that cannot be reached any more are skipped with a warning. */
export async function cleanRemovedHosts(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: OwnedLease,
  targets: TargetHost[],
): Promise<void> {
  for (const target of targets) {
    try {
      await removeItems(def, deps, pool, props, owned, [target], () => fence(pool, owned));
    } catch (error) {
      deps.warn(notCleanedWarning(def.id(props), target, error));
    }
  }
}

/** Throws an error that is no reason to skip the host. */
export function notCleanedWarning(id: string, { connection }: TargetHost, error: unknown): string {
  if (!isOverlayError(error, "SSH_UNREACHABLE", "SSH_AUTH", "SSH_HOST_KEY")) throw error;
  return `${hostId(connection)} is no longer part of ${id}, but its items could not be removed: ${error.message}`;
}

/** A host that has accepted its request. */
interface AcceptedTarget {
  peerMoves: boolean;
  /** Applies the request, or waits until it is applied. */
  finish(): Promise<InspectResult>;
}

type RequestFor = (target: TargetHost) => ApplyRequest | Promise<ApplyRequest>;

/** What a host answers to the check of its request. */
type Check = Promise<InspectResult & { request: ApplyRequest }>;

async function checkOne(
  deps: Dependencies,
  target: TargetHost,
  requestFor: RequestFor,
): Promise<InspectResult & { request: ApplyRequest }> {
  const request = await requestFor(target);
  return { ...(await deps.fleet.check(target.connection, request)), request };
}

function checkAll(deps: Dependencies, targets: TargetHost[], requestFor: RequestFor): Check[] {
  const checks = targets.map((target) => checkOne(deps, target, requestFor));
  for (const each of checks) each.catch(() => {}); // another one may be thrown first
  return checks;
}

/**
 * No host is changed before those before it have accepted, so that a refusal does not leave hosts half done: all but the last are checked first,
 * and the last one accepts in the conversation that changes it. Hosts whose peer changes its address are done before the others: they
 * then accept both addresses. A host that did not answer the check is not dialled again.
 */
async function applyToTargets(
  deps: Dependencies,
  targets: TargetHost[],
  requestFor: RequestFor,
  done: (target: TargetHost) => void = () => {},
  checks = checkAll(deps, targets.slice(0, -1), requestFor),
): Promise<InspectResult[]> {
  const applyTo = async (target: TargetHost, request: ApplyRequest): Promise<InspectResult> => {
    const seen = await deps.fleet.apply(target.connection, request);
    done(target);
    return seen;
  };
  const check = async (target: TargetHost, checked: Check): Promise<AcceptedTarget> => {
    const { request, peerMoves } = await checked;
    return { peerMoves, finish: () => applyTo(target, request) };
  };
  const begin = async (target: TargetHost): Promise<AcceptedTarget> => {
    const request = await requestFor(target);
    return new Promise((accept, refuse) => {
      const finish = () => applied;
      const accepted = (peerMoves: boolean): void => accept({ peerMoves, finish });
      const applied = applyTo(target, { ...request, accepted });
      applied.then(({ peerMoves }) => accepted(peerMoves), refuse);
    });
  };
  const checked = await settle(targets.slice(0, -1), (target, i) => check(target, checks[i]!));
  const isFirst = (each: PromiseSettledResult<AcceptedTarget> | undefined): boolean =>
    each?.status === "fulfilled" && each.value.peerMoves;
  const last = await settle(targets.slice(-1), (target) =>
    checked.some(isFirst) ? check(target, checkOne(deps, target, requestFor)) : begin(target),
  );
  const all = [...checked, ...last];
  const finish = async (_: TargetHost, i: number): Promise<InspectResult> => {
    const each = all[i]!;
    if (each.status === "rejected") throw each.reason;
    return each.value.finish();
  };
  return forEachTarget(targets, finish, (_, i) => isFirst(all[i]));
}

/** The answers of all. Throws a refusal; a host that does not answer refuses nothing. */
async function settle<T>(
  targets: TargetHost[],
  act: (target: TargetHost, i: number) => Promise<T>,
): Promise<PromiseSettledResult<T>[]> {
  const results = await Promise.allSettled(targets.map(act));
  const failures = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const refusal = failures.find((reason) => !isOverlayError(reason, "SSH_UNREACHABLE"));
  if (refusal) throw refusal;
  return results;
}

/** Waits for all targets, also when one fails: nothing may still run when the result is reported. */
async function forEachTarget<T>(
  targets: TargetHost[],
  act: (target: TargetHost, i: number) => Promise<T>,
  isFirst: (target: TargetHost, i: number) => boolean,
): Promise<T[]> {
  const first = targets.map((target, i) => (isFirst(target, i) ? act(target, i) : undefined));
  await Promise.allSettled(first);
  const results = await Promise.allSettled(targets.map((target, i) => first[i] ?? act(target, i)));
  const reasons = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const worst = reasons.find((reason) => !isOverlayError(reason, "SSH_UNREACHABLE")) ?? reasons[0];
  if (worst) throw worst;
  return results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
}

/** Returns what does not work; undefined: the probe succeeded, or there is none. */
export async function runProbe(
  def: Definition,
  deps: Dependencies,
  props: Values,
  underlays: Underlays,
  neighbours: string[] = [],
  peers: MeshPeer[] = [],
): Promise<string | undefined> {
  const probe = def.host?.probe?.(props, underlays, neighbours, peers);
  if (!probe) return undefined;
  const connectionOf = (role: string): Connection =>
    targetsOf(def, props).find((each) => each.role === role)!.connection;
  const failure = (shows: string): string => `${shows} do not get through (tried on ${connectionOf(probe.role).host})`;
  const { groups, reachableFrom } = probe.others ?? { groups: [], reachableFrom: probe.role };
  const isSilent = (silent: string) => (group: string[]) => group.every((ip) => silent.split("\n").includes(ip));
  const pings = groups.length > 0 ? renderPings(groups.flat()) : ":";
  const { code, stdout } = await deps.fleet.run(connectionOf(probe.role), `(${probe.script}\n) || exit 1\n${pings}`);
  if (code !== 0) return failure(probe.shows);
  const silent = groups.filter(isSilent(stdout));
  if (silent.length === 0) return undefined;
  const other = await deps.fleet.run(connectionOf(reachableFrom), renderPings(silent.flat()));
  const cut = silent.filter((group) => !isSilent(other.stdout)(group)).flat();
  if (cut.length === 0) return undefined;
  return failure(`packets from the runner to other runners (${cut.join(", ")}), which the hub reaches,`);
}
