import { join } from "node:path";
import { expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { createFleet } from "../../../provider/host/fleet";
import { Reconciler } from "../../../provider/host/reconcile/reconciler";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import {
  checked,
  deps,
  fleet,
  makeNetwork,
  makeRunner,
  netInputs,
  networks,
  owner,
  runnerInputs,
  runners,
  setUp,
  warnings,
} from "./network-fixture";

/** check and diff. */
setUp();

test("check adds all values that follow from the lease, and up gives the same", async () => {
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
    hubDevice: "ovl1",
    runnerDevice: "ovl1",
    bridge: "overlay-br",
    usableIps: 12285,
    dockerNetwork: "pulumi-overlay",
    dockerRange: "10.128.112.0/20",
  });
  expect(second).toMatchObject({ runnerId: 2 });
  expect(await checked(runners, "b", runnerInputs(network, "b", "192.0.2.12"))).toEqual(second);
  expect(fleet.contacted).toEqual([]);
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
  const { failures } = await networks.check({ owner: "o", dryRun: true, program: "main" }, undefined, news);
  expect(failures.map(({ property, reason }) => `${property}: ${reason.split(":")[0]}`).sort()).toEqual([
    ": INPUT_INVALID",
    "bridgeName: INPUT_INVALID",
    "subnets: SUBNET_NOT_ALIGNED",
    "vxlanPort: INPUT_INVALID",
  ]);
});

test.each<[property: string, wrong: unknown, reason: string]>([
  ["mtu", "1400", 'must be `auto` or a whole number from 576 to 65000; it is "1400"'],
  ["subnets", 10, "must be BASE/PREFIX/NODE_BITS/SUBNET_BITS, or a pair of such; it is 10"],
  ["subnets", ["10.0.0.0/8/8/16"], "must be BASE/PREFIX/NODE_BITS/SUBNET_BITS, or a pair of such; it is a list of 1"],
])("if several types are possible, the error for %s = %j names them", async (property, wrong, reason) => {
  const { failures } = await networks.check(
    { owner: "o", dryRun: true, program: "main" },
    undefined,
    netInputs({ [property]: wrong }),
  );
  expect(failures).toEqual([{ property, path: property, reason: `INPUT_INVALID: ${property} ${reason}.` }]);
});

/** Hosts that fail when they are contacted. */
const noHosts = { connect: () => Promise.reject(new Error("contacted")), end: async () => {} };
const NO_KEY = join(__dirname, "check.test.ts");

