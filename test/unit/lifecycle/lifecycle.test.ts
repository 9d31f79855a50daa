import { beforeEach, expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { Incomplete, Lifecycle } from "../../../provider/lifecycle/lifecycle";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import type { World } from "../../../provider/lifecycle/world";
import { openPool } from "../../../provider/pool";
import type { Pool } from "../../../provider/pool/types";
import { resourceOf } from "../../../provider/resources";
import { FakeFleet, worldOf } from "./fake-fleet";

let fleet: FakeFleet;
let pool: Pool;
let world: World;
let warnings: string[];
let networks: Lifecycle;
let runners: Lifecycle;

beforeEach(async () => {
  fleet = new FakeFleet();
  pool = await openPool("memory:", { offerTtl: 3600, quarantine: 0 });
  warnings = [];
  world = { ...worldOf(fleet, pool), pool: async () => pool, warn: (text) => warnings.push(text) };
  networks = new Lifecycle(resourceOf("OverlayNetwork"), world);
  runners = new Lifecycle(resourceOf("RunnerSubnet"), world);
});

const hubConnection = { host: "192.0.2.1" };
const netInputs = (more: Values = {}): Values => ({ networkName: "training", hubConnection, ...more });

const owner = (name: string): string => `org/urn:pulumi:dev::p::overlay:index:X::${name}`;

async function checked(l: Lifecycle, name: string, news: Values, olds?: Values, dryRun = false): Promise<Values> {
  const { inputs, failures } = await l.check({ owner: owner(name), dryRun }, olds, news);
  expect(failures).toEqual([]);
  return inputs;
}

async function makeNetwork(more: Values = {}): Promise<Values> {
  return (await networks.create(await checked(networks, "training", netInputs(more)))).props;
}

const settings = (network: Values): Values =>
  Object.fromEntries(
    ["networkName", "subnets", "vniBase", "vxlanPort", "mtu", "masquerade", "devicePrefix", "bridgeName", "verify"].map(
      (k) => [k, network[k]],
    ),
  );

const runnerInputs = (network: Values, name: string, host: string, more: Values = {}): Values => ({
  network: settings(network),
  runnerName: name,
  connection: { host },
  hubConnection,
  ...more,
});

async function makeRunner(network: Values, name: string, host: string, more: Values = {}): Promise<Values> {
  return (await runners.create(await checked(runners, name, runnerInputs(network, name, host, more)))).props;
}

test("check adds all values that the lease decides, and up gives the very same", async () => {
  const network = await checked(networks, "training", netInputs());
  expect(network).toMatchObject({ cidr: "10.128.0.0/12", hubIp: "10.128.0.1", maxRunners: 63, ipsPerRunner: 16380 });
  const first = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  const second = await checked(runners, "b", runnerInputs(network, "b", "192.0.2.12"));
  expect(first).toMatchObject({
    runnerId: 1,
    subnet: "10.128.64.0/18",
    gateway: "10.128.64.1",
    hubIp: "10.128.64.254",
    vni: 101,
    hubDevice: "vxkr1",
    runnerDevice: "vxkr1",
    bridge: "kohaku-overlay",
    usableIps: 12285,
    dockerNetwork: "kohakuriver-overlay",
    dockerRange: "10.128.112.0/20",
  });
  expect(second).toMatchObject({ runnerId: 2 });
  expect(await checked(runners, "b", runnerInputs(network, "b", "192.0.2.12"))).toEqual(second);
  expect(fleet.asked).toEqual([]);
  await networks.create(network);
  expect((await runners.create(second)).props).toMatchObject({
    runnerId: 2,
    effectiveUnderlayIp: "192.0.2.12",
    effectiveMtu: 1450,
    drift: [],
  });
});

test("all failures are reported at once, each with its property and a code", async () => {
  const news = netInputs({ subnets: "10.0.0.1/8/8/16", vxlanPort: 70000, bridgeName: "x; rm -rf /", colour: "red" });
  const { failures } = await networks.check({ owner: "o", dryRun: true }, undefined, news);
  expect(failures.map(({ property, reason }) => `${property}: ${reason.split(":")[0]}`).sort()).toEqual([
    ": INPUT_INVALID",
    "bridgeName: INPUT_INVALID",
    "subnets: SUBNET_NOT_ALIGNED",
    "vxlanPort: INPUT_INVALID",
  ]);
});

test.each<[property: string, wrong: unknown, reason: string]>([
  ["mtu", "1400", "must be auto or a number"],
  ["subnets", 10, "must be text, BASE/PREFIX/NODE_BITS/SUBNET_BITS, or a pair of such"],
  ["subnets", ["10.0.0.0/8/8/16"], "must be text, BASE/PREFIX/NODE_BITS/SUBNET_BITS, or a pair of such"],
])("where several types are possible, %s = %j is told which", async (property, wrong, reason) => {
  const { failures } = await networks.check({ owner: "o", dryRun: true }, undefined, netInputs({ [property]: wrong }));
  expect(failures).toEqual([{ property, reason: `INPUT_INVALID: ${property} ${reason}.` }]);
});

test("a connection that is not known yet makes no pool value unknown", async () => {
  const network = await checked(
    networks,
    "training",
    netInputs({ hubConnection: UNKNOWN, hubUnderlayIp: UNKNOWN }),
    undefined,
    true,
  );
  expect(network).toMatchObject({ cidr: "10.128.0.0/12", hubConnection: UNKNOWN, hubUnderlayIp: UNKNOWN });
  const news = runnerInputs(network, "a", "x", { connection: { host: UNKNOWN, user: "root" }, hubConnection: UNKNOWN });
  (news.network as Values).hubUnderlayIp = UNKNOWN;
  const runner = await checked(runners, "a", news, undefined, true);
  expect(runner).toMatchObject({ runnerId: 1, subnet: "10.128.64.0/18", network: { hubUnderlayIp: UNKNOWN } });
});

test("an unknown network makes the values unknown, and no offer", async () => {
  const news = runnerInputs({}, "a", "192.0.2.11", { network: UNKNOWN });
  expect(await checked(runners, "a", news, undefined, true)).toMatchObject({
    runnerId: UNKNOWN,
    subnet: UNKNOWN,
    network: UNKNOWN,
  });
});

test("a store out of reach: preview shows unknown and warns, up fails", async () => {
  world.pool = async () => {
    throw new OverlayError("STORE_UNAVAILABLE", "The store does not answer.", "Start it.");
  };
  expect(await checked(networks, "training", netInputs(), undefined, true)).toMatchObject({ cidr: UNKNOWN });
  expect(warnings[0]).toContain("STORE_UNAVAILABLE");
  const { failures } = await networks.check({ owner: "o", dryRun: false }, undefined, netInputs());
  expect(failures[0]?.reason).toContain("STORE_UNAVAILABLE");
});

test("a runner by the network's name finds its settings in the pool", async () => {
  const network = await makeNetwork({ vniBase: 5000 });
  const news = { ...runnerInputs(network, "a", "192.0.2.11"), network: "training" };
  expect(await checked(runners, "a", news)).toMatchObject({ vni: 5001, network: { vniBase: 5000 } });
  const { failures } = await runners.check({ owner: "o", dryRun: true }, undefined, { ...news, network: "nosuch" });
  expect(failures).toMatchObject([{ property: "network", reason: expect.stringContaining("POOL_NOT_FOUND") }]);
});

test("two networks: overlap, equal names, devices and VNIs on one hub are refused in preview, naming the holder", async () => {
  await makeNetwork();
  const attempt = async (more: Values): Promise<string> => {
    const { failures } = await networks.check(
      { owner: owner("b"), dryRun: true },
      undefined,
      netInputs({ networkName: "b", subnets: "10.16.0.0/12/6/14", ...more }),
    );
    return failures[0]?.reason ?? "none";
  };
  expect(await attempt({ subnets: "10.128.0.0/13/5/14" })).toMatch(/^POOL_OVERLAP: .*training/);
  expect(await attempt({ networkName: "training" })).toMatch(/^NETWORK_EXISTS: .*training/);
  expect(await attempt({})).toMatch(/^DEVICE_FOREIGN: .*training/);
  const names = { devicePrefix: "vxb", hubInterface: "b-host" };
  expect(await attempt(names)).toMatch(
    /^NETWORK_EXISTS: Networks b \(VNI 101 to 163\) and training \(VNI 101 to 163\) would meet on hub 192.0.2.1/,
  );
  expect(await attempt({ ...names, vniBase: 163 })).toBe("none");
});

test("a failure after the claim keeps the state and the value, and update goes on", async () => {
  const network = await makeNetwork();
  fleet.down.add("192.0.2.11");
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  const error = await runners.create(inputs).catch((e: unknown) => e);
  expect(error).toBeInstanceOf(Incomplete);
  const { id, properties, message } = error as Incomplete;
  expect(id).toBe("training/a");
  expect(message).toContain("SSH_UNREACHABLE: 192.0.2.11");
  expect(properties).toMatchObject({ runnerId: 1, drift: [expect.stringContaining("not applied: SSH_UNREACHABLE")] });
  fleet.down.clear();
  expect(await runners.diff(properties, inputs)).toMatchObject({ changes: true, replaces: [] });
  expect(await runners.update(id, properties, inputs)).toMatchObject({
    runnerId: 1,
    drift: [],
    leaseId: properties.leaseId,
  });
  expect(fleet.standing("192.0.2.11")).toContain("link vxkr1");
});

test("a create whose answer was lost is made again with the same value and nothing torn down", async () => {
  const network = await makeNetwork();
  await makeRunner(network, "a", "192.0.2.11");
  fleet.takeWrites();
  expect(await makeRunner(network, "a", "192.0.2.11")).toMatchObject({ runnerId: 1 });
  expect(fleet.takeWrites()).toEqual([]);
});

test("a forced replacement with equal inputs renews the lease; deleting the old life touches no host", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  expect(await runners.diff(old, await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"), old))).toEqual({
    changes: false,
    replaces: [],
    deleteBeforeReplace: false,
  });
  const renewed = await makeRunner(network, "a", "192.0.2.11");
  fleet.asked.length = 0;
  await runners.delete(old);
  expect(fleet.asked).toEqual([]);
  expect(renewed).toMatchObject({ runnerId: 1, uid: old.uid });
  expect(fleet.standing("192.0.2.11")).toContain("link vxkr1");
  expect(await runners.diff(old, renewed)).toMatchObject({ changes: true, replaces: ["leaseId"] });
});

