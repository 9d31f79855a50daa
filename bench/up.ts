import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Lab } from "../lab/lab";
import { type Stack, type TraceEvent, Workspace } from "../test/e2e/stack";
import { ansiblePlaybook, CLEAN, runAnsible } from "./ansible";
import { type Floors, measureTime, median as medianOf, seconds, timeInProvider } from "./measure";
import { table } from "./table";

/**
 * `pulumi up` of a hub and its runners, created, unchanged, refreshed and drifted, compared with the same work by Ansible, by twelve ssh
 * commands per host, and with resources that do nothing, with the same resources without Pulumi, and with the floor (`floor-side.ts`). All with one number of hosts in one run, on the same hosts.
 */
const SIZES = [3, 20, 63];
const AT_A_TIME = 8;
const COMMANDS = 12;
const FLOOR_ROUNDS = 3;
/** Pulumi's default is four for each core of this machine, so that the hosts are configured in groups. */
const PARALLEL = ["--parallel", "64"];

const ours = (runners: number): string => `
  const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
  for (let i = 1; i <= ${runners}; i++) new overlay.RunnerSubnet("r" + i, { network, connection: at("r" + i) });
`;
const emptyProgram = (runners: number): string => `
  const provider = { create: async (inputs) => ({ id: "x", outs: inputs }) };
  const first = new pulumi.dynamic.Resource({ create: provider.create }, "n0", { x: 1 });
  for (let i = 1; i <= ${runners}; i++) new pulumi.dynamic.Resource({ create: provider.create }, "n" + i, { x: first.id });
`;

export async function benchUp(args: string[]): Promise<void> {
  const [flag, list] = args;
  const sizes = flag === "--hosts" && list ? list.split(",").map(Number) : SIZES;
  const ansible = ansiblePlaybook();
  const measured: Measured[] = [];
  for (const size of sizes) {
    const each = await measure(size, ansible);
    report(each);
    measured.push(each);
  }
  console.log(JSON.stringify(measured));
}

interface Timed {
  wall: number;
  inside: number;
  /** CPU time of the provider. */
  node: number;
}

interface Measured {
  runners: number;
  created: Timed;
  unchanged: Timed;
  refreshed: Timed;
  drifted: Timed;
  /** The same commands with resources that do nothing. */
  empty: { created: number; unchanged: number; refreshed: number };
  byHand: number;
  floors: Floors[];
  ansibleCreated?: number;
  ansibleUnchanged?: number;
  connections: number[];
  hubConversations: number;
}

async function measure(runners: number, ansible: string | undefined): Promise<Measured> {
  const lab = await Lab.up({ runners });
  const workspace = new Workspace(lab);
  try {
    const others = ansible ? await measureAnsible(lab, ansible) : {};
    const [stack, nothing] = [await workspace.stack("ours"), await workspace.stack("empty", { project: "empty" })];
    nothing.program(emptyProgram(runners));
    const refresh = (one: Stack) =>
      one.must("refresh", "--yes", "--skip-preview", "--expect-no-changes", "--stack", one.name, ...PARALLEL);
    const empty = {
      created: await measureTime(() => nothing.mustUp(...PARALLEL)),
      unchanged: await measureTime(() => nothing.mustUp(...PARALLEL)),
      refreshed: await measureTime(() => refresh(nothing)),
    };
    const floors = await measureFloors(lab);
    const before = await countLogins(lab);
    stack.program(ours(runners));
    const { events, ...created } = await runTraced(stack, () => stack.mustUp(...PARALLEL));
    const connections = (await countLogins(lab)).map((count, i) => count - before[i]!);
    const { events: _, ...unchanged } = await runTraced(stack, () => stack.mustUp(...PARALLEL));
    const { events: ___, ...refreshed } = await runTraced(stack, () => refresh(stack));
    await execOnAll(lab, "ip link del $(ip -o link show type vxlan | grep -oE 'ovl[0-9a-z]+' | head -n 1)");
    const { events: __, ...drifted } = await runTraced(stack, () => stack.mustUp("--refresh", ...PARALLEL));
    await stack.destroy();
    floors.push(...(await measureFloors(lab)));
    const byHand = await measureTime(() => runTwelveCommands(lab));
    const hub = lab.host("hub").address;
    const hubConversations = events.filter(({ conversation }) => conversation?.host === hub).length;
    return {
      runners,
      created,
      unchanged,
      refreshed,
      drifted,
      empty,
      byHand,
      floors,
      ...others,
      connections,
      hubConversations,
    };
  } finally {
    await lab.down();
    workspace.remove();
  }
}

