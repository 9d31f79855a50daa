import { isDeepStrictEqual } from "node:util";
import type { Random } from "../random";
import {
  changeForwards,
  changeNetwork,
  moveStaticIps,
  newAddress,
  newNetwork,
  newRunner,
  newStaticIp,
} from "./host-resources";
import { type Arg, type Declaration, isResourceReference, type Program, withoutResource } from "./program";
import { addressIn, inPool, type Naming, newPool, newReservation, pinIn } from "./resources";

/** Random edits of a program: resources that are added, removed, renamed, moved, or change their inputs. */

export interface EditContext {
  random: Random;
  naming: Naming;
  /** Pools and runners of other stacks that are up. */
  others: Declaration[];
  /** Hosts of the lab that can be runners of this stack. */
  hosts: string[];
}

/** Changes a program in one way. undefined: there is nothing to change in that way. */
type Edit = (program: Program, context: EditContext) => Program | undefined;

const EDITS: Record<string, { weight: number; edit: Edit }> = {
  add: { weight: 6, edit: add },
  addPool: { weight: 2, edit: (program, { random, naming }) => [...program, newPool(random, naming, program)] },
  remove: { weight: 3, edit: remove },
  rename: { weight: 3, edit: rename },
  pin: { weight: 3, edit: pin },
  pinToOwn: { weight: 2, edit: pinToOwn },
  unpin: { weight: 3, edit: unpin },
  swap: { weight: 3, edit: swap },
  takeFromRemoved: { weight: 1.5, edit: takeFromRemoved },
  takeFromOther: { weight: 1, edit: takeFromOther },
  move: { weight: 2, edit: move },
  resize: { weight: 3, edit: resize },
  changePool: { weight: 3, edit: changePool },
  changeDetails: { weight: 1, edit: changeDetails },
};

/** Only for a stack with hosts. */
const HOST_EDITS: typeof EDITS = {
  addRunner: {
    weight: 2,
    edit: (program, { random, naming, hosts }) => addRunner(program, newRunner(random, naming, program, hosts)),
  },
  addAddress: {
    weight: 4,
    edit: (program, { random, naming }) => [...program, ...newAddress(random, naming, program)],
  },
  addStaticIp: {
    weight: 3,
    edit: (program, { random, naming }) => [...program, ...newStaticIp(random, naming, program)],
  },
  changeNetwork: { weight: 4, edit: (program, { random }) => changeNetwork(random, program) },
  changeForwards: { weight: 2, edit: (program, { random }) => changeForwards(random, program) },
  moveStaticIps: { weight: 2, edit: (program, { random }) => moveStaticIps(random, program) },
};

/** One to three edits. */
export function editProgram(program: Program, context: EditContext): Program {
  const edits = context.hosts.length > 0 ? { ...EDITS, ...HOST_EDITS } : EDITS;
  const weights = Object.fromEntries(Object.entries(edits).map(([name, { weight }]) => [name, weight]));
  let edited = program;
  for (let left = context.random.integer(1, 3); left > 0; left--) {
    const { edit } = edits[context.random.pickWeighted(weights)]!;
    edited = edit(edited, context) ?? edited;
  }
  return edited;
}

export function newProgram(context: EditContext): Program {
  const { random, naming, others, hosts } = context;
  const program: Program = hosts.length > 0 ? newNetwork(random, naming, hosts) : [];
  for (let left = random.integer(others.length > 0 ? 0 : 1, 2); left > 0; left--)
    program.push(newPool(random, naming, program));
  for (let left = random.integer(1, 5); left > 0; left--) {
    const reservation = newReservation(random, naming, program, others);
    if (reservation) program.push(reservation);
  }
  return program;
}

const ofType = (program: Program, type: Declaration["type"]): Declaration[] =>
  program.filter((each) => each.type === type);

const reservationsOf = (program: Program): Declaration[] => ofType(program, "IPReservation");

/** Resources with one address of a pool. */
const addressesOf = (program: Program): Declaration[] => [...reservationsOf(program), ...ofType(program, "StaticIP")];

