import { z } from "zod";
import { escapeLine, isOverlayError, OverlayError } from "../errors";
import { type Connection, machineKey } from "../host/connection";
import type { ApplyRequest, InspectResult } from "../host/reconcile/types";
import { formatDifference } from "../network/kinds";
import type { Item } from "../network/model/items";
import type { DesiredState } from "../network/model/steps";
import type { Machine } from "../network/plan/hub";
import { type Changes, type Condition, dataEntries, type Json, type Lease, type Pool } from "../pool/types";
import { describePool } from "../pool-names";
import { type Definition, type Machines, type TargetHost, targetsOf } from "../resource";
import { enter, promise } from "./containers";
import type { Values } from "./values";
import type { World } from "./world";

/** The part of the lifecycle that speaks with machines. */

/** A lease as one run holds it. */
export interface Held extends Pick<Lease, "pool" | "leaseId" | "uid" | "owner"> {
  /** Renewed by every create, update and delete: a run that was overtaken finds another one here. */
  run: string;
  /** Which store it is in. */
  store: string;
}

/** Tells stores apart: a record on a machine that comes from another store is none of our business. */
export const storeOf = async (pool: Pool): Promise<string> => (await pool.identity()).id;

/** Items by role. */
const planOf = (def: Definition, props: Values, machines: Machines): Record<string, Item[]> =>
  def.host?.plan(props, machines) ?? {};

const networkOf = (def: Definition, props: Values): string => def.id(props).split("/")[0]!;

const nameOf = (def: Definition, props: Values): string =>
  def.nameInput ? String(props[def.nameInput]) : def.id(props);

const wantOf = (
  def: Definition,
  props: Values,
  { uid, owner, store }: Omit<Held, "run">,
  items: Item[],
): DesiredState => ({
  record: { uid, owner, network: networkOf(def, props), name: nameOf(def, props), store },
  items,
  adopt: props.adopt === true,
  persist: def.host?.persist?.(props) ?? true,
});

const isGone =
  (pool: Pool, { pool: name }: Pick<Held, "pool">) =>
  async (uid: string): Promise<boolean> =>
    (await pool.find(name, { uid })) === undefined;

/** Machines say about themselves what the plan needs: the hub first, then those that look towards it. */
export async function askAll(def: Definition, world: Pick<World, "fleet">, props: Values): Promise<Machines> {
  const machines: Machines = {};
  for (const part of targetsOf(def, props)) machines[part.role] = await ask(world, part, machines);
  return machines;
}

const ask = (
  world: Pick<World, "fleet">,
  { connection, underlayIp, toward, carries }: TargetHost,
  known: Machines,
): Promise<Machine> =>
  world.fleet.ask(connection, { underlayIp, toward: toward && (known[toward]?.underlayIp ?? toward), carries });

/**
 * What the plan says of one machine, for the removal of it: a record may be lost. Machines that do not answer count as they
 * were last seen; a state of an earlier release does not tell, so there is no plan then, and only the record tells.
 */
async function planFor(
  def: Definition,
  world: Pick<World, "fleet">,
  props: Values,
  part: TargetHost,
): Promise<Pick<ApplyRequest, "plannedItems" | "planError">> {
  const machines: Machines = {};
  const lastSeen = lastMachines.parse(props.machines);
  for (const each of targetsOf(def, props)) {
    const isSelf = each.role === part.role;
    try {
      machines[each.role] = await ask(world, isSelf ? { ...each, connection: part.connection } : each, machines);
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      if (isSelf && !isOverlayError(error, "INPUT_INVALID", "HOST_COMMAND_FAILED")) throw error;
      const last = lastSeen[each.role];
      if (!last) return { planError: error };
      machines[each.role] = last;
    }
  }
  return { plannedItems: planOf(def, props, machines)[part.role] ?? [] };
}

/** What each machine would be asked for, for whoever only wants to know. `gone`: nothing of it is to be left. */
export async function wantsOn(
  def: Definition,
  world: Pick<World, "fleet">,
  props: Values,
  held: Omit<Held, "run">,
  gone: boolean,
): Promise<{ part: TargetHost; want: DesiredState }[]> {
  const parts = targetsOf(def, props);
  if (gone) {
    const wants = parts.map(async (part) => ({
      part,
      want: { ...wantOf(def, props, held, []), ...(await planFor(def, world, props, part)) },
    }));
    return Promise.all(wants);
  }
  const plan = planOf(def, props, await askAll(def, world, props));
  return parts.map((part) => ({ part, want: wantOf(def, props, held, plan[part.role] ?? []) }));
}