test("a rename is an update that contacts no host", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  const renamed = await checked(runners, "new", runnerInputs(network, "a", "192.0.2.11"), old);
  expect(await runners.diff(old, renamed)).toMatchObject({ changes: true, replaces: [] });
  fleet.asked.length = 0;
  const props = await runners.update("training/a", old, renamed);
  expect(fleet.asked).toEqual([]);
  expect(props).toMatchObject({ runnerId: 1, leaseId: old.leaseId });
  expect((await pool.find("network/training", { leaseId: String(old.leaseId) }))?.owner).toBe(owner("new"));
});

test("changed credentials reach the state and no host; a changed host is configured and the old one cleaned", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  fleet.asked.length = 0;
  const rotated = await checked(
    runners,
    "a",
    runnerInputs(network, "a", "192.0.2.11", { connection: { host: "192.0.2.11", privateKey: "new" } }),
    old,
  );
  expect(await runners.diff(old, rotated)).toMatchObject({ changes: true, replaces: [] });
  const props = await runners.update("training/a", old, rotated);
  expect(fleet.asked).toEqual([]);
  const moved = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.99"), rotated);
  expect(await runners.update("training/a", props, moved)).toMatchObject({
    runnerId: 1,
    effectiveUnderlayIp: "192.0.2.99",
  });
  expect(fleet.standing("192.0.2.99")).toContain("link kohaku-overlay");
  expect(fleet.standing("192.0.2.11")).toEqual([]);
});