const replaceOne = (program: Program, name: string, args: Declaration["args"]): Program =>
  program.map((each) => (each.name === name ? { ...each, args } : each));

/** The program's own pool that a reservation is in. */
function poolOf(program: Program, { args }: Declaration): Declaration | undefined {
  const { pool } = args;
  return isResourceReference(pool) ? program.find(({ name }) => name === pool.$resource) : undefined;
}

const withoutPin = ({ ip: _, port: __, ...args }: Declaration["args"]): Declaration["args"] => args;

/** Requests the value that another resource has. */
function pinTo(program: Program, each: Declaration, holder: string, id: number): Declaration["args"] {
  const key = poolOf(program, each)?.args.type === "nodePort" ? "port" : "ip";
  return { ...withoutPin(each.args), [key]: { $valueOf: holder, id } };
}

function add(program: Program, { random, naming, others }: EditContext): Program | undefined {
  const added = newReservation(random, naming, program, others);
  return added && [...program, added];
}

/** Reservations on any runner of the network wait for the new one, too. So it comes right after the network. */
function addRunner(program: Program, runners: Program): Program {
  return runners.reduce((others, runner) => {
    const { network } = runner.args;
    const at = others.findIndex(({ name }) => isResourceReference(network) && name === network.$resource);
    const waiting = others.map((each): Declaration => {
      const waits = each.type === "IPReservation" && isDeepStrictEqual(each.args.network, network);
      return waits ? { ...each, dependsOn: [...(each.dependsOn ?? []), runner.name] } : each;
    });
    return waiting.toSpliced(at + 1, 0, runner);
  }, program);
}

function remove(program: Program, { random }: EditContext): Program | undefined {
  const gone = random.chance(0.8) ? random.pick(reservationsOf(program)) : random.pick(program);
  return gone && withoutResource(program, gone.name);
}

function rename(program: Program, { random, naming }: EditContext): Program | undefined {
  const each = random.pick(program);
  if (!each) return undefined;
  const name = naming.name(each.type === "IPPool" ? "p" : "r");
  const renameIn = (arg: Arg): Arg => {
    if (typeof arg !== "object") return arg;
    if (isResourceReference(arg)) return arg.$resource === each.name ? { ...arg, $resource: name } : arg;
    if (Array.isArray(arg)) return arg.map(renameIn);
    return Object.fromEntries(Object.entries(arg).map(([key, value]) => [key, renameIn(value as Arg)]));
  };
  return program.map((other): Declaration => {
    if (other === each) return { ...other, name, aliases: [each.name, ...(each.aliases ?? [])] };
    const dependsOn = other.dependsOn?.map((former) => (former === each.name ? name : former));
    return { ...other, args: renameIn(other.args) as Declaration["args"], ...(dependsOn && { dependsOn }) };
  });
}

function pin(program: Program, { random }: EditContext): Program | undefined {
  const each = random.pick(addressesOf(program));
  const pool = each && poolOf(program, each);
  return pool && replaceOne(program, each.name, { ...withoutPin(each.args), ...pinIn(random, pool, 1) });
}

function pinToOwn(program: Program, { random, naming }: EditContext): Program | undefined {
  const each = random.pick(addressesOf(program).filter(({ args }) => args.ip === undefined && args.port === undefined));
  return each && replaceOne(program, each.name, pinTo(program, each, each.name, naming.valueId()));
}

function unpin(program: Program, { random }: EditContext): Program | undefined {
  const each = random.pick(addressesOf(program).filter(({ args }) => args.ip !== undefined || args.port !== undefined));
  return each && replaceOne(program, each.name, withoutPin(each.args));
}

/** Two resources of one pool. */
function pairOf(program: Program, random: Random): [Declaration, Declaration] | undefined {
  const one = random.pick(addressesOf(program));
  const pool = JSON.stringify(one?.args.pool);
  const other = random.pick(
    addressesOf(program).filter((each) => each !== one && JSON.stringify(each.args.pool) === pool),
  );
  return one && other && [one, other];
}

