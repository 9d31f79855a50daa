import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { openIpam } from "../../provider/ipam";
import { type Stack, Workspace } from "./stack";

/** Changes of a live stack. Values stay as intended, and the network is never removed: devices keep their ifindex. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 4 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

const network = (more = ""): string =>
  `const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub"), ${more} });`;
const runner = (name: string, args = "", opts = ""): string =>
  `new overlay.RunnerSubnet("${name}", { network, connection: at("r1"), ${args} }, { ${opts} });`;
const second = `new overlay.RunnerSubnet("r2", { network, connection: at("r2") });`;

/** The devices of hub and r1 with their ifindex: a device that was deleted and created again has another one. */
async function live(): Promise<string> {
  const list = "ip -o link show | grep -oE '^[0-9]+: (ovl|kohaku)[0-9a-z-]*' | sort";
  return (await lab.exec("hub", list)).stdout + (await lab.exec("r1", list)).stdout;
}

const values = async (): Promise<Record<string, unknown>> =>
  Object.fromEntries(
    Object.entries(await stack.state()).map(([name, { outputs }]) => [name, outputs.subnet ?? outputs.cidr]),
  );

const urn = (type: string, name: string): string =>
  `urn:pulumi:dev::e2e::pulumi-nodejs:dynamic/overlay:${type}::${name}`;

let devices: string;

test("a runner renamed with an alias keeps its subnet, and no host is contacted", async () => {
  stack.program(network() + runner("r1") + second);
  await stack.mustUp();
  devices = await live();
  const { r1: subnet } = await values();
  stack.trace();
  stack.program(network() + runner("one", "", `aliases: [{ name: "r1" }]`) + second);
  await stack.mustUp();
  expect(stack.trace().filter(({ conversation }) => conversation)).toEqual([]);
  expect((await values()).one).toBe(subnet);
  const { outputs } = (await stack.state()).one!;
  expect(outputs).toMatchObject({ runnerName: "r1", __owner: expect.stringMatching(/::one$/) });
  expect(await live()).toBe(devices);
});

test("a forced replacement of each resource, with equal inputs, keeps values and devices", async () => {
  const before = await values();
  await stack.mustUp("--replace", urn("OverlayNetwork", "training"));
  await stack.mustUp("--replace", urn("RunnerSubnet", "one"));
  expect(await values()).toEqual(before);
  expect((await stack.state()).one!.outputs.runnerName).toBe("r1");
  expect(await live()).toBe(devices);
  await stack.mustUp("--expect-no-changes");
});

test("a resource that was deleted only from the state gets its lease again", async () => {
  const before = await values();
  await stack.must("state", "delete", "--yes", "--stack", "dev", urn("RunnerSubnet", "one"));
  await stack.mustUp();
  expect(await values()).toEqual(before);
  expect(await live()).toBe(devices);
});

test("a lost lease is claimed again; refresh shows it, and the network stays", async () => {
  const before = await values();
  const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
  await pool.release("network/training", String((await stack.state()).one!.outputs.leaseId));
  await pool.end();
  const text = await stack.must("preview", "--refresh", "--diff", "--stack", "dev");
  expect(text).toContain("is no longer in the store");
  await stack.mustUp("--refresh");
  expect(await values()).toEqual(before);
  expect(await live()).toBe(devices);
  await stack.mustUp("--refresh", "--expect-no-changes");
});

test("--target changes one runner and not the other", async () => {
  stack.trace();
  stack.program(
    network() +
      runner("one", "mtu: 1400", `aliases: [{ name: "r1" }]`) +
      second.replace('at("r2")', 'at("r2"), mtu: 1400'),
  );
  await stack.mustUp("--target", urn("RunnerSubnet", "one"));
  const state = await stack.state();
  expect(state.one!.outputs.effectiveMtu).toBe(1400);
  expect(state.r2!.outputs.effectiveMtu).toBe(1450);
  expect(stack.trace().some(({ conversation }) => conversation?.host === lab.host("r2").address)).toBe(false);
  expect(await live()).toBe(devices);
});

// Pulumi itself tells children apart by the types of their parents.
test("equal child names under two components are two runners", async () => {
  stack.program(`${network()}${runner("one", "mtu: 1400")}${second}
    for (const [team, host] of [["a", "r3"], ["b", "r4"]]) {
      const parent = new pulumi.ComponentResource("teams:index:" + team, team);
      new overlay.RunnerSubnet("node", { network, runnerName: "node-" + team, connection: at(host) }, { parent });
    }
  `);
  const planned = (await stack.preview()).filter(({ name }) => name === "node");
  expect(new Set(planned.map(({ inputs }) => inputs.runnerId)).size).toBe(2);
  await stack.mustUp();
  const text = await stack.must("stack", "export", "--stack", "dev");
  const nodes = JSON.parse(text).deployment.resources.filter((r: { urn: string }) => r.urn.endsWith("::node"));
  expect(nodes.map((r: { outputs: { runnerId: number } }) => r.outputs.runnerId).sort()).toEqual(
    planned.map(({ inputs }) => inputs.runnerId).sort(),
  );
  stack.program(network() + runner("one", "mtu: 1400") + second);
  await stack.mustUp();
});

test("a foreign device of our name is refused and not changed", async () => {
  await lab.exec("hub", "ip link add ovl5 type vxlan id 7 dstport 4789 remote 10.254.9.9");
  stack.program(`${network()}${runner("one", "mtu: 1400")}${second}
    new overlay.RunnerSubnet("r3", { network, connection: at("r3"), runnerId: 5 });`);
  const { code, text } = await stack.up();
  expect(code).not.toBe(0);
  expect(text).toMatch(
    /DEVICE_FOREIGN: 10\.254\.0\.1: There is already a device ovl5 \(vxlan, VNI 7\), and it is not in our records/,
  );
  expect((await lab.exec("hub", "ip -d link show ovl5")).stdout).toContain("vxlan id 7 remote 10.254.9.9");
  await lab.exec("hub", "ip link del ovl5");
  await stack.mustUp();
});

test("a network with runners can be replaced: they are deleted first and created again in the new range", async () => {
  stack.program(network(`subnets: "10.64.0.0/12/6/14"`) + runner("one", "mtu: 1400") + second);
  await stack.mustUp();
  expect(await values()).toMatchObject({ training: "10.64.0.0/12", one: expect.stringMatching(/^10\.64\./) });
  expect((await lab.exec("r2", "ping -c 1 -W 10 10.64.0.1")).code).toBe(0);
  await stack.destroy();
  for (const { name } of lab.hosts) expect(`${name}: ${await findLeftovers(lab, name)}`).toBe(`${name}: `);
});