test("asking for what is held, or no longer asking, changes nothing; another wish replaces", async () => {
  const network = await makeNetwork();
  const props = await makeRunner(network, "a", "192.0.2.11");
  const wish = (runnerId?: number): Values => runnerInputs(network, "a", "192.0.2.11", runnerId ? { runnerId } : {});
  const asked = await checked(runners, "a", wish(1), props);
  expect(await runners.diff(props, asked)).toMatchObject({ changes: false });
  expect(await runners.diff(props, await checked(runners, "a", wish(), asked))).toMatchObject({ changes: false });
  const other = await checked(runners, "a", wish(7), props);
  expect(other).toMatchObject({ runnerId: 7, subnet: "10.129.192.0/18" });
  expect(await runners.diff(props, other)).toMatchObject({
    changes: true,
    deleteBeforeReplace: true,
    replaces: ["runnerId", "runnerDevice"],
  });
});

test("read names what differs, and the next diff is an update", async () => {
  const network = await makeNetwork();
  const props = await makeRunner(network, "a", "192.0.2.11");
  fleet.items.get("192.0.2.1")!.delete("link vxkr1");
  const { props: read, inputs } = await runners.read("training/a", props);
  expect(read.drift).toEqual(["192.0.2.1: link vxkr1: missing"]);
  expect(inputs).not.toHaveProperty("leaseId");
  expect(await runners.diff(read, inputs)).toMatchObject({ changes: true, replaces: [] });
  fleet.takeWrites();
  expect(await runners.update("training/a", read, inputs)).toMatchObject({ drift: [] });
  expect(fleet.takeWrites()).toEqual(["192.0.2.1: + link vxkr1"]);
});

