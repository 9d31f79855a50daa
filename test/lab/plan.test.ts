import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import type { Values } from "../../provider/lifecycle/values";
import { LabStack, must } from "./lab-stack";
import { LabCtl } from "./labctl";

/** `overlayctl plan`: it prints what the next up does, and changes nothing. */
let lab: Lab;
let ctl: LabCtl;
let stack: LabStack;
let [network, runner]: [Values, Values] = [{}, {}];

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  ctl = new LabCtl(lab);
  stack = await LabStack.on(lab, ctl.store);
  network = await stack.network({ persist: false });
  runner = await stack.runner("r1");
});
afterAll(async () => {
  await lab?.down();
  ctl?.remove();
});

/** As Pulumi shows it: a connection is hidden, its parts are not. */
const hidden = (props: Values): Values => ({
  ...props,
  ...showHosts(props),
  hubConnection: "[secret]",
  ...(props.connection !== undefined && { connection: "[secret]" }),
});
const hostOf = (connection: unknown): string | undefined => (connection as { host: string } | undefined)?.host;
const showHosts = ({ connection, hubConnection }: Values): Values =>
  connection === undefined
    ? { host: hostOf(hubConnection) }
    : { host: hostOf(connection), ...(hubConnection !== undefined && { hubHost: hostOf(hubConnection) }) };
const update = (type: string, old: Values, changes: Values) => {
  const both = step("update", type, old) as { newState: { inputs: Values } };
  return { ...both, newState: { ...both.newState, inputs: hidden({ ...old, ...changes }) } };
};
const step = (op: string, type: string, props: Values) => {
  const state = { type: `pulumi-nodejs:dynamic/overlay:${type}`, inputs: hidden(props), outputs: hidden(props) };
  const urn = `urn:pulumi:dev::lab::${state.type}::${String(props.owner).split("::").at(-1)}`;
  return {
    op,
    urn,
    ...(op === "create" ? {} : { oldState: state }),
    ...(op.startsWith("delete") ? {} : { newState: state }),
  };
};
interface Change {
  verb: string;
  item: string;
}
const describeChanges = (changes: unknown): string[] =>
  (changes as Change[]).map(({ verb, item }) => `${verb} ${item}`);
const plan = async (...steps: object[]) => {
  const { json } = await ctl.run(["plan", "--json"], JSON.stringify({ steps }));
  return json.map((run): Record<string, unknown> => ({ ...run, changes: describeChanges(run.changes) }));
};
const seen = () =>
  must(
    lab,
    "hub",
    "ip -o -4 addr; ip route; find /var/lib/overlay -type f | xargs cat; iptables-save | grep -v '^[#:]'",
  );

test("without a change it prints no commands; the printed commands repair drift", async () => {
  const both = [step("same", "OverlayNetwork", network), step("same", "RunnerSubnet", runner)];
  expect((await plan(...both)).map(({ host, changes }) => [host, changes])).toEqual([
    ["10.254.0.1", []],
    ["10.254.1.1", []],
  ]);
  await must(lab, "hub", "ip link set vxkr1 mtu 1400; ip addr del 10.128.64.254/18 dev vxkr1");
  const before = await seen();
  const [hub] = await plan(...both);
  expect(String(hub!.script).split("\n")).toEqual([
    "rc=0",
    "ip -force -batch - <<'END' || rc=1",
    expect.stringMatching(/^link set dev vxkr1 type vxlan id 101 remote 10\.254\.1\.1 local 10\.254\.0\.1 nolearning$/),
    expect.stringMatching(/^link set dev vxkr1 address \S+ mtu 1450 up$/),
    "address replace 10.128.64.254/18 dev vxkr1",
    "END",
    "exit $rc",
  ]);
  expect(await seen()).toBe(before);
  await must(lab, "hub", String(hub!.script));
  expect((await plan(...both))[0]!.changes).toEqual([]);
});

