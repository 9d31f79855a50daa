import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Lab } from "../lab/lab";
import { type TraceEvent, Workspace } from "../test/e2e/stack";
import { insideProvider, ratio, seconds, timed } from "./measure";
import { table } from "./table";

/**
 * `pulumi up` of a hub and 20 runners, beside the same program with resources that do nothing, and beside the floor of
 * doing it by hand: twelve ssh commands for each host, as many hosts at a time as Pulumi has calls.
 */
const RUNNERS = 20;
const AT_A_TIME = 8;
const COMMANDS = 12;

const OURS = `
  const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
  for (let i = 1; i <= ${RUNNERS}; i++) new overlay.RunnerSubnet("r" + i, { network, connection: at("r" + i) });
`;
const EMPTY = `
  const provider = { create: async (inputs) => ({ id: "x", outs: inputs }) };
  const first = new pulumi.dynamic.Resource({ create: provider.create }, "n0", { x: 1 });
  for (let i = 1; i <= ${RUNNERS}; i++) new pulumi.dynamic.Resource({ create: provider.create }, "n" + i, { x: first.id });
`;

export async function benchUp(): Promise<void> {
  const lab = await Lab.up({ runners: RUNNERS });
  const workspace = new Workspace(lab);
  try {
    const [ours, empty] = [await workspace.stack("ours"), await workspace.stack("empty", { project: "empty" })];
    empty.program(EMPTY);
    const emptyTime = await timed(() => empty.mustUp());
    ours.program(OURS);
    const createTime = await timed(() => ours.mustUp());
    const created = ours.trace();
    const unchangedTime = await timed(() => ours.mustUp());
    const unchanged = ours.trace();
    const byHand = await timed(() => twelveCommands(lab));
    report({
      lab,
      created,
      unchanged,
      createTime,
      unchangedTime,
      emptyTime,
      byHand,
      connections: await connections(lab),
    });
    await ours.destroy();
  } finally {
    await lab.down();
    workspace.remove();
  }
}

interface Measured {
  lab: Lab;
  created: TraceEvent[];
  unchanged: TraceEvent[];
  createTime: number;
  unchangedTime: number;
  emptyTime: number;
  byHand: number;
  connections: number[];
}

function report(m: Measured): void {
  const hub = m.lab.host("hub").address;
  const inside = insideProvider(m.created);
  const conversations = m.created.filter(({ conversation }) => conversation?.host === hub).length;
  console.log(
    table([
      ["1 hub + 20 runners", "seconds", "against"],
      ["pulumi up, created", seconds(m.createTime), `${ratio(m.createTime, m.emptyTime)} of empty resources`],
      ["  inside the provider", seconds(inside), `${ratio(inside, m.byHand)} of twelve ssh commands a host`],
      ["pulumi up, unchanged", seconds(m.unchangedTime), `${ratio(m.unchangedTime, m.emptyTime)} of empty resources`],
      ["  inside the provider", seconds(insideProvider(m.unchanged)), ""],
      ["pulumi up, empty resources", seconds(m.emptyTime), ""],
      [`${COMMANDS} ssh commands a host, ${AT_A_TIME} hosts at a time`, seconds(m.byHand), ""],
    ]),
  );
  console.log(`SSH connections for each host: ${Math.min(...m.connections)} to ${Math.max(...m.connections)}`);
  console.log(`Conversations with the hub: ${conversations} for ${RUNNERS} runners and the network`);
  const json = {
    runners: RUNNERS,
    createTime: m.createTime,
    unchangedTime: m.unchangedTime,
    emptyTime: m.emptyTime,
    byHand: m.byHand,
    inside,
    conversations,
    connections: m.connections,
  };
  console.log(JSON.stringify(json));
}

/** Logins that each host's sshd has seen, before the commands by hand. */
async function connections(lab: Lab): Promise<number[]> {
  const counts = lab.hosts.map(async ({ name }) => {
    const { stdout } = await lab.exec(name, "grep -c 'Accepted publickey' /run/sshd.log");
    return Number(stdout) - COMMANDS;
  });
  return Promise.all(counts);
}

async function twelveCommands(lab: Lab): Promise<void> {
  const script = join(lab.folder, "by-hand.sh");
  const lines = Array.from({ length: COMMANDS }, () => `ssh -F ${lab.sshConfig} "$1" ip link show lo >/dev/null`);
  writeFileSync(script, `set -e\n${lines.join("\n")}\n`);
  const input = lab.hosts.map(({ name }) => name).join("\n");
  const { code, stderr } = await lab.controller("xargs", ["-n", "1", "-P", String(AT_A_TIME), "sh", script], { input });
  if (code !== 0) throw new Error(`ssh by hand failed: ${stderr}`);
}
