import { loadavg } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { Lab } from "../lab/lab";
import { type Stack, type TraceEvent, Workspace } from "../test/e2e/stack";
import { type Floors, measureTime, median as medianOf, raisePriority, seconds, timeInProvider } from "./measure";
import { CLEAN, expectPings, PATHS, type Path, title } from "./networks";
import { installOthers, OTHERS, type Other, runOther } from "./others";
import { table } from "./table";

/**
 * `pulumi up` of a hub and its runners, created, unchanged, refreshed, drifted and with one more runner, for each kind of network. Compared with the same
 * network by Ansible and pyinfra, with resources that do nothing, with the same resources without Pulumi, and with the floor (`floor-side.ts`),
 * in one run on the same hosts. After each create, and with one more runner, pings must pass. `bench -- up [--hosts 3,20] [--networks vxlan-hub,wireguard-mesh] [--others Ansible,pyinfra]`.
 */
const SIZES = "3,20,63";
const FLOOR_ROUNDS = 3;
/** Pulumi's default is four for each core of this machine, so that the hosts are configured in groups. */
const PARALLEL = ["--parallel", "64"];

const ours = ({ tunnel, topology }: Path, runners: number): string => `
  const network = new overlay.OverlayNetwork("training", { tunnel: "${tunnel}", topology: "${topology}", hubConnection: at("hub") });
  for (let i = 1; i <= ${runners}; i++) new overlay.RunnerSubnet("r" + i, { network, connection: at("r" + i) });
`;
const emptyProgram = (runners: number): string => `
  const provider = { create: async (inputs) => ({ id: "x", outs: inputs }) };
  const first = new pulumi.dynamic.Resource({ create: provider.create }, "n0", { x: 1 });
  for (let i = 1; i <= ${runners}; i++) new pulumi.dynamic.Resource({ create: provider.create }, "n" + i, { x: first.id });
`;

const nameOf = ({ tunnel, topology }: Path): string => `${tunnel}-${topology}`;

export async function benchUp(args: string[]): Promise<void> {
  const { values } = parseArgs({
    args,
    options: {
      hosts: { type: "string", default: SIZES },
      networks: { type: "string", default: PATHS.map(nameOf).join() },
      others: { type: "string", default: OTHERS.join() },
    },
  });
  const chosen = values.networks.split(",");
  const paths = PATHS.filter((path) => chosen.includes(nameOf(path)));
  if (paths.length < chosen.length) throw new Error(`--networks ${PATHS.map(nameOf).join()}`);
  const wanted = values.others.split(",");
  const others = installOthers() ? OTHERS.filter((other) => wanted.includes(other)) : [];
  raisePriority();
  const measured: Measured[] = [];
  for (const runners of values.hosts.split(",").map(Number)) {
    for (const path of paths) {
      const each = await measure(path, runners, others);
      report(each);
      measured.push(each);
    }
  }
  console.log(JSON.stringify(measured));
}

interface Timed {
  wall: number;
  inside: number;
  /** CPU time of the provider. */
  node: number;
}

/** Times of the same work by others. `failed`: why there are none. */
type OtherTimes = { created: number; unchanged: number; oneMore: number } | { failed: string };

interface Measured {
  network: string;
  runners: number;
  /** Average of the last minute before and after. */
  load: [number, number];
  created: Timed;
  unchanged: Timed;
  refreshed: Timed;
  drifted: Timed;
  oneMore: Timed;
  /** The same commands with resources that do nothing. */
  empty: { created: number; unchanged: number; refreshed: number };
  floors: Floors[];
  others: [Other, OtherTimes][];
  connections: number[];
  hubConversations: number;
}

async function measure(path: Path, runners: number, others: readonly Other[]): Promise<Measured> {
  const before = loadavg()[0]!;
  const lab = await Lab.up({ runners: runners + 1 });
  const workspace = new Workspace(lab);
  try {
    const network = title(path);
    const empty = await measureEmpty(await workspace.stack("empty", { project: "empty" }), runners);
    const floors = await measureFloors(lab, path, runners);
    const times = await measureOurs(await workspace.stack("ours"), path, runners);
    floors.push(...(await measureFloors(lab, path, runners)));
    const byOthers: Measured["others"] = [];
    for (const other of others) byOthers.push([other, await measureOther(other, lab, path, runners)]);
    return { network, runners, load: [before, loadavg()[0]!], ...times, empty, floors, others: byOthers };
  } finally {
    await lab.down();
    workspace.remove();
  }
}

const refresh = (stack: Stack): Promise<string> =>
  stack.must("refresh", "--yes", "--skip-preview", "--expect-no-changes", "--stack", stack.name, ...PARALLEL);

async function measureEmpty(stack: Stack, runners: number): Promise<Measured["empty"]> {
  stack.program(emptyProgram(runners));
  return {
    created: await measureTime(() => stack.mustUp(...PARALLEL)),
    unchanged: await measureTime(() => stack.mustUp(...PARALLEL)),
    refreshed: await measureTime(() => refresh(stack)),
  };
}