test("read of a machine that is down says so instead of failing", async () => {
  const props = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  const { props: read } = await runners.read("training/a", props);
  expect(read.drift).toEqual(["192.0.2.11: not read, SSH_UNREACHABLE"]);
});

test("delete leaves nothing; a network with runners is refused first", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  await expect(networks.delete(network)).rejects.toThrow(/POOL_IN_USE: .*a/);
  expect(fleet.standing("192.0.2.1")).toContain("link kohaku-host");
  await runners.delete(runner);
  await networks.delete(network);
  expect([...fleet.standing("192.0.2.1"), ...fleet.standing("192.0.2.11")]).toEqual([]);
  expect(await pool.leases("space/default")).toEqual([]);
  expect(await pool.fsck()).toEqual([]);
});

test("a dead host blocks delete, or is forgotten with its values withheld", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  await expect(runners.delete(runner)).rejects.toThrow("SSH_UNREACHABLE");
  world.unreachableOnDelete = "forget";
  await runners.delete(runner);
  expect(warnings.at(-1)).toContain("stay withheld");
  expect(await makeRunner(network, "b", "192.0.2.12")).toMatchObject({ runnerId: 2 });
});

test("a lost pool gives out nothing", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  pool = await openPool("memory:", { offerTtl: 3600, quarantine: 0 });
  await expect(networks.diff(network, network)).rejects.toThrow(/^STORE_LOST/);
  await expect(runners.diff(runner, runner)).rejects.toThrow(/^STORE_LOST/);
  await expect(runners.delete(runner)).rejects.toThrow(/^STORE_LOST/);
  const { failures } = await runners.check(
    { owner: owner("b"), dryRun: true },
    undefined,
    runnerInputs(network, "b", "192.0.2.12"),
  );
  expect(failures[0]?.reason).toMatch(/^POOL_NOT_FOUND/);
});

test("a lost lease is replaced with the network alive, and work of the old life is fenced off", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  await pool.release("network/training", String(old.leaseId));
  expect((await runners.read("training/a", old)).props.drift).toEqual([
    `lease ${old.leaseId}: not in the pool any more`,
  ]);
  expect(await runners.diff(old, old)).toEqual({ changes: true, replaces: ["leaseId"], deleteBeforeReplace: false });
  await expect(runners.update("training/a", old, { ...old, mtu: 1400 })).rejects.toThrow("LEASE_FENCED");
  const fresh = await makeRunner(network, "a", "192.0.2.11");
  expect(fresh).toMatchObject({ runnerId: 1 });
});

test("a failed move to another machine remembers the old one, and cleans it in the end", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  const moved = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.99"), old);
  fleet.down.add("192.0.2.99");
  const error = (await runners.update("training/a", old, moved).catch((e: unknown) => e)) as Incomplete;
  expect(error.properties.leaving).toEqual(["runner 192.0.2.11 22"]);
  fleet.down.clear();
  expect(await runners.update("training/a", error.properties, moved)).toMatchObject({ leaving: [], drift: [] });
  expect(fleet.standing("192.0.2.11")).toEqual([]);
});

test("a network that has runners is replaced after them: with the whole reference unknown a runner says replace", async () => {
  const props = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  const asked = { ...props, network: UNKNOWN };
  expect(await runners.diff(props, asked)).toEqual({ changes: true, replaces: ["network"], deleteBeforeReplace: true });
});

