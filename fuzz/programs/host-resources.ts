import type { Random } from "../random";
import type { Declaration, Program } from "./program";
import { type Naming, pinIn } from "./resources";

/** Random resources on the hosts of a lab: a network on the hub, runners, and addresses on them. */

const LAYOUTS: [string | undefined, ...(string | string[] | undefined)[]] = [
  undefined,
  "10.64.0.0/12/6/14",
  "fd10::/48/8/72",
  ["10.128.0.0/12/6/14", "fd10::/48/8/72"],
];

export function newNetwork(random: Random, naming: Naming, hosts: string[]): Program {
  const subnets = random.pickOne(LAYOUTS);
  const network: Declaration = {
    type: "OverlayNetwork",
    name: naming.name("n"),
    args: { hubConnection: { $host: "hub" }, ...(subnets !== undefined && { subnets }) },
  };
  const program = [network];
  for (const _ of hosts) program.push(...newRunner(random, naming, program, hosts));
  for (let left = random.integer(0, 2); left > 0; left--) program.push(...newAddress(random, naming, program));
  if (random.chance(0.4)) return program;
  const ranges = [`10.${naming.block(random)}.0.0/29`];
  program.push({ type: "IPPool", name: naming.name("p"), args: { ranges, type: "loadBalancer" } });
  for (let left = random.integer(1, 2); left > 0; left--) program.push(...newStaticIp(random, naming, program));
  return program;
}

const ofType = (program: Program, type: Declaration["type"]): Declaration[] =>
  program.filter((each) => each.type === type);

/** None if every host has a runner already. */
export function newRunner(random: Random, naming: Naming, program: Program, hosts: string[]): Program {
  const used = JSON.stringify(program.map(({ args }) => args.connection ?? null));
  const host = hosts.find((each) => !used.includes(`"${each}"`));
  const network = random.pick(ofType(program, "OverlayNetwork"));
  if (host === undefined || !network) return [];
  const pin = random.chance(0.3) ? { runnerId: random.integer(1, 3) } : {};
  const args = { network: { $resource: network.name }, connection: { $host: host }, ...pin };
  return [{ type: "RunnerSubnet", name: naming.name("s"), args }];
}

/** A reservation on a runner, or on any runner of a network. */
export function newAddress(random: Random, naming: Naming, program: Program): Program {
  const runners = ofType(program, "RunnerSubnet");
  const runner = random.pick(runners);
  if (!runner) return [];
  const kind = random.chance(0.2) ? { kind: "vm" } : {};
  const name = naming.name("r");
  if (random.chance(0.7))
    return [{ type: "IPReservation", name, args: { runner: { $resource: runner.name }, ...kind } }];
  const placement = random.pickOne(["mostFree", "packed", "spread"]);
  const args = { network: runner.args.network!, placement, ...kind };
  return [{ type: "IPReservation", name, args, dependsOn: runners.map((each) => each.name) }];
}

/** An address of a pool that the hub or a runner carries. */
export function newStaticIp(random: Random, naming: Naming, program: Program): Program {
  const carrier = pickCarrier(random, program);
  const pools = ofType(program, "IPPool").filter(({ args }) => args.type === "loadBalancer" && !args.tenant);
  const pool = random.pick(pools);
  if (!carrier || !pool) return [];
  const another = random.chance(0.3) ? { onPortConflict: "anotherAddress" } : {};
  const sharing = random.chance(0.5) ? { sharingKey: "shared", ...another } : {};
  const args = { pool: { $resource: pool.name }, attach: { $resource: carrier.name }, ...sharing };
  const request = pinIn(random, pool, 0.2);
  return [{ type: "StaticIP", name: naming.name("i"), args: { ...args, ...request, ...forwardsIn(random, program) } }];
}

const pickCarrier = (random: Random, program: Program): Declaration | undefined =>
  random.pick([...ofType(program, "OverlayNetwork"), ...ofType(program, "RunnerSubnet")]);

/** Moves one static address to a host, or all of them. */
export function moveStaticIps(random: Random, program: Program): Program {
  const carrier = pickCarrier(random, program);
  const moved = random.chance(0.5) ? ofType(program, "StaticIP") : [random.pick(ofType(program, "StaticIP"))];
  if (!carrier) return program;
  return moved.reduce(
    (others, each) =>
      each ? replaceLast(others, each, { ...each.args, attach: { $resource: carrier.name } }) : others,
    program,
  );
}

/** Changes a resource, and puts it after those that it may refer to. */
const replaceLast = (program: Program, each: Declaration, args: Declaration["args"]): Program => [
  ...program.filter((other) => other !== each),
  { ...each, args },
];

/** Forwards to reservations on runners; of few ports, so that conflicts are frequent. */
function forwardsIn(random: Random, program: Program): Declaration["args"] {
  const target = random.pick(ofType(program, "IPReservation").filter(({ args }) => args.runner !== undefined));
  if (!target || random.chance(0.3)) return {};
  const to = { $resource: target.name, output: "ip" };
  const ports = [...new Set([random.integer(80, 82), random.integer(80, 82)])];
  return { forwards: ports.map((port) => ({ port, to, toPort: 8080 })) };
}

export function changeForwards(random: Random, program: Program): Program {
  const each = random.pick(ofType(program, "StaticIP"));
  if (!each) return program;
  const { forwards: _, ...args } = each.args;
  return replaceLast(program, each, { ...args, ...forwardsIn(random, program) });
}

/** Another runner id, or none; or another layout of the network. */
export function changeNetwork(random: Random, program: Program): Program {
  const each = random.pick([...ofType(program, "RunnerSubnet"), ...ofType(program, "OverlayNetwork")]);
  if (!each) return program;
  const { runnerId, subnets: _, ...args } = each.args;
  const layout = each.type === "OverlayNetwork" ? random.pickOne(LAYOUTS) : undefined;
  if (layout !== undefined) args.subnets = layout;
  if (each.type === "RunnerSubnet" && runnerId === undefined) args.runnerId = random.integer(1, 3);
  return program.map((other) => (other === each ? { ...each, args } : other));
}