const machine = z.object({ underlayIp: z.string(), underlayMtu: z.number(), uplink: z.string().optional() });
/** By role, in the state since the last run that asked them. */
const lastMachines = z
  .record(z.string(), machine)
  .catch({})
  .transform((machines) => machines as Machines);

/** Makes all machines look as planned, proves it, and returns what they told. */
export async function apply(
  def: Definition,
  world: World,
  pool: Pool,
  props: Values,
  held: Held,
  machines: Machines,
): Promise<Values> {
  const plan = planOf(def, props, machines);
  const seen = await applyParts(world, targetsOf(def, props), ({ role }) => ({
    ...wantOf(def, props, held, plan[role] ?? []),
    fence: () => fence(pool, held),
    isLeaseGone: isGone(pool, held),
  }));
  const foreign = foreignOn(targetsOf(def, props), seen);
  for (const text of foreign) world.warn(text);
  await enter(def, world, pool, props, seen);
  const broken = await probe(def, world, props, machines);
  if (broken) {
    throw new OverlayError(
      "VERIFY_FAILED",
      `It is configured, but ${broken}.`,
      "Look for a firewall that drops UDP between the machines, or a smaller MTU on the way (set mtu); verify: false skips this.",
    );
  }
  await pool.touch(held.pool, held.leaseId);
  return { ...def.host?.report?.(props, machines), drift: foreign };
}

/** What of other programs is still in the way after an apply: it is never removed by us, and stays drift. */
const foreignOn = (parts: TargetHost[], seen: InspectResult[]): string[] =>
  parts.flatMap(({ connection }, i) => (seen[i]?.foreign ?? []).map((text) => driftText(connection, text)));

/** Hosts put any text into names and settings; it must command no terminal, and pass for no other line of Pulumi's output. */
const driftText = (connection: Connection, text: string): string => escapeLine(`${machineKey(connection)}: ${text}`);

/**
 * Removes what this lease has on these machines: what its records list, and what its plan says where they are lost. `clean` gets
 * the machines that are done.
 */
export const withdraw = (
  def: Definition,
  world: World,
  pool: Pool,
  props: Values,
  held: Omit<Held, "run">,
  parts: TargetHost[],
  fence: () => Promise<void>,
  clean: string[] = [],
): Promise<unknown> =>
  applyParts(
    world,
    parts,
    async (part) => ({
      ...wantOf(def, props, held, []),
      ...(await planFor(def, world, props, part)),
      fence,
      isLeaseGone: isGone(pool, held),
    }),
    ({ connection }) => clean.push(machineKey(connection)),
  );

/**
 * Where a resource has several machines, all of them are looked at before the first is changed: what one of them refuses
 * must not leave the others half done. Those whose peer gets another address come first: they then accept both. One that
 * cannot be reached is not dialled a second time.
 */
async function applyParts(
  world: World,
  parts: TargetHost[],
  workOf: (part: TargetHost) => ApplyRequest | Promise<ApplyRequest>,
  done: (part: TargetHost) => void = () => {},
): Promise<InspectResult[]> {
  const applyPart = async (part: TargetHost, work: ApplyRequest): Promise<InspectResult> => {
    const seen = await world.fleet.apply(part.connection, work);
    done(part);
    return seen;
  };
  if (parts.length < 2) return everyPart(parts, async (part) => applyPart(part, await workOf(part)));
  const check = async (part: TargetHost): Promise<{ work: ApplyRequest; peerMoves: boolean }> => {
    const work = await workOf(part);
    const { peerMoves } = await world.fleet.check(part.connection, work);
    return { work, peerMoves };
  };
  const checks = await Promise.allSettled(parts.map(check));
  const failures = checks.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const refusal = failures.find((reason) => !isOverlayError(reason, "SSH_UNREACHABLE"));
  if (refusal) throw refusal;
  const apply = async (part: TargetHost): Promise<InspectResult> => {
    const checked = checks[parts.indexOf(part)]!;
    if (checked.status === "rejected") throw checked.reason;
    return applyPart(part, checked.value.work);
  };
  return everyPart(parts, apply, (_, i) => checks[i]!.status === "fulfilled" && checks[i]!.value.peerMoves);
}

