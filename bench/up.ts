import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Lab } from "../lab/lab";
import { type Stack, type TraceEvent, Workspace } from "../test/e2e/stack";
import { ansiblePlaybook, CLEAN, runAnsible } from "./ansible";
import { measureTime, median, timeInProvider } from "./measure";
import { table } from "./table";

/**
 * `pulumi up` of a hub and its runners, created, unchanged and drifted, compared with the same work by Ansible, by twelve ssh
 * commands per host, and with resources that do nothing; the time in the provider, compared with one handshake and two round trips
 * per host. All with one number of hosts in one run, on the same hosts.
 */
const SIZES = [3, 20, 63];
const AT_A_TIME = 8;
const COMMANDS = 12;

const ours = (runners: number): string => `
  const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
  for (let i = 1; i <= ${runners}; i++) new overlay.RunnerSubnet("r" + i, { network, connection: at("r" + i) });
`;
const empty = (runners: number): string => `
  const provider = { create: async (inputs) => ({ id: "x", outs: inputs }) };
  const first = new pulumi.dynamic.Resource({ create: provider.create }, "n0", { x: 1 });
  for (let i = 1; i <= ${runners}; i++) new pulumi.dynamic.Resource({ create: provider.create }, "n" + i, { x: first.id });
`;

export async function benchUp(args: string[]): Promise<void> {
  const [flag, list] = args;
  const sizes = flag === "--hosts" && list ? list.split(",").map(Number) : SIZES;
  const ansible = ansiblePlaybook();
  const measured: Measured[] = [];
  for (const size of sizes) measured.push(await measure(size, ansible));
  for (const each of measured) report(each);
  console.log(JSON.stringify(measured));
}

interface Timed {
  wall: number;
  inside: number;
}

interface Measured {
  runners: number;
  created: Timed;
  unchanged: Timed;
  drifted: Timed;
  empty: number;
  byHand: number;
  floor: number;
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
    nothing.program(empty(runners));
    const emptyTime = await measureTime(() => nothing.mustUp());
    const floors = [await measureFloor(lab)];
    const before = await countLogins(lab);
    stack.program(ours(runners));
    const { events, ...created } = await runTraced(stack, () => stack.mustUp());
    const connections = (await countLogins(lab)).map((count, i) => count - before[i]!);
    floors.push(await measureFloor(lab));
    const { events: _, ...unchanged } = await runTraced(stack, () => stack.mustUp());
    await execOnAll(lab, "ip link del $(ip -o link show type vxlan | grep -oE 'ovl[0-9a-z]+' | head -n 1)");
    const { events: __, ...drifted } = await runTraced(stack, () => stack.mustUp("--refresh"));
    floors.push(await measureFloor(lab));
    const byHand = await measureTime(() => runTwelveCommands(lab));
    const hub = lab.host("hub").address;
    const hubConversations = events.filter(({ conversation }) => conversation?.host === hub).length;
    return {
      runners,
      created,
      unchanged,
      drifted,
      empty: emptyTime,
      byHand,
      floor: median(floors), // it is short, so it varies most
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
  return { wall, inside: timeInProvider(events), events };
}

function report(m: Measured): void {
  const row = (name: string, milliseconds: number | undefined, against = ""): string[][] =>
    milliseconds === undefined ? [] : [[name, (milliseconds / 1000).toFixed(2), against]];
  const times = (a: number | undefined, b: number, of: string) =>
    a === undefined ? "" : `${(a / b).toFixed(1)}× ${of}`;
  const state = (name: string, { wall, inside }: Timed, other: number | undefined, more = ""): string[][] => [
    ...row(
      `pulumi up, ${name}`,
      wall,
      [times(wall, m.empty, "of empty resources"), times(other, wall, "faster than Ansible")]
        .filter(Boolean)
        .join("; "),
    ),
    ...row(
      "  inside the provider",
      inside,
      [times(inside, m.floor, "of the floor"), times(other, inside, "faster than Ansible"), more]
        .filter(Boolean)
        .join("; "),
    ),
  ];
  console.log(
    table([
      [`1 hub + ${m.runners} runners`, "seconds", "against"],
      ...state("created", m.created, m.ansibleCreated, times(m.byHand, m.created.inside, "faster than by hand")),
      ...state("unchanged", m.unchanged, m.ansibleUnchanged),
      ...state("drifted, with --refresh", m.drifted, m.ansibleUnchanged),
      ...row("pulumi up, empty resources", m.empty),
      ...row("floor: a handshake and two round trips a host", m.floor),
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

async function measureFloor(lab: Lab): Promise<number> {
  const options = {
    hosts: lab.hosts.map(({ address }) => address),
    key: lab.privateKeyPath,
    knownHosts: lab.knownHosts,
  };
  const side = ["--import", pathToFileURL(require.resolve("tsx")).href, join(__dirname, "floor-side.ts")];
  const { code, stdout, stderr } = await lab.controller(process.execPath, [...side, JSON.stringify(options)]);
  if (code !== 0) throw new Error(stderr);
  return Number(stdout);
}

async function runTwelveCommands(lab: Lab): Promise<void> {
  const script = join(lab.folder, "by-hand.sh");
  const lines = Array.from({ length: COMMANDS }, () => `ssh -F ${lab.sshConfig} "$1" ip link show lo >/dev/null`);
  writeFileSync(script, `set -e\n${lines.join("\n")}\n`);
  const input = lab.hosts.map(({ name }) => name).join("\n");
  const { code, stderr } = await lab.controller("xargs", ["-n", "1", "-P", String(AT_A_TIME), "sh", script], { input });
  if (code !== 0) throw new Error(`ssh by hand failed: ${stderr}`);
}
