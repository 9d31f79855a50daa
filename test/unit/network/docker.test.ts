import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { planSteps } from "../../../provider/network/diff/steps";
import { appliesToHost, diffItems, formatDifference, isPresent } from "../../../provider/network/kinds";
import { isOurLink } from "../../../provider/network/kinds/device";
import { containersOn } from "../../../provider/network/kinds/docker";
import { desiredJumpPosition } from "../../../provider/network/kinds/firewall";
import type { Facts } from "../../../provider/network/model/facts";
import type { DesiredState, HostRecord, Item, Jump, Link } from "../../../provider/network/model/items";
import { planDocker } from "../../../provider/network/plan/hub";
import { preflight } from "../../../provider/network/preflight/preflight";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { recordPart } from "./host-facts";

const layouts = [parseLayout("10.128.0.0/12/6/14")];
const plan = { name: "kohakuriver-overlay", required: false, share: 4 };
const item = planDocker(plan, layouts, 1, "kohaku-overlay", 1450);
const dual = planDocker(plan, [...layouts, parseLayout("fd00:128::/48/16/64")], 1, "kohaku-overlay", 1450);

const STANDS = {
  Name: "kohakuriver-overlay",
  Driver: "bridge",
  IPAM: {
    Config: [
      {
        Subnet: "10.128.64.0/18",
        IPRange: "10.128.112.0/20",
        Gateway: "10.128.64.1",
        AuxiliaryAddresses: { hub: "10.128.64.254" },
      },
    ],
  },
  Options: {
    "com.docker.network.bridge.enable_ip_masquerade": "false",
    "com.docker.network.bridge.name": "kohaku-overlay",
    "com.docker.network.driver.mtu": "1450",
  },
};
const OWN = { Name: "bridge", Driver: "bridge", IPAM: { Config: [{ Subnet: "172.17.0.0/16" }] }, Options: {} };

const record: Omit<HostRecord, "items"> = { uid: "r1", owner: "org/r1", network: "training", store: "s" };
const desired = (items: Item[], adopt = false): DesiredState => ({ record, items, adopt });

function host(networks: object[] | "down" | "none", containers = "", recorded: Item[] = [item]): Facts {
  const docker = networks === "down" ? "down" : JSON.stringify(networks, undefined, 4);
  const parts = networks === "none" ? [] : ["@@ docker", docker, "@@ containers", containers];
  return parseFacts([...parts, recordPart({ ...record, items: recorded })].join("\n"));
}

const drift = (facts: Facts, of: Item = item): string[] => diffItems([of], facts).map(formatDifference);

test("the network is created on our bridge; Docker does not assign the hub's address and the pool's range", () => {
  expect(renderChange([{ verb: "add", item: dual }], []).split("\n")[1]).toBe(
    "'docker' 'network' 'create' '--driver' 'bridge' '--ipv6' " +
      "'--subnet' '10.128.64.0/18' '--gateway' '10.128.64.1' '--aux-address' 'hub=10.128.64.254' '--ip-range' '10.128.112.0/20' " +
      "'--subnet' 'fd00:128:0:1::/64' '--gateway' 'fd00:128:0:1::1' '--aux-address' 'hub6=fd00:128:0:1::fe' '--ip-range' 'fd00:128:0:1:8000::/66' " +
      "'-o' 'com.docker.network.bridge.name=kohaku-overlay' '-o' 'com.docker.network.driver.mtu=1450' " +
      "'-o' 'com.docker.network.bridge.enable_ip_masquerade=false' 'kohakuriver-overlay' || rc=1",
  );
});

test("a Docker network is removed before its bridge, and created after it", () => {
  const bridge: Link = { kind: "link", name: "kohaku-overlay", type: "bridge" };
  const removed = renderChange(
    [
      { verb: "remove", item },
      { verb: "remove", item: bridge },
    ],
    [],
  );
  expect(removed.split("\n").slice(1, 3)).toEqual([
    "'docker' 'network' 'rm' 'kohakuriver-overlay' || rc=1",
    "ip -force -batch - <<'END' || rc=1",
  ]);
  const recreated = renderChange(
    [
      { verb: "change", item },
      { verb: "add", item: bridge },
    ],
    [],
  );
  expect(recreated.indexOf("'rm'")).toBeLessThan(recreated.indexOf("link add"));
  expect(recreated.indexOf("link add")).toBeLessThan(recreated.indexOf("'create'"));
});