test("a runner that is created, one that is removed, and one that takes the other's id", async () => {
  const { inputs } = await stack.checked("r2");
  const [hub, r2] = await plan(step("create", "RunnerSubnet", inputs));
  expect(hub).toMatchObject({
    host: "10.254.0.1",
    changes: [
      "add rule '-s 10.254.1.2/32 -p udp -m udp --dport 4789 -j ACCEPT' in OVERLAY-IN (IPv4 filter)",
      "add rule '! -s 10.128.128.0/18 -i vxkr2 -j DROP' in OVERLAY-PRE (IPv4 raw)",
      "add rule '-i vxkr2 -j DROP' in OVERLAY-GUARD (IPv4 mangle)",
      "add rule '-o vxkr2 -j DROP' in OVERLAY-GUARD (IPv4 mangle)",
      "add rule '-i vxkr2 -j REJECT --reject-with icmp-port-unreachable' in OVERLAY-IN (IPv4 filter)",
      "add rule '-i vxkr2 -j DROP' in OVERLAY-PRE (IPv6 raw)",
      "add link vxkr2",
      "add address 10.128.128.254/18 on vxkr2",
    ],
  });
  expect(r2).toMatchObject({
    host: "10.254.1.2",
    records: [{ uid: "uid-of-r2", network: "training" }],
    warnings: [],
    refused: [],
  });
  expect((r2!.changes as string[]).length).toBeGreaterThan(8);

  const removed = (await plan(step("delete", "RunnerSubnet", runner)))[0]!.changes as string[];
  expect(removed).toContainEqual(expect.stringContaining("remove rule '-s 10.254.1.1/32 -p udp"));
  expect(removed.filter((change) => !/ (rule|jump|chain) /.test(change))).toEqual(["remove link vxkr1"]);
  const replaced = await plan(
    step("delete-replaced", "RunnerSubnet", runner),
    step("replace", "RunnerSubnet", runner),
    step("create-replacement", "RunnerSubnet", { ...runner, runnerDevice: "vxnew" }),
  );
  expect(replaced.find(({ host }) => host === "10.254.1.1")!.changes).toEqual(
    expect.arrayContaining([
      "remove link vxkr1",
      "remove link kohaku-overlay",
      "add link kohaku-overlay",
      "add link vxnew",
    ]),
  );
});

test("a refusal is printed, and sets the exit code", async () => {
  await must(lab, "hub", "ip link add vxkr2 type vxlan id 7 remote 10.254.9.9 dstport 4790");
  const { inputs } = await stack.checked("r2");
  const { code, stdout } = await ctl.run(["plan"], JSON.stringify({ steps: [step("create", "RunnerSubnet", inputs)] }));
  expect(code).toBe(1);
  expect(stdout).toMatch(
    /^# 10\.254\.0\.1: 0 changes\n# refused: DEVICE_FOREIGN: 10\.254\.0\.1: There is already a device vxkr2/,
  );
});

test("from a stack export: the steps that repair drift, over the connections in the export", async () => {
  await must(lab, "r1", "ip route del 10.128.0.0/12");
  const { json } = await ctl.run(["plan", "-", "--json"], stack.exported());
  const { changes } = json.find(({ host }) => host === "10.254.1.1")!;
  expect(describeChanges(changes)).toEqual(["add route 10.128.0.0/12"]);
  await must(lab, "r1", "ip route add 10.128.0.0/12 via 10.128.64.254 dev kohaku-overlay proto 183");
});

