import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { openIpam } from "../../provider/ipam";
import { Stack, Workspace } from "./stack";

/** One overlay from its first preview to destroy, with the real CLI on hosts of the lab. Tests build on each other. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

const RUNNERS = ["r1", "r2", "r3"];
const PROGRAM = `
  const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
  const runners = ${JSON.stringify(RUNNERS)}.map((name) => new overlay.RunnerSubnet(name, { network, connection: at(name) }));
  return Object.fromEntries(runners.map((r, i) => ["r" + (i + 1), { subnet: r.subnet, firstIp: r.firstIp, gateway: r.gateway }]));
`;
const VALUES = [
  "runnerId",
  "subnet",
  "gateway",
  "hubIp",
  "firstIp",
  "lastIp",
  "usableIps",
  "vni",
  "hubDevice",
  "runnerDevice",
  "bridge",
];

const pick = (values: Record<string, unknown>): unknown[] => VALUES.map((key) => values[key]);
const address = (host: string): string => lab.host(host).address;

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
  stack.program(PROGRAM);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

let promised: Record<string, unknown[]>;

test("the first preview shows every value of every resource, twice the same, and contacts no host", async () => {
  const steps = await stack.preview();
  const again = await stack.preview();
  expect(steps.map(({ op, name }) => `${op} ${name}`).sort()).toEqual([
    "create r1",
    "create r2",
    "create r3",
    "create training",
  ]);
  expect(steps.find(({ name }) => name === "training")!.inputs).toMatchObject({
    cidr: "10.128.0.0/12",
    hubIp: "10.128.0.1",
    maxRunners: 63,
  });
  const valuesOf = (of: typeof steps) =>
    Object.fromEntries(of.filter(({ name }) => name !== "training").map(({ name, inputs }) => [name, pick(inputs)]));
  promised = valuesOf(steps);
  expect(valuesOf(again)).toEqual(promised);
  expect(
    Object.values(promised)
      .map(([id]) => id)
      .sort(),
  ).toEqual([1, 2, 3]);
  expect(Stack.writes(stack.trace())).toEqual({});
});

test("up gives the values that preview showed, with one SSH connection for each host", async () => {
  await stack.mustUp();
  const state = await stack.state();
  for (const name of RUNNERS) expect(pick(state[name]!.outputs)).toEqual(promised[name]);
  expect(state.r1!.outputs).toMatchObject({ effectiveMtu: 1450, effectiveUnderlayIp: address("r1"), drift: [] });
  for (const { name } of lab.hosts) {
    const { stdout } = await lab.exec(name, "grep -c 'Accepted publickey' /run/sshd.log");
    expect(`${name}: ${stdout.trim()}`).toBe(`${name}: 1`);
  }
  stack.trace();
});

test("containers on two runners reach each other and the hub with full-size packets", async () => {
  const outputs = JSON.parse(await stack.must("stack", "output", "--json")) as Record<
    string,
    { subnet: string; firstIp: string; gateway: string }
  >;
  for (const name of ["r1", "r2"]) {
    const { subnet, firstIp, gateway } = outputs[name]!;
    await lab.container(name, "job", {
      bridge: "overlay-br",
      address: `${firstIp}/${subnet.split("/")[1]}`,
      gateway,
    });
  }
  for (const [from, to] of [
    ["r1", outputs.r2!.firstIp],
    ["r2", outputs.r1!.firstIp],
    ["r1", "10.128.0.1"],
  ] as const) {
    const { stdout } = await lab.exec(from, `ip netns exec job ping -q -c 3 -i 0.2 -M do -s 1422 ${to}`);
    expect(stdout).toContain(" 0% packet loss");
  }
  const unreachable = await lab.exec("r1", "ip netns exec job ping -c 1 -W 1 10.143.0.9");
  expect(unreachable.stdout).toMatch(/Unreachable/i);
});

test("a second up changes nothing and contacts no host", async () => {
  expect(await stack.mustUp("--expect-no-changes")).toContain("unchanged");
  expect(stack.trace().filter(({ conversation }) => conversation)).toEqual([]);
});

test("the private key is nowhere in plain text, and the state has no code but a constant line", async () => {
  const key = lab.privateKey.split("\n")[2]!;
  expect(await stack.reveals(key)).toBe(false);
  for (const { name } of lab.hosts) {
    const { stdout } = await lab.exec(name, `grep -rlF '${key}' /var/lib /run /tmp /etc 2>/dev/null`);
    expect(stdout).toBe("");
  }
  expect((await stack.state()).r1!.outputs.__provider).toBe(
    'exports.handler = () => require("pulumi-overlay/runtime").provider("RunnerSubnet");',
  );
});

const DRIFT: [what: string, host: string, spoil: string, drift: RegExp][] = [
  ["a deleted tunnel", "hub", "ip link del ovl1", /10\.254\.0\.1: link ovl1: missing/],
  [
    "a changed remote",
    "r2",
    "ip link set VXLAN type vxlan id VNI remote 10.254.9.9",
    /10\.254\.1\.2: link ovl\d: remote is 10\.254\.9\.9, should be 10\.254\.0\.1/,
  ],
  [
    "a flushed chain",
    "r3",
    "iptables -F OVERLAY-FWD",
    /10\.254\.1\.3: rule '-i overlay-br -o overlay-br -j ACCEPT' in OVERLAY-FWD \(IPv4 filter\): missing/,
  ],
  [
    "a lost address",
    "r1",
    "ip addr flush dev overlay-br scope global",
    /10\.254\.1\.1: address 10\.128\.\d+\.1\/18 on overlay-br: missing/,
  ],
];

test("drift in kernels: refresh names host, item and difference; up repairs exactly that", async () => {
  for (const [, host, spoil] of DRIFT) {
    const { outputs } = (await stack.state())[host === "hub" ? "r1" : host]!;
    const { code, stderr } = await lab.exec(
      host,
      spoil.replace("VXLAN", String(outputs.runnerDevice)).replace("VNI", String(outputs.vni)),
    );
    expect(`${code} ${stderr}`).toBe("0 ");
  }
  const before = await lab.exec("r2", "cat /sys/class/net/overlay-br/ifindex");
  const preview = await stack.must("preview", "--refresh", "--diff", "--stack", "dev");
  for (const [what, , , drift] of DRIFT) expect(`${what}: ${drift.test(preview)}`).toBe(`${what}: true`);
  expect(Stack.writes(stack.trace())).toEqual({
    [address("hub")]: 0,
    [address("r1")]: 0,
    [address("r2")]: 0,
    [address("r3")]: 0,
  });
  await stack.mustUp("--refresh");
  const writes = Stack.writes(stack.trace());
  expect(writes).toEqual({ [address("hub")]: 2, [address("r1")]: 3, [address("r2")]: 1, [address("r3")]: 3 });
  expect((await lab.exec("r2", "cat /sys/class/net/overlay-br/ifindex")).stdout).toBe(before.stdout);
  await stack.must("preview", "--refresh", "--expect-no-changes", "--stack", "dev");
});

test("with drift on one host the others get no write", async () => {
  stack.trace();
  await lab.exec("r2", "iptables -F OVERLAY-FWD");
  await stack.mustUp("--refresh");
  const { [address("r2")]: mended, ...others } = Stack.writes(stack.trace());
  expect(mended).toBe(3);
  expect(Object.values(others).every((writes) => writes === 0)).toBe(true);
});

test("a host rebuilt under the same name keeps id and subnet", async () => {
  const before = pick((await stack.state()).r2!.outputs);
  await lab.rebuild("r2");
  await stack.mustUp("--refresh");
  expect(pick((await stack.state()).r2!.outputs)).toEqual(before);
  const { code } = await lab.exec("r2", "ping -c 1 -W 10 10.128.0.1");
  expect(code).toBe(0);
});

test("upgrading the package's code changes no resource", async () => {
  stack.upgradePackage();
  await stack.must("preview", "--expect-no-changes", "--stack", "dev");
});

test("destroy leaves no interface, route, chain, file or lease", async () => {
  await stack.destroy();
  for (const { name } of lab.hosts) expect(`${name}: ${await findLeftovers(lab, name)}`).toBe(`${name}: `);
  const pool = await openIpam(workspace.store, { offerTtl: 0, quarantine: 0 });
  const held = (await pool.leases("space/default")).filter(({ state }) => state !== "quarantined");
  expect(held).toEqual([]);
  expect(await pool.admin.fsck()).toEqual([]);
  await pool.end();
});