test.each<[string, Facts, string[]]>([
  ["as desired", host([OWN, STANDS]), []],
  ["missing", host([OWN]), ["docker network kohakuriver-overlay: missing"]],
  [
    "another MTU",
    host([OWN, { ...STANDS, Options: { ...STANDS.Options, "com.docker.network.driver.mtu": "1500" } }]),
    ["docker network kohakuriver-overlay: MTU is 1500, should be 1450"],
  ],
  [
    "without range and hub's address, as KohakuRiver makes it",
    host([OWN, { ...STANDS, IPAM: { Config: [{ Subnet: "10.128.64.0/18", Gateway: "10.128.64.1" }] } }]),
    [
      "docker network kohakuriver-overlay: subnets is 10.128.64.0/18 (gateway 10.128.64.1, hub none, range none), should be 10.128.64.0/18 (gateway 10.128.64.1, hub 10.128.64.254, range 10.128.112.0/20)",
    ],
  ],
  ["dockerd is down, and the network was created", host("down"), []],
  ["dockerd is not installed", host("none"), []],
  ["another program that calls itself docker", host([{ name: "podman", driver: "bridge" }]), []],
])("drift: %s", (_, facts, expected) => {
  expect(drift(facts)).toEqual(expected);
});

test("auto applies to a host where dockerd answers, or where the network was created already", () => {
  expect(appliesToHost(item, host([OWN]))).toBe(true);
  expect(appliesToHost(item, host("down"))).toBe(true);
  expect(appliesToHost(item, host("down", "", []))).toBe(false);
  expect(appliesToHost(item, host("none"))).toBe(false);
  expect(appliesToHost({ ...item, required: true }, host("none"))).toBe(true);
});

test.each<[string, DesiredState, Facts, string]>([
  [
    "on, and no dockerd",
    desired([{ ...item, required: true }]),
    host("none"),
    "DOCKER_UNAVAILABLE: docker.enabled is 'on', but dockerd is not installed.",
  ],
  [
    "on, and dockerd is down",
    desired([{ ...item, required: true }]),
    host("down"),
    "DOCKER_UNAVAILABLE: docker.enabled is 'on', but dockerd does not answer.",
  ],
  [
    "a network that is in no record",
    desired([item]),
    host([OWN, STANDS], "", []),
    "DOCKER_NETWORK_FOREIGN: There is already a Docker network kohakuriver-overlay, and it is not in our records.",
  ],
  [
    "a name that another owner has, even before its network is made",
    { ...desired([item]), record: { ...record, uid: "other" } },
    host([OWN]),
    "DOCKER_NETWORK_FOREIGN: There is already a Docker network kohakuriver-overlay, and it belongs to org/r1 (network training).",
  ],
  [
    "containers on a network that differs, stopped ones too",
    desired([{ ...item, mtu: 1400, subnets: [{ ...item.subnets[0]!, range: "10.128.64.0/24" }] }]),
    host([OWN, STANDS], "running web kohakuriver-overlay\nexited job bridge,kohakuriver-overlay\nrunning else bridge"),
    "DOCKER_NETWORK_IN_USE: Docker network kohakuriver-overlay must be created again (subnets is 10.128.64.0/18 (gateway 10.128.64.1, hub 10.128.64.254, range 10.128.112.0/20), should be 10.128.64.0/18 (gateway 10.128.64.1, hub 10.128.64.254, range 10.128.64.0/24)), but containers use it: job, web.",
  ],
  [
    "removal while containers run",
    desired([]),
    host([OWN, STANDS], "running web kohakuriver-overlay\nexited job kohakuriver-overlay"),
    "DOCKER_NETWORK_IN_USE: Docker network kohakuriver-overlay is to be removed, but containers use it: web.",
  ],
  [
    "removal while dockerd is down",
    desired([]),
    host("down"),
    "DOCKER_UNAVAILABLE: Docker network kohakuriver-overlay is to be removed, but dockerd does not answer.",
  ],
])("refused before anything is changed: %s", (_, wanted, facts, text) => {
  expect(() => preflight(wanted, facts)).toThrow(text);
});

test.each<[string, DesiredState, Facts]>([
  [
    "another MTU, with containers",
    desired([{ ...item, mtu: 1400 }]),
    host([OWN, STANDS], "exited job kohakuriver-overlay"),
  ],
  ["a network as desired, with containers", desired([item]), host([OWN, STANDS], "running web kohakuriver-overlay")],
  ["a network that is adopted", desired([item], true), host([OWN, STANDS], "", [])],
  ["one without dockerd", desired([item]), host("none")],
  ["removal with stopped containers", desired([]), host([OWN, STANDS], "exited job kohakuriver-overlay")],
  ["removal after Docker itself was removed", desired([]), host("none")],
])("passes: %s", (_, wanted, facts) => {
  expect(() => preflight(wanted, facts)).not.toThrow();
});