function swap(program: Program, { random, naming }: EditContext): Program | undefined {
  const pair = pairOf(program, random);
  if (!pair) return undefined;
  const [one, other] = pair;
  const half = replaceOne(program, one.name, pinTo(program, one, other.name, naming.valueId()));
  return replaceOne(half, other.name, pinTo(program, other, one.name, naming.valueId()));
}

function takeFromRemoved(program: Program, { random, naming }: EditContext): Program | undefined {
  const gone = random.pick(reservationsOf(program));
  if (!gone) return undefined;
  const { aliases: _, dependsOn: __, ...kept } = gone;
  const args = pinTo(program, gone, gone.name, naming.valueId());
  return [...withoutResource(program, gone.name), { ...kept, name: naming.name("r"), args }];
}

/** The other one keeps its requested value, or requests none. */
function takeFromOther(program: Program, { random, naming }: EditContext): Program | undefined {
  const pair = pairOf(program, random);
  if (!pair) return undefined;
  const [one, other] = pair;
  return replaceOne(program, one.name, pinTo(program, one, other.name, naming.valueId()));
}

function move(program: Program, { random }: EditContext): Program | undefined {
  const each = random.pick(reservationsOf(program));
  const pool = random.pick(ofType(program, "IPPool"));
  if (!each || !pool) return undefined;
  const { tenant: _, runner: __, ...rest } = withoutPin(each.args);
  const moved = { ...each, args: { ...rest, ...inPool(pool, false), ...pinIn(random, pool, 0.2) } };
  // After its pool, which may be declared later.
  return [...program.filter((other) => other !== each), moved];
}

function resize(program: Program, { random }: EditContext): Program | undefined {
  const pool = random.pick(ofType(program, "IPPool").filter(({ args }) => Array.isArray(args.ranges)));
  if (!pool) return undefined;
  const ranges = pool.args.ranges as string[];
  const by = random.pickOne([-1, -1, 1]);
  const resized = ranges.map((text) => text.replace(/\/(\d+)$/, (_, length) => `/${Number(length) + by}`));
  const [first] = ranges as [string];
  const grown =
    random.chance(0.3) && first.startsWith("10.") ? [...ranges, first.replace(/^(10\.\d+)\..*/, "$1.9.0/30")] : resized;
  return replaceOne(program, pool.name, { ...pool.args, ranges: [...new Set(grown)] });
}

/** Often with a new reservation in it: preview has to offer what the changed pool gives. */
function changePool(program: Program, { random, naming }: EditContext): Program | undefined {
  const pool = random.pick(ofType(program, "IPPool"));
  if (!pool) return undefined;
  const { ranges, type } = pool.args;
  const change = random.pickWeighted({
    type: 2,
    allocation: 2,
    quota: 1,
    reserved: 3,
    staticOnly: 1,
    unreserved: 1,
    autoAssign: 1,
    avoidBoundaryIps: 1,
  });
  const args = { ...pool.args };
  if (change === "type" && type !== "nodePort") args.type = random.pickOne(["container", "loadBalancer", "clusterIP"]);
  if (change === "allocation") args.allocation = random.pickOne(["hashed", "lowest", "random"]);
  if (change === "quota") args.quota = random.pickOne([{ maxReservations: 2 }, { maxIps: 6 }, { maxReservations: 8 }]);
  if ((change === "reserved" || change === "staticOnly") && Array.isArray(ranges)) {
    const address = addressIn(ranges, random.integer(0, 4));
    if (address !== undefined) args[change] = [address];
  }
  if (change === "unreserved") delete args.reserved;
  if (change === "autoAssign" || change === "avoidBoundaryIps") args[change] = random.chance(0.5);
  const changed = replaceOne(program, pool.name, args);
  if (random.chance(0.5)) return changed;
  const added = { ...inPool(pool, false), ...pinIn(random, pool, 0.3) };
  return [...changed, { type: "IPReservation", name: naming.name("r"), args: added }];
}

function changeDetails(program: Program, { random }: EditContext): Program | undefined {
  const each = random.pick(program);
  return each && replaceOne(program, each.name, { ...each.args, labels: { tier: random.pickOne(["a", "b", "c"]) } });
}