async function measureAnsible(lab: Lab, program: string) {
  const run = () => measureTime(() => runAnsible(lab, program, AT_A_TIME));
  const times = { ansibleCreated: await run(), ansibleUnchanged: await run() };
  await execOnAll(lab, CLEAN);
  return times;
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
  const row = (name: string, milliseconds: number | undefined, against = ""): string[][] =>
    milliseconds === undefined ? [] : [[name, (milliseconds / 1000).toFixed(2), against]];
  const times = (a: number | undefined, b: number, of: string) =>
    a === undefined ? "" : `${(a / b).toFixed(1)}× ${of}`;
  const median = (pick: (floors: Floors) => number): number => medianOf(m.floors.map(pick));
  const [connected, created, refreshed] = [
    median((each) => each.connected),
    median((each) => each.created),
    median((each) => each.refreshed),
  ];
  const command = (
    name: string,
    { wall, inside, node }: Timed,
    floor: number,
    other: number | undefined,
  ): string[][] => [
    ...row(
      name,
      wall,
      [times(wall, floor, "of the floor and Pulumi itself"), times(other, wall, "faster than Ansible")]
        .filter(Boolean)
        .join("; "),
    ),
    ...row(
      "  inside the provider",
      inside,
      [times(other, inside, "faster than Ansible"), `Node ${seconds(node)} s CPU`].filter(Boolean).join("; "),
    ),
  ];
  const withoutPulumi = (name: "created" | "refreshed", floor: number): string[][] => {
    const wall = median((each) => each.withoutPulumi[name].wall);
    const node = median((each) => each.withoutPulumi[name].node);
    return row(
      `${name} in one process, without Pulumi`,
      wall,
      `${times(wall, floor, "of the floor")}; Node ${seconds(node)} s CPU`,
    );
  };
  console.log(
    table([
      [`1 hub + ${m.runners} runners`, "seconds", "against"],
      ...command("pulumi up, created", m.created, m.empty.created + created, m.ansibleCreated),
      ...command("pulumi up, unchanged", m.unchanged, m.empty.unchanged, m.ansibleUnchanged),
      ...command("pulumi refresh, unchanged", m.refreshed, m.empty.refreshed + refreshed, m.ansibleUnchanged),
      ...command("pulumi up --refresh, drifted", m.drifted, m.empty.created + created, m.ansibleUnchanged),
      ...withoutPulumi("created", created),
      ...withoutPulumi("refreshed", refreshed),
      ...row("pulumi up, empty resources", m.empty.created),
      ...row("pulumi up, empty resources, unchanged", m.empty.unchanged),
      ...row("pulumi refresh, empty resources", m.empty.refreshed),
      ...row("floor of a create: connections, and the scripts once", created),
      ...row("floor of a refresh", refreshed),
      ...row("  only connections", connected),
      ...row(`${COMMANDS} ssh commands a host, ${AT_A_TIME} hosts at a time`, m.byHand),
      ...row(`Ansible, pipelining, ${AT_A_TIME} forks, created`, m.ansibleCreated),
      ...row("Ansible, unchanged", m.ansibleUnchanged),
    ]),
  );
  console.log(`SSH connections for each host: ${Math.min(...m.connections)} to ${Math.max(...m.connections)}`);
  console.log(`Conversations with the hub: ${m.hubConversations} for ${m.runners} runners and the network\n`);
}

/** The number of logins of each host's sshd. */
const countLogins = (lab: Lab): Promise<number[]> =>
  Promise.all(
    lab.hosts.map(async ({ name }) =>
      Number((await lab.exec(name, "grep -c 'Accepted publickey' /run/sshd.log")).stdout),
    ),
  );

/** On hosts without a network. */
async function measureFloors(lab: Lab): Promise<Floors[]> {
  const options = {
    hosts: lab.hosts.map(({ address }) => address),
    key: lab.privateKeyPath,
    knownHosts: lab.knownHosts,
    rounds: FLOOR_ROUNDS,
  };
  const side = ["--import", pathToFileURL(require.resolve("tsx")).href, join(__dirname, "floor-side.ts")];
  const { code, stdout, stderr } = await lab.controller(process.execPath, [...side, JSON.stringify(options)]);
  if (code !== 0) throw new Error(stderr);
  return JSON.parse(stdout) as Floors[];
}

async function runTwelveCommands(lab: Lab): Promise<void> {
  const script = join(lab.folder, "by-hand.sh");
  const lines = Array.from({ length: COMMANDS }, () => `ssh -F ${lab.sshConfig} "$1" ip link show lo >/dev/null`);
  writeFileSync(script, `set -e\n${lines.join("\n")}\n`);
  const input = lab.hosts.map(({ name }) => name).join("\n");
  const { code, stderr } = await lab.controller("xargs", ["-n", "1", "-P", String(AT_A_TIME), "sh", script], { input });
  if (code !== 0) throw new Error(`ssh by hand failed: ${stderr}`);
}