test("a network of our name on another bridge is not ours to remove", () => {
  const elsewhere = { ...STANDS, Options: { "com.docker.network.bridge.name": "br7" } };
  expect(isPresent(item, host([OWN, elsewhere]))).toBe(false);
  expect(planSteps([desired([])], host([OWN, elsewhere]))).toEqual([]);
});

test("a bridge that Docker created for our network is ours, whatever its MAC", () => {
  const bridge: Link = { kind: "link", name: "kohaku-overlay", type: "bridge", mac: "02:00:00:00:00:01" };
  const made = (networks: object[]): Facts => {
    const facts = host(networks, "", [item, bridge]);
    facts.links.set("kohaku-overlay", { type: "bridge", mac: "02:42:00:00:00:99", mtu: 1500, up: true });
    return facts;
  };
  expect(isOurLink(bridge, made([OWN, STANDS]))).toBe(true);
  expect(isOurLink(bridge, made([OWN]))).toBe(false);
});

test("forwarding stays on for Docker when the last owner is removed", () => {
  const forward: Item = { kind: "sysctl", key: "net.ipv4.ip_forward", value: "1" };
  const left = (facts: Facts): string => {
    facts.sysctls.set("net.ipv4.ip_forward", "1");
    return renderChange(planSteps([desired([])], facts), []);
  };
  expect(left(host([OWN], "", [forward]))).toBe(
    "rc=0\nrm -f '/var/lib/overlay/former/net.ipv4.ip_forward' || rc=1\nexit $rc",
  );
  expect(left(host("none", "", [forward]))).toContain("cat '/var/lib/overlay/former/net.ipv4.ip_forward' >");
});

test.each([
  ["first", ["-j OVERLAY-FWD"], [], 1],
  ["behind DOCKER-USER", ["-j DOCKER-USER", "-j OVERLAY-FWD"], [], 2],
  ["behind a rule before DOCKER-USER", ["-j DROP", "-j DOCKER-USER", "-j OVERLAY-FWD"], [], 3],
  [
    "behind all that Docker puts first",
    ["-j DOCKER-USER", "-j DOCKER-ISOLATION-STAGE-1", "-o docker0 -j DOCKER", "-i docker0 -j ACCEPT", "-j OVERLAY-FWD"],
    [],
    2,
  ],
  [
    "before DOCKER-USER",
    ["-j OVERLAY-FWD", "-j DOCKER-USER"],
    ["position is before DOCKER-USER, should be after it"],
    2,
  ],
  [
    "behind a drop after DOCKER-USER",
    ["-j DOCKER-USER", "-j DROP", "-j OVERLAY-FWD"],
    ["position is 2, should be 1"],
    2,
  ],
  ["behind rules for other ranges alone", ["-s 172.17.0.0/16 ! -o docker0 -j DROP", "-j OVERLAY-FWD"], [], 1],
  [
    "behind a rule that matches our packets",
    ["-s 10.0.0.0/8 -j DROP", "-j OVERLAY-FWD"],
    ["position is 2, should be 1"],
    1,
  ],
])("position of a jump: %s", (_, forward, wrong, position) => {
  const facts = host("none");
  facts.chains.set("4 filter FORWARD", forward);
  facts.chains.set("4 filter OVERLAY-FWD", ["-s 10.128.0.0/12 -j ACCEPT"]);
  const jump: Jump = { kind: "jump", family: 4, table: "filter", from: "FORWARD", chain: "OVERLAY-FWD" };
  expect(diffItems([jump], facts).flatMap((difference) => difference.wrong)).toEqual(wrong);
  expect(desiredJumpPosition(jump, facts)).toBe(position);
});

test("running containers on our network are read with their addresses, stopped ones by name", () => {
  const alpha = { Name: "alpha", IPv4Address: "10.128.64.9/18", IPv6Address: "" };
  const beta = { Name: "beta", IPv4Address: "10.128.64.10/18", IPv6Address: "fd00:128:0:1::a/64" };
  const facts = host(
    [OWN, { ...STANDS, Containers: { "5d0c": alpha, e3b1: beta } }],
    "running alpha kohakuriver-overlay\nexited gamma kohakuriver-overlay\nrunning plain bridge",
  );
  expect(containersOn([item], facts.docker)).toEqual([
    { name: "alpha", running: true, addresses: ["10.128.64.9"] },
    { name: "beta", running: true, addresses: ["10.128.64.10", "fd00:128:0:1::a"] },
    { name: "gamma", running: false, addresses: [] },
  ]);
  expect(containersOn([{ ...item, bridge: "another" }], facts.docker)).toEqual([]);
});