/** All parts are brought to an end, also when one fails: nothing may still be at work when we report. */
async function everyPart<T>(
  parts: TargetHost[],
  act: (part: TargetHost) => Promise<T>,
  isFirst: (part: TargetHost, i: number) => boolean = () => false,
): Promise<T[]> {
  const first = parts.map((part, i) => (isFirst(part, i) ? act(part) : undefined));
  await Promise.allSettled(first);
  const results = await Promise.allSettled(parts.map((part, i) => first[i] ?? act(part)));
  const reasons = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const worst = reasons.find((reason) => !isOverlayError(reason, "SSH_UNREACHABLE")) ?? reasons[0];
  if (worst) throw worst;
  return results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
}

/** A provider whose run is over can live on: before each write the pool says whether the lease is still ours. */
export async function fence(pool: Pool, { pool: name, leaseId, run }: Held): Promise<void> {
  const lease = await pool.find(name, { leaseId });
  if (lease && dataOf(lease).run === run) return;
  throw notOurs(name, leaseId);
}

/** `LEASE_FENCED` if a later run has taken the lease over. */
export const amendHeld = (pool: Pool, held: HeldId, changes: Changes): Promise<Lease> =>
  pool.amend(held.pool, held.leaseId, changes, ifHeld(held)).catch(throwNotOurs(held));

type HeldId = Pick<Held, "pool" | "leaseId"> & { run: Json | undefined };

export const ifHeld = ({ run }: Pick<HeldId, "run">): { onlyIf: Condition } => ({ onlyIf: { data: { run } } });

export const throwNotOurs =
  ({ pool, leaseId }: Pick<HeldId, "pool" | "leaseId">) =>
  (error: unknown): never => {
    throw isOverlayError(error, "LEASE_CHANGED") ? notOurs(pool, leaseId) : error;
  };

export const notOurs = (pool: string, leaseId: string): OverlayError =>
  new OverlayError(
    "LEASE_FENCED",
    `Lease ${leaseId} in ${describePool(pool)} is no longer ours: its time is over, or a later run has taken over.`,
    "Nothing was changed. Run up again if this one should go on.",
  );

/** What the lifecycle keeps with a lease. */
export const dataOf = (lease: Lease): { run?: Json; name?: Json; clean?: Json } => dataEntries(lease);

/** What does not work, if it can be proven; undefined when all is well. */
async function probe(def: Definition, world: World, props: Values, machines: Machines): Promise<string | undefined> {
  const probe = def.host?.probe?.(props, machines);
  if (!probe) return undefined;
  const { connection } = targetsOf(def, props).find(({ role }) => role === probe.role)!;
  const { code } = await world.fleet.run(connection, probe.script);
  return code === 0 ? undefined : `${probe.shows} do not get through (tried on ${connection.host})`;
}

/** How the machines differ from the plan, as text; a machine that cannot be asked is a difference too. */
export async function drift(
  def: Definition,
  world: World,
  pool: Pool,
  props: Values,
  held: Omit<Held, "run">,
): Promise<{ found: string[]; complete: boolean }> {
  try {
    const machines = await askAll(def, world, props);
    const plan = planOf(def, props, machines);
    const parts = targetsOf(def, props).map(async ({ role, connection }) => {
      const seen = await world.fleet.inspect(connection, wantOf(def, props, held, plan[role] ?? []));
      const unleased = await promise(def, pool, props, [seen]);
      const texts = [...seen.foreign, ...seen.differences.map(formatDifference), ...unleased];
      return texts.map((text) => driftText(connection, text));
    });
    const found = (await Promise.all(parts)).flat();
    const broken = found.length === 0 ? await probe(def, world, props, machines) : undefined;
    return { found: broken ? [broken] : found, complete: true };
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    // Without the number of tries and the like, or every refresh would find something else.
    const machines = targetsOf(def, props).map(({ connection }) => machineKey(connection));
    const which = machines.find((machine) => error.what.split(/[\s,:;']+/).includes(machine)) ?? machines.join(", ");
    return { found: [`${which}: could not be read (${error.code})`], complete: false };
  }
}