test("a run that was overtaken writes nothing, neither by update nor by delete", async () => {
  const network = await makeNetwork();
  const props = await makeRunner(network, "a", "192.0.2.11");
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11", { mtu: 1300 }), props);
  const ask = fleet.ask;
  let wake = (): void => {};
  const waited = new Promise<void>((resolve) => {
    wake = resolve;
  });
  fleet.ask = async (...args) => {
    await waited;
    return ask(...args);
  };
  const sleeping = runners.update("training/a", props, inputs).catch((e: unknown) => e);
  await new Promise((resolve) => setTimeout(resolve, 10));
  fleet.ask = ask;
  await runners.update(
    "training/a",
    props,
    await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11", { mtu: 1400 }), props),
  );
  fleet.takeWrites();
  wake();
  expect(String(await sleeping)).toContain("LEASE_FENCED");
  expect(fleet.takeWrites()).toEqual([]);
});

test("a resource that was renamed keeps its name also when it is made anew", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  const { runnerName: _, ...unnamed } = runnerInputs(network, "a", "192.0.2.11");
  const renamed = await checked(runners, "new", unnamed, old);
  await runners.update("training/a", old, renamed);
  expect(await checked(runners, "new", unnamed)).toMatchObject({ runnerName: "a", runnerId: 1 });
});

test("refresh does not forget that a create was never finished", async () => {
  const network = await makeNetwork();
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  fleet.run = async () => ({ code: 1, stderr: "" });
  const error = (await runners.create(inputs).catch((e: unknown) => e)) as Incomplete;
  expect(error.message).toContain("VERIFY_FAILED");
  const { props } = await runners.read("training/a", error.properties);
  expect(props.drift).toEqual(["not finished yet", expect.stringContaining("do not get through")]);
  expect(await runners.diff(props, inputs)).toMatchObject({ changes: true });
});

test("with forgotten machines a whole network can be destroyed, and its range stays withheld", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  world.unreachableOnDelete = "forget";
  await runners.delete(runner);
  await networks.delete(network);
  expect(fleet.standing("192.0.2.1")).toEqual([]);
  const { failures } = await networks.check({ owner: owner("again"), dryRun: true }, undefined, netInputs());
  expect(failures[0]?.reason).toMatch(/^POOL_OVERLAP: .*forgotten/);
});

test("a delete that fails leaves the network usable", async () => {
  const network = await makeNetwork();
  fleet.down.add("192.0.2.1");
  await expect(networks.delete(network)).rejects.toThrow("SSH_UNREACHABLE");
  fleet.down.clear();
  expect(await makeRunner(network, "a", "192.0.2.11")).toMatchObject({ runnerId: 1 });
});

test("a change in place that would meet another network is refused in preview", async () => {
  const network = await makeNetwork();
  const b = netInputs({
    networkName: "b",
    subnets: "10.16.0.0/12/6/14",
    devicePrefix: "vxb",
    hubInterface: "b-host",
    vniBase: 300,
  });
  await networks.create(await checked(networks, "b", b));
  const { failures } = await networks.check(
    { owner: owner("training"), dryRun: true },
    network,
    netInputs({ vniBase: 290 }),
  );
  expect(failures[0]?.reason).toMatch(/^NETWORK_EXISTS: .*VNI 291 to 353/);
});

test("machines behind different ports or jump hosts are different machines", async () => {
  const network = await makeNetwork();
  await makeRunner(network, "a", "192.0.2.50", { connection: { host: "192.0.2.50", port: 2201 } });
  const second = runnerInputs(network, "b", "192.0.2.50", { connection: { host: "192.0.2.50", port: 2202 } });
  expect(await checked(runners, "b", second)).toMatchObject({ runnerId: 2 });
  const third = runnerInputs(network, "c", "192.0.2.50", { connection: { host: "192.0.2.50", port: 2201 } });
  const { failures } = await runners.check({ owner: owner("c"), dryRun: true }, undefined, third);
  expect(failures[0]?.reason).toMatch(/^DEVICE_FOREIGN/);
  const hub = runnerInputs(network, "d", "x", { connection: { host: "192.0.2.1", port: 22 } });
  expect((await runners.check({ owner: owner("d"), dryRun: true }, undefined, hub)).failures[0]?.reason).toContain(
    "is the network's hub",
  );
});

test("another way to write the same layout or address is no change", async () => {
  const props = await makeNetwork({ subnets: "fd00:128::/40/6/82", hubUnderlayIp: "192.0.2.1" });
  const again = await checked(
    networks,
    "training",
    netInputs({ subnets: "FD00:128:0::/40/6/82", hubUnderlayIp: "192.0.2.1" }),
    props,
  );
  expect(await networks.diff(props, again)).toMatchObject({ changes: false });
});