test.each<[string, Values, string]>([
  [
    "a file that does not exist",
    { privateKeyPath: "/nowhere/id_ed25519" },
    "The private key file /nowhere/id_ed25519 for root@192.0.2.1 cannot be read (ENOENT). Correct privateKeyPath, or give the key's text as privateKey.",
  ],
  [
    "a file without a key",
    { privateKeyPath: NO_KEY },
    `The private key (file ${NO_KEY}) for root@192.0.2.1 cannot be used: it is not a private key that we can read. Give a key as ssh-keygen writes it, complete with its BEGIN and END lines.`,
  ],
  [
    "a text that is cut off",
    { privateKey: "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl" },
    "The private key (privateKey) for root@192.0.2.1 cannot be used: it is not a private key that we can read. Give a key as ssh-keygen writes it, complete with its BEGIN and END lines.",
  ],
  [
    "the public key",
    { privateKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGNzGb9rqB9MMGDUSFoVMOpgUKyDbJAWMcmmKbFSoyGA" },
    "The private key (privateKey) for root@192.0.2.1 cannot be used: it is not a private key that we can read. Give a key as ssh-keygen writes it, complete with its BEGIN and END lines.",
  ],
  [
    "that of a jump host",
    { proxy: { host: "192.0.2.9", privateKeyPath: "/nowhere/id_ed25519" } },
    "The private key file /nowhere/id_ed25519 for root@192.0.2.9 cannot be read (ENOENT). Correct privateKeyPath, or give the key's text as privateKey.",
  ],
])("preview reads private keys, and contacts no host: %s", async (_, key, text) => {
  const real = createFleet(noHosts, new Reconciler(), {});
  const checks = new Lifecycle(networks.def, { ...deps, fleet: real });
  const caller = { owner: "o", dryRun: true, program: "main" };
  const { failures } = await checks.check(
    caller,
    undefined,
    netInputs({ hubConnection: { host: "192.0.2.1", ...key } }),
  );
  expect(failures).toEqual([{ property: "", path: "", reason: `SSH_AUTH: ${text}` }]);
});

test("an unknown connection makes no value of the pool unknown", async () => {
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

test("a store that does not answer: preview shows unknown values and warns, up fails", async () => {
  deps.pool = async () => {
    throw new OverlayError("STORE_UNAVAILABLE", "The store does not answer.", "Start it.");
  };
  expect(await checked(networks, "training", netInputs(), undefined, true)).toMatchObject({ cidr: UNKNOWN });
  expect(warnings[0]).toContain("STORE_UNAVAILABLE");
  const { failures } = await networks.check({ owner: "o", dryRun: false, program: "main" }, undefined, netInputs());
  expect(failures[0]?.reason).toContain("STORE_UNAVAILABLE");
});

test("a runner that names its network reads the network's settings from the pool", async () => {
  const network = await makeNetwork({ vniBase: 5000 });
  const news = { ...runnerInputs(network, "a", "192.0.2.11"), network: "training" };
  expect(await checked(runners, "a", news)).toMatchObject({ vni: 5001, network: { vniBase: 5000 } });
  const { failures } = await runners.check({ owner: "o", dryRun: true, program: "main" }, undefined, {
    ...news,
    network: "nosuch",
  });
  expect(failures).toMatchObject([{ property: "network", reason: expect.stringContaining("POOL_NOT_FOUND") }]);
});

test("two networks: overlap, equal names, devices and VNIs on one hub are refused in preview, naming the holder", async () => {
  await makeNetwork();
  const attempt = async (more: Values): Promise<string> => {
    const { failures } = await networks.check(
      { owner: owner("b"), dryRun: true, program: "main" },
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
    /^NETWORK_EXISTS: Networks b \(VNI 101 to 163\) and training \(VNI 101 to 163\) would both use hub 192.0.2.1/,
  );
  expect(await attempt({ ...names, vniBase: 163 })).toBe("none");
});

test("the tunnel of a network can change, and its keys by one generation", async () => {
  const network = await makeNetwork({ tunnel: "wireguard" });
  await makeRunner(network, "a", "192.0.2.11");
  const attempt = async (more: Values): Promise<string> => {
    const caller = { owner: owner("training"), dryRun: true, program: "main" };
    const { failures } = await networks.check(caller, network, netInputs({ tunnel: "wireguard", ...more }));
    return failures.map(({ property, reason }) => `${property}: ${reason}`).join();
  };
  expect(await attempt({ tunnel: "vxlan" })).toBe("");
  expect(await attempt({ keyGeneration: 1 })).toBe("");
  expect(await attempt({ keyGeneration: 2 })).toBe(
    "keyGeneration: INPUT_INVALID: Runners of network training have keyGeneration 0: X a. Generation 2 can only follow 1. Nothing was changed. Set keyGeneration to 1, and run up for these runners first.",
  );
});

test("networks with WireGuard that share a hub need different ports, and may have equal VNIs", async () => {
  await makeNetwork({ tunnel: "wireguard" });
  const other = { networkName: "b", subnets: "10.16.0.0/12/6/14", devicePrefix: "vxb", hubInterface: "b-host" };
  const attempt = async (more: Values): Promise<string> => {
    const caller = { owner: owner("b"), dryRun: true, program: "main" };
    const { failures } = await networks.check(caller, undefined, netInputs({ ...other, tunnel: "wireguard", ...more }));
    return failures[0]?.reason ?? "none";
  };
  expect(await attempt({})).toMatch(/^DEVICE_FOREIGN: UDP port 51820 on host 192\.0\.2\.1 .*training.* wireguardPort/);
  expect(await attempt({ wireguardPort: 51822 })).toBe("none");
});

test("hosts make their keys in up only, and public keys are outputs", async () => {
  const network = await makeNetwork({ tunnel: "wireguard" });
  const news = runnerInputs(network, "a", "192.0.2.11");
  await checked(runners, "a", news, undefined, true);
  expect([...fleet.keys.keys()]).toEqual(["192.0.2.1"]);
  const runner = await makeRunner(network, "a", "192.0.2.11");
  expect([network.hubPublicKey, runner.publicKey]).toEqual([fleet.keys.get("192.0.2.1"), fleet.keys.get("192.0.2.11")]);
  expect([...fleet.items.get("192.0.2.1")!.keys()]).toContain(`peer ${runner.publicKey} of ovlW0`);
  expect([...fleet.items.get("192.0.2.11")!.keys()]).toContain(`peer ${network.hubPublicKey} of ovlW0`);

  fleet.keys.delete("192.0.2.11");
  const { props } = await runners.read("id", runner);
  expect([...fleet.keys.keys()]).toEqual(["192.0.2.1"]);
  expect(props.drift).toEqual([]);
  await runners.delete(runner);
  expect([...fleet.keys.keys()]).toEqual(["192.0.2.1"]);
});

test("a request for the held value, or for any value, changes nothing; a request for another value replaces", async () => {
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
    replaces: ["runnerId"],
  });
});

test("a network with runners is replaced after them: with the whole reference unknown, diff of a runner is a replacement", async () => {
  const props = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  const asked = { ...props, network: UNKNOWN };
  expect(await runners.diff(props, asked)).toMatchObject({ replaces: ["network"], deleteBeforeReplace: true });
});

test("a change in place that conflicts with another network is refused in preview", async () => {
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
    { owner: owner("training"), dryRun: true, program: "main" },
    network,
    netInputs({ vniBase: 290 }),
  );
  expect(failures[0]?.reason).toMatch(/^NETWORK_EXISTS: .*VNI 291 to 353/);
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