async function measureOurs(stack: Stack, path: Path, runners: number) {
  const { lab } = stack.workspace;
  const up = (...args: string[]) => runTraced(stack, () => stack.mustUp(...PARALLEL, ...args));
  const before = await countLogins(lab);
  stack.program(ours(path, runners));
  const { events, ...created } = await up();
  const connections = (await countLogins(lab)).map((count, i) => count - before[i]!).slice(0, runners + 1);
  await expectPings(lab, runners);
  const { events: _, ...unchanged } = await up();
  const { events: __, ...refreshed } = await runTraced(stack, () => refresh(stack));
  await execOnAll(lab, "ip link del $(ls /sys/class/net | grep -E '^ovl[0-9W]' | head -n 1)");
  const { events: ___, ...drifted } = await up("--refresh");
  stack.program(ours(path, runners + 1));
  const { events: ____, ...oneMore } = await up();
  await expectPings(lab, runners + 1);
  await stack.destroy();
  const hub = lab.host("hub").address;
  const hubConversations = events.filter(({ conversation }) => conversation?.host === hub).length;
  return { created, unchanged, refreshed, drifted, oneMore, connections, hubConversations };
}

async function measureOther(other: Other, lab: Lab, path: Path, runners: number): Promise<OtherTimes> {
  try {
    const created = await measureTime(() => runOther(other, lab, path, runners));
    await expectPings(lab, runners);
    const unchanged = await measureTime(() => runOther(other, lab, path, runners));
    const oneMore = await measureTime(() => runOther(other, lab, path, runners + 1));
    await expectPings(lab, runners + 1);
    return { created, unchanged, oneMore };
  } catch (error) {
    return { failed: (error as Error).message };
  } finally {
    await execOnAll(lab, CLEAN);
  }
}

const execOnAll = (lab: Lab, script: string) => Promise.all(lab.hosts.map(({ name }) => lab.exec(name, script)));

async function runTraced(stack: Stack, act: () => Promise<unknown>): Promise<Timed & { events: TraceEvent[] }> {
  stack.trace();
  const wall = await measureTime(act);
  const events = stack.trace();
  const node = Math.max(...events.map(({ cpu }) => cpu ?? 0));
  return { wall, inside: timeInProvider(events), node, events };
}

function report(m: Measured): void {
  const times = (a: number, b: number, of: string): string => `${(a / b).toFixed(1)}× ${of}`;
  const median = (pick: (floors: Floors) => number): number => medianOf(m.floors.map(pick));
  const connected = median((each) => each.connected);
  const floor = { created: median((each) => each.created), refreshed: median((each) => each.refreshed) };
  const row = (name: string, milliseconds: number, against = ""): string[] => [name, seconds(milliseconds), against];
  const command = (name: string, { wall, inside, node }: Timed, against = ""): string[][] => [
    row(name, wall, against),
    row("  inside the provider", inside, `Node ${seconds(node)} s CPU`),
  ];
  const withoutPulumi = (name: keyof typeof floor): string[] => {
    const wall = median((each) => each.withoutPulumi[name].wall);
    const node = median((each) => each.withoutPulumi[name].node);
    return row(
      `${name} in one process, without Pulumi`,
      wall,
      `${times(wall, floor[name], "the floor")}; Node ${seconds(node)} s CPU`,
    );
  };
  const withPulumi = (name: keyof typeof floor): string =>
    times(m[name].wall, floor[name] + m.empty[name], "the floor and Pulumi itself");
  const byOther = ([name, made]: [Other, OtherTimes]): string[][] =>
    "failed" in made
      ? [[name, "", `failed: ${made.failed}`]]
      : (["created", "unchanged", "oneMore"] as const).map((key) =>
          row(`${name}, ${LABELS[key]}`, made[key], times(made[key], m[key].wall, "ours")),
        );
  const rows = [
    ...command("pulumi up, created", m.created, withPulumi("created")),
    ...command("pulumi up, unchanged", m.unchanged),
    ...command("pulumi refresh, unchanged", m.refreshed, withPulumi("refreshed")),
    ...command("pulumi up --refresh, drifted", m.drifted),
    ...command("pulumi up, one more runner", m.oneMore),
    withoutPulumi("created"),
    withoutPulumi("refreshed"),
    row("pulumi up, empty resources", m.empty.created),
    row("pulumi up, empty resources, unchanged", m.empty.unchanged),
    row("pulumi refresh, empty resources", m.empty.refreshed),
    row("floor of a create: connections, and the scripts once", floor.created),
    row("floor of a refresh", floor.refreshed),
    row("  only connections", connected),
    ...m.others.flatMap(byOther),
  ];
  console.log(table([[`${m.network}: 1 hub + ${m.runners} runners`, "seconds", "against"], ...rows]));
  console.log(`Load of this machine: ${m.load.map((load) => load.toFixed(1)).join(" before, ")} after`);
  console.log(`SSH connections for each host: ${Math.min(...m.connections)} to ${Math.max(...m.connections)}`);
  console.log(`Conversations with the hub: ${m.hubConversations} for ${m.runners} runners and the network\n`);
}

const LABELS = { created: "created", unchanged: "unchanged", oneMore: "one more runner" };

/** The number of logins of each host's sshd. */
const countLogins = (lab: Lab): Promise<number[]> =>
  Promise.all(
    lab.hosts.map(async ({ name }) =>
      Number((await lab.exec(name, "grep -c 'Accepted publickey' /run/sshd.log")).stdout),
    ),
  );

/** On hosts without a network. */
async function measureFloors(lab: Lab, path: Path, runners: number): Promise<Floors[]> {
  const options = {
    path,
    hosts: lab.hosts.slice(0, runners + 1).map(({ address }) => address),
    key: lab.privateKeyPath,
    knownHosts: lab.knownHosts,
    rounds: FLOOR_ROUNDS,
  };
  const side = ["--import", pathToFileURL(require.resolve("tsx")).href, join(__dirname, "floor-side.ts")];
  const { code, stdout, stderr } = await lab.controller(process.execPath, [...side, JSON.stringify(options)]);
  if (code !== 0) throw new Error(stderr);
  return JSON.parse(stdout) as Floors[];
}
