import { isOverlayError, OverlayError } from "../errors";
import { differenceText } from "../network/compare";
import type { Item } from "../network/items";
import type { Want } from "../network/steps";
import type { Lease, Pool } from "../pool/types";
import type { Definition, Machines, Part } from "../resource";
import type { Values } from "./values";
import type { World } from "./world";

/** The part of the lifecycle that speaks with machines. */

export type Held = Pick<Lease, "pool" | "leaseId" | "uid" | "owner">;

const networkOf = (def: Definition, props: Values): string => def.id(props).split("/")[0]!;

const wantOf = (def: Definition, props: Values, held: Pick<Held, "uid" | "owner">, items: Item[]): Want => ({
  record: { uid: held.uid, owner: held.owner, network: networkOf(def, props) },
  items,
  adopt: props.adopt === true,
});

/** Machines say about themselves what the plan needs: the hub first, then those that look towards it. */
async function askAll(def: Definition, world: World, props: Values): Promise<Machines> {
  const machines: Machines = {};
  for (const { role, connection, underlayIp, toward } of def.hosts(props)) {
    machines[role] = await world.fleet.ask(connection, { underlayIp, toward: toward && machines[toward]!.underlayIp });
  }
  return machines;
}

/** Makes all machines look as planned, proves it, and returns what they told. */
export async function apply(def: Definition, world: World, pool: Pool, props: Values, held: Held): Promise<Values> {
  const machines = await askAll(def, world, props);
  const plan = def.plan(props, machines);
  await everyPart(def.hosts(props), ({ role, connection }) =>
    world.fleet.apply(connection, { ...wantOf(def, props, held, plan[role] ?? []), fence: () => fence(pool, held) }),
  );
  await probe(def, world, props, machines);
  await pool.touch(held.pool, held.leaseId);
  return { ...def.report(props, machines), drift: [] };
}

/** Removes what this lease has on these machines. */
export function withdraw(
  def: Definition,
  world: World,
  props: Values,
  held: Held,
  parts: Part[],
  fence: () => Promise<void>,
) {
  return everyPart(parts, ({ connection }) =>
    world.fleet.apply(connection, { ...wantOf(def, props, held, []), fence }),
  );
}

/** All parts are brought to an end, also when one fails: nothing may still be at work when we report. */
async function everyPart(parts: Part[], act: (part: Part) => Promise<void>): Promise<void> {
  const results = await Promise.allSettled(parts.map(act));
  const failed = results.find((result) => result.status === "rejected");
  if (failed) throw failed.reason;
}

/** A provider whose CLI was killed can live on: before each write the pool says whether the lease is still ours. */
export async function fence(pool: Pool, { pool: name, leaseId }: Held): Promise<void> {
  if (await pool.find(name, { leaseId })) return;
  throw new OverlayError(
    "LEASE_FENCED",
    `Lease ${leaseId} in ${name} is no longer ours: a later run has taken over.`,
    "Nothing was changed. Run up again if this one should go on.",
  );
}

async function probe(def: Definition, world: World, props: Values, machines: Machines): Promise<void> {
  const probe = def.probe?.(props, machines);
  if (!probe) return;
  const part = def.hosts(props).find(({ role }) => role === probe.role)!;
  const { code } = await world.fleet.run(part.connection, probe.script);
  if (code === 0) return;
  throw new OverlayError(
    "VERIFY_FAILED",
    `${part.connection.host} is configured, but ${probe.shows} do not get through.`,
    "Look for a firewall that drops UDP between the machines, or a smaller MTU on the way (set mtu); verify: false skips this.",
  );
}

/** How the machines differ from the plan, as text; a machine that cannot be asked is a difference too. */
export async function drift(
  def: Definition,
  world: World,
  props: Values,
  held: Pick<Held, "uid" | "owner">,
): Promise<string[]> {
  try {
    const machines = await askAll(def, world, props);
    const plan = def.plan(props, machines);
    const found = await Promise.all(
      def.hosts(props).map(async ({ role, connection }) => {
        const differences = await world.fleet.inspect(connection, wantOf(def, props, held, plan[role] ?? []));
        return differences.map((difference) => `${connection.host}: ${differenceText(difference)}`);
      }),
    );
    return found.flat();
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    return [`not read: ${error.message}`];
  }
}