test("a changed MTU and a changed static address: each host with from and to, then the commands, and no more", async () => {
  await must(lab, "hub", "ip link del vxkr2 2>/dev/null || :");
  const restored = await stack.network({ persist: true });
  const [r1, r2] = [await stack.runner("r1"), await stack.runner("r2")];
  const { addressSpace } = await stack.put("IPPool", "public", { ranges: ["198.51.100.0/28"], type: "loadBalancer" });
  const pool = { poolName: "public", addressSpace, ranges: ["198.51.100.0/28"], type: "loadBalancer" };
  const forward = { protocol: "tcp", port: 80, to: "10.128.64.10" };
  const attach = { networkName: "training", subnets: restored.subnets, bridgeName: restored.bridgeName };
  const front = await stack.put("StaticIP", "front", {
    pool,
    attach,
    connection: stack.at("hub"),
    forwards: [forward],
  });
  const settings = { ...(r1.network as Values), mtu: 1400 };
  const reservation = { owner: "lab/urn:pulumi:dev::lab::overlay:index:IPReservation::ip", ip: "10.128.64.9" };
  const steps = [
    update("OverlayNetwork", restored, { mtu: 1400 }),
    ...[r1, r2].map((runner) => update("RunnerSubnet", runner, { network: settings })),
    update("StaticIP", front, { forwards: [{ ...forward, port: 443 }] }),
    step("create", "IPReservation", reservation),
  ];
  const { code, stdout, stderr } = await ctl.run(["plan"], JSON.stringify({ steps }));
  expect([code, stderr], stdout).toEqual([0, "15 changes on 3 of 3 hosts.\n"]);
  expect(stdout.slice(stdout.indexOf("# 10.254.1.1"), stdout.indexOf("# 10.254.1.2"))).toMatch(
    new RegExp(
      [
        "^# 10.254.1.1: 3 changes",
        "#   change file /var/lib/overlay/training/\\w+.sh: its content is not the planned one",
        "#   change link kohaku-overlay: MTU 1450 → 1400",
        "#   change link vxkr1: MTU 1450 → 1400",
        "rc=0",
        "ip -force -batch - <<'END' || rc=1",
        "link set dev kohaku-overlay address \\S+ mtu 1400 up",
        "link set dev vxkr1 type vxlan .*",
        "link set dev vxkr1 address \\S+ mtu 1400 master kohaku-overlay up",
        "END",
        "exit \\$rc\n\n$",
      ].join("\n"),
    ),
  );
  expect(stdout).toMatch(/# {3}remove rule .*--dport 80 .*\n/);
  expect(stdout).toMatch(/# {3}add rule .*--dport 443 .*\n/);
  expect(stdout).not.toContain("OVERLAY-GUARD -o eth0");
  expect(stdout.split("\n").length).toBeLessThan(70);
  const all = await ctl.run(["plan", "--all"], JSON.stringify({ steps }));
  expect(all.stdout.split("\n").length).toBeGreaterThan(200);
});

test("a plan without a host, or with a value that only up makes, is not complete, and says so", async () => {
  const front = stack.props("StaticIP", "front");
  const forwards = "04da6b54-80e4-46f7-96ec-b56ff0331ba9";
  const unknown = step("update", "StaticIP", { ...front, forwards });
  const isSecret = step("update", "StaticIP", front) as { newState: { inputs: Values } };
  isSecret.newState.inputs.host = "[secret]";
  for (const steps of [[unknown], [isSecret]]) {
    const { code, stderr } = await ctl.run(["plan"], JSON.stringify({ steps }));
    expect([code, stderr]).toEqual([
      1,
      expect.stringContaining(
        "PLAN_INCOMPLETE: The plan above is not complete. Not in it: hosts or values of front, which are not known before up.",
      ),
    ]);
  }
});

const addressOf = (host: string): string => lab.host(host).address;
const planAll = async (...steps: object[]) => {
  const { code, stderr, json } = await ctl.run(["plan", "--json"], JSON.stringify({ steps }));
  const hosts = json.filter(({ host }) => host !== undefined);
  return {
    code,
    stderr,
    changes: Object.fromEntries(hosts.map(({ host, changes }) => [String(host), describeChanges(changes)])),
    warnings: hosts.flatMap(({ warnings }) => warnings as string[]),
  };
};

test("a runner that moves: its hub, the new host, and the host that is cleaned", async () => {
  const r2 = stack.props("RunnerSubnet", "r2");
  const move = update("RunnerSubnet", r2, { connection: stack.at("r3") });
  const { code, changes } = await planAll(move);
  expect(code).toBe(0);
  expect(Object.keys(changes)).toEqual([addressOf("hub"), addressOf("r2"), addressOf("r3")]);
  expect(changes[addressOf("hub")]).toContain("change link vxkr2");
  expect(changes[addressOf("r2")]).toEqual(expect.arrayContaining(["remove link vxkr2", "remove link kohaku-overlay"]));
  expect(changes[addressOf("r2")]!.filter((change) => !change.startsWith("remove "))).toEqual([]);
  expect(changes[addressOf("r3")]).toEqual(expect.arrayContaining(["add link vxkr2", "add link kohaku-overlay"]));

  const isGone = { ...move, oldState: { ...move.newState, outputs: { ...hidden(r2), host: "10.254.1.99" } } };
  const without = await planAll(isGone);
  expect([without.code, without.changes["10.254.1.99"]]).toEqual([0, []]);
  expect(without.warnings).toEqual([
    expect.stringMatching(
      /^10\.254\.1\.99 is no longer part of training\/r2, but its items could not be removed: SSH_/,
    ),
  ]);
  const isSecret = { ...move, newState: { ...move.newState, inputs: { ...move.newState.inputs, host: "[secret]" } } };
  const secret = await planAll(isSecret);
  expect([secret.code, secret.stderr]).toEqual([1, expect.stringContaining("hosts or values of r2")]);
});

test("a hub that moves: what all get on the new one, and what is removed from the old one", async () => {
  const moved = { hubConnection: stack.at("r3") };
  const runners = ["r1", "r2"].map((name) => update("RunnerSubnet", stack.props("RunnerSubnet", name), moved));
  const { code, changes } = await planAll(
    update("OverlayNetwork", stack.props("OverlayNetwork", "training"), moved),
    ...runners,
  );
  expect(code).toBe(0);
  expect(changes[addressOf("r3")]).toEqual(expect.arrayContaining(["add link kohaku-host", "add link vxkr1"]));
  expect(changes[addressOf("hub")]).toEqual(expect.arrayContaining(["remove link vxkr1", "remove link vxkr2"]));
  expect(changes[addressOf("r1")]).toContain("change link vxkr1");
});

test("a host without a key for WireGuard; what the plan does not have of a mesh and of a change of tunnels", async () => {
  const names = { devicePrefix: "ovp", bridgeName: "ovp-br", hubInterface: "ovp-hub", subnets: "10.200.0.0/16/8/8" };
  const mesh = { ...names, tunnel: "wireguard", topology: "mesh", hubConnection: stack.at("hub") };
  await stack.put("OverlayNetwork", "private", mesh);
  const [hub, r1, r2] = ["hub", "r1", "r2"].map(addressOf) as [string, string, string];
  const create = async (name: string, host: string) =>
    step("create", "RunnerSubnet", (await stack.checked(name, "private", host)).inputs);
  const first = await planAll(await create("p1", "r1"));
  expect([first.code, first.stderr]).toEqual([0, expect.stringContaining("on 2 of 2 hosts")]);
  expect(first.changes[hub]).toContain(`add peer KEY-THAT-UP-MAKES-ON-${r1} of ovpW0`);
  expect(first.changes[r1]!.filter((change) => change.includes(" peer "))).toEqual([
    expect.stringMatching(/^add peer [\w+/=]{44} of ovpW0$/),
  ]);

  await stack.runner("p1", { connection: stack.at("r1") }, "hub", "private");
  const second = await planAll(await create("p2", "r2"));
  const lacks = "The plan above is not complete. Not in it: ";
  expect([second.code, second.stderr]).toEqual([
    1,
    expect.stringContaining(
      `${lacks}in the mesh of network private, the peers and direct routes that change with p2, on p1 (${r1}), p2 (${r2}).`,
    ),
  ]);
  const left = await planAll(step("delete", "RunnerSubnet", stack.props("RunnerSubnet", "p1")));
  expect([left.code, left.stderr]).toEqual([0, expect.stringContaining("on 2 of 2 hosts")]);

  const runner = stack.props("RunnerSubnet", "r1");
  const encrypted = { network: { ...(runner.network as Values), tunnel: "wireguard" }, runnerDevice: "vxkrW0" };
  const changed = await planAll(update("RunnerSubnet", runner, encrypted));
  expect([changed.code, changed.stderr]).toEqual([
    1,
    expect.stringContaining(
      `${lacks}the steps in which the tunnel changes while packets pass, of r1 (${hub}, ${r1}): only what is there afterwards.`,
    ),
  ]);
});
