import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { isProvenLink } from "../../../provider/network/diff/ownership";
import { planSteps } from "../../../provider/network/diff/steps";
import { appliesToHost, diffItems, formatDifference } from "../../../provider/network/kinds";
import { threadedWarnings } from "../../../provider/network/kinds/wireguard";
import type { DesiredState, Item, Link } from "../../../provider/network/model/items";
import { renderBootScript } from "../../../provider/network/plan/boot";
import { type Network, planHub, planRunner, planTunnel, type Underlay } from "../../../provider/network/plan/hub";
import { planProbe, renderPeerProbes } from "../../../provider/network/plan/probes";
import { adaptToHost, withLocalRules } from "../../../provider/network/plan/this-host";
import { preflight } from "../../../provider/network/preflight/preflight";
import { parseFacts, preflightScript } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { onIpv4, training } from "../../network";
import { hostWith } from "./host-facts";

const HUB_KEY = "wu7/dktMz7fDE8s7S57fPOF82+A98JWPK8UA5fFqDyM=";
const RUNNER_KEY = "TI7Hy8FqtCtl4iS0zImetgZOQmCq4rAXk858fgWlUkM=";
const OTHER_KEY = "00xJeODJIokOf+IUylyYW+k3n1gzSQHVVnOIEZATWH4=";
const hub: Underlay = { underlayIp: "192.0.2.1", underlayMtu: 1500, publicKey: HUB_KEY };
const runner: Underlay = { underlayIp: "192.0.2.11", underlayMtu: 1500, publicKey: RUNNER_KEY };
const network = (changes: Partial<Network> = {}) => training({ tunnel: "wireguard", mtu: "auto", ...changes });
const dual = network({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")] });

const BARE = parseFacts("");

/** The commands for a bare host, from the devices on. */
const commands = (items: Item[]): string[] => {
  const applicable = items.filter((item) => appliesToHost(item, BARE));
  const lines = renderChange(
    onIpv4(applicable).map((item) => ({ verb: "add", item })),
    [],
  ).split("\n");
  const lastRule = lines.lastIndexOf("END", lines.indexOf("ip -force -batch - <<'END' || rc=1"));
  return lines.slice(Math.max(lastRule, 0) + 1, -1);
};

const MAKE_KEY = expect.stringMatching(
  /^\{ \{ \[ -s \/var\/lib\/overlay\/training\/tunnel\.key \] \|\| .*wg genkey.* chmod 600 \/var\/lib\/overlay\/training\/tunnel\.key; \} \|\| rc=1$/,
);
const CREATE = expect.stringMatching(
  /^\{ \[ -e \/sys\/class\/net\/vxkrW0 \] \|\| ip link add vxkrW0 type wireguard 2>\/dev\/null \|\| \{ .*wireguard-go.*\}; \} \|\| rc=1$/,
);
const SET_KEY = "wg set vxkrW0 private-key /var/lib/overlay/training/tunnel.key listen-port 51820 || rc=1";
const NO_LINK_LOCAL = "{ ip link set dev vxkrW0 addrgenmode none 2>/dev/null || :; } || rc=1";
const LOOSE =
  "{ [ ! -e /proc/sys/net/ipv4/conf/vxkrW0/rp_filter ] || echo '2' >/proc/sys/net/ipv4/conf/vxkrW0/rp_filter; } || rc=1";
const FORWARD = "{ [ ! -e /proc/sys/net/ipv4/ip_forward ] || echo '1' >/proc/sys/net/ipv4/ip_forward; } || rc=1";

test("a hub has one device with its key and an address, which rejects no source", () => {
  expect(commands(planHub(network(), hub))).toEqual([
    MAKE_KEY,
    expect.stringContaining("ip link add kohaku-host "),
    CREATE,
    SET_KEY,
    NO_LINK_LOCAL,
    "ip -force -batch - <<'END' || rc=1",
    "link set dev kohaku-host address 02:ec:c5:c0:d7:9c up",
    "address replace 10.128.0.1/32 dev kohaku-host",
    "route replace unreachable 10.128.0.0/12 proto 183 metric 4096",
    "link set dev vxkrW0 mtu 1440 up",
    "address replace 10.128.0.1/32 dev vxkrW0",
    "END",
    FORWARD,
    LOOSE,
  ]);
});

test("a runner is a peer of the hub with its subnet, and .254 is on the hub's own device", () => {
  const ofAll = new Set(commands(planHub(network(), hub)));
  expect(commands(planTunnel(network(), 1, hub, runner)).filter((line) => !ofAll.has(line))).toEqual([
    `wg set vxkrW0 peer ${RUNNER_KEY} endpoint '192.0.2.11:51820' persistent-keepalive 25 allowed-ips 10.128.64.0/18,fe80::1:1/128 || rc=1`,
    "address replace 10.128.64.254/32 dev kohaku-host",
    "route replace 10.128.64.0/18 dev vxkrW0 src 10.128.64.254 proto 183",
  ]);
});

test("each runner has the device on the hub, too, in the form that the network gave it", () => {
  const link = (items: Item[]) => items.filter((item) => item.kind === "link" && item.type === "wireguard");
  const of = { ...network(), mtu: 1300, hubMtu: "auto" as const };
  expect(link(planTunnel(of, 1, hub, runner))).toEqual(link(planHub(network(), hub)));
});

test("generations of keys take turns with two devices, keys and ports", () => {
  const devices = [0, 1, 2].map((keyGeneration) =>
    planHub(network({ keyGeneration }), hub).flatMap((item) => (item.kind === "link" ? (item.wireguard ?? []) : [])),
  );
  const [first, second] = ["tunnel.key", "tunnel-1.key"].map((file, i) => [
    {
      port: 51820 + i,
      keyFile: `/var/lib/overlay/training/${file}`,
      publicKey: HUB_KEY,
      local: "192.0.2.1",
    },
  ]);
  expect(devices).toEqual([first, second, first]);
});

test("a runner answers for the hub on its bridge, and rejects the range without its device", () => {
  expect(commands(planRunner(network(), 1, "vxkrW0", hub, runner))).toEqual([
    MAKE_KEY,
    CREATE,
    SET_KEY,
    NO_LINK_LOCAL,
    `wg set vxkrW0 peer ${HUB_KEY} endpoint '192.0.2.1:51820' persistent-keepalive 25 allowed-ips 0.0.0.0/0,fe80::1:0/128 || rc=1`,
    "ip -force -batch - <<'END' || rc=1",
    "link add kohaku-overlay address 02:b4:50:c4:a4:32 type bridge",
    "link set dev kohaku-overlay address 02:b4:50:c4:a4:32 mtu 1440 up",
    "link set dev vxkrW0 mtu 1440 up",
    "address replace 10.128.64.1/32 dev vxkrW0",
    "neigh replace proxy 10.128.64.254 dev kohaku-overlay",
    "address replace 10.128.64.1/18 dev kohaku-overlay",
    "route replace 10.128.0.0/12 dev vxkrW0 src 10.128.64.1 proto 183",
    "route replace 10.128.64.254/32 dev vxkrW0 src 10.128.64.1 proto 183",
    "route replace unreachable 10.128.0.0/12 proto 183 metric 4096",
    "route replace default dev vxkrW0 proto 183 table 3083008888",
    "END",
    LOOSE,
    FORWARD,
  ]);
});

test("probes wait for a second handshake, because the first ones of both ends may cross", () => {
  const { script } = planProbe({ layouts: [parseLayout("10.128.0.0/12/6/14")] }, 1440, [], []);
  expect(script).toBe(
    "for i in 1 2 3 4 5 6 7; do ping -c 1 -W 1 -M do -s 1412 10.128.0.1 >/dev/null 2>&1 && break; [ $i -lt 7 ] && sleep 0.2 || exit 1; done",
  );
  const peer = { id: 2, underlayIp: "192.0.2.12", port: 51822, publicKey: OTHER_KEY, isRouted: false };
  expect(renderPeerProbes(network(), 1440, [peer])).toContain("for i in 1 2 3 4 5 6 7; do");
});

test.each([
  [
    "with our port and an address for probes is ours, although the host has lost its key with its records",
    51820,
    "fe80::1:1",
    true,
  ],
  ["with another port is not", 51821, "fe80::1:1", false],
  ["with another address is not", 51820, "fe80::2", false],
])("a device of our name %s", (_, port, local, expected) => {
  const link: Link = {
    ...{ kind: "link", name: "vxkrW0", type: "wireguard" },
    wireguard: {
      port: 51820,
      keyFile: "/var/lib/overlay/training/tunnel.key",
      publicKey: HUB_KEY,
      local: "192.0.2.11",
    },
  };
  const device = {
    ...{ ifname: "vxkrW0", flags: ["UP"], mtu: 1440, linkinfo: { info_kind: "tun" } },
    addr_info: [{ local, prefixlen: 64 }],
  };
  const wg = `@@ wg\n= vxkrW0 public-key\n${OTHER_KEY}\n= vxkrW0 listen-port\n${port}`;
  expect(isProvenLink(link, parseFacts(`@@ ip\n${JSON.stringify([device])}\n[]\n[]\n${wg}`))).toBe(expected);
});

test("IPv6 inside and outside", () => {
  const [there, here] = [
    { ...hub, underlayIp: "2001:db8::1" },
    { ...runner, underlayIp: "2001:db8::11" },
  ];
  const items = planRunner(dual, 1, "vxkrW0", there, here);
  expect(items.filter(({ kind }) => kind === "wgpeer" || kind === "neighbour")).toEqual([
    { kind: "neighbour", dev: "kohaku-overlay", ip: "10.128.64.254" },
    { kind: "neighbour", dev: "kohaku-overlay", ip: "fd00:128:0:1::fe" },
    {
      kind: "wgpeer",
      dev: "vxkrW0",
      publicKey: HUB_KEY,
      allowedIps: ["0.0.0.0/0", "::/0", "fe80::1:0/128"],
      endpoint: { ip: "2001:db8::1", port: 51820 },
      keepalive: 25,
    },
  ]);
  expect(items).toContainEqual({ kind: "sysctl", key: "net.ipv6.conf.kohaku-overlay.proxy_ndp", value: "1" });
  expect(items).toContainEqual(expect.objectContaining({ kind: "link", name: "vxkrW0", mtu: 1420 }));
  const rules = items.flatMap((item) =>
    item.kind === "rule" && item.family === 6 ? [`${item.chain} ${item.rule}`] : [],
  );
  expect(rules).toContain("OVERLAY-IN -p udp -m udp --dport 51820 -j ACCEPT");
  expect(rules.filter((rule) => rule.includes("vxkrW0"))).toEqual([
    "OVERLAY-PRE -s fe80::/64 -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j RETURN",
    "OVERLAY-IN -s fe80::/64 -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
    "OVERLAY-PRE -s fe80::/64 -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 129 -j RETURN",
    "OVERLAY-IN -s fe80::/64 -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 129 -j ACCEPT",
    "OVERLAY-GUARD -s fd00:128:0:1::/64 -i kohaku-overlay -o vxkrW0 -j RETURN",
    "OVERLAY-GUARD -d fd00:128:0:1::/64 -i vxkrW0 -o kohaku-overlay -j RETURN",
    "OVERLAY-GUARD -i vxkrW0 -j DROP",
    "OVERLAY-GUARD -o vxkrW0 -j DROP",
    "OVERLAY-FWD -s fd00:128:0:1::/64 -i kohaku-overlay -o vxkrW0 -j ACCEPT",
    "OVERLAY-FWD -d fd00:128:0:1::/64 -i vxkrW0 -o kohaku-overlay -j ACCEPT",
    "OVERLAY-IN -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 135 -j ACCEPT",
    "OVERLAY-IN -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 136 -j ACCEPT",
    "OVERLAY-IN -s fd00:128::/48 -i vxkrW0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "OVERLAY-IN -s fd00:128::/48 -i vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
    "OVERLAY-IN -i vxkrW0 -j REJECT --reject-with icmp6-port-unreachable",
    "OVERLAY-OUT -o vxkrW0 -p ipv6-icmp -m icmp6 --icmpv6-type 137 -j DROP",
  ]);
});

test.each([
  ["a hub", planHub(network(), hub), ["fe80::1:0/64"]],
  ["a runner", planRunner(network(), 1, "vxkrW0", hub, runner), ["fe80::1:1/64"]],
  [
    "a runner with a large id",
    planRunner(network({ layouts: [parseLayout("10.0.0.0/8/16/8")] }), 65_000, "vxkrW0", hub, runner),
    ["fe80::1:fde8/64"],
  ],
  ["a device too small for IPv6", planRunner(network({ mtu: 1200 }), 1, "vxkrW0", hub, runner), []],
])("probe address of %s in a network without IPv6", (_, items, expected) => {
  const probes = items.flatMap((item) => (item.kind === "address" && item.dev === "vxkrW0" ? [item.address] : []));
  expect(probes.filter((address) => address.includes(":"))).toEqual(expected);
  const withIpv6 = { ...BARE, ip6tables: true };
  expect(withLocalRules(items, withIpv6).filter(isProbe)).toEqual(items.filter(isProbe));
  expect(withLocalRules(items, BARE).filter(isProbe)).toEqual([]);
});

const isProbe = (item: Item): boolean => item.kind === "address" && item.address.startsWith("fe80:");

const state = (uid: string, items: Item[]): DesiredState => ({
  record: { uid, owner: `org/${uid}`, network: "training", store: "s" },
  items,
});

test.each([
  ["the hub", [state("net", planHub(dual, hub)), state("r1", planTunnel(dual, 1, hub, runner))]],
  ["a runner", [state("r1", planRunner(dual, 1, "vxkrW0", hub, runner))]],
])("%s that has all of it has no difference, and a removal takes all of it", (_, states) => {
  const facts = hostWith(states);
  expect(states.flatMap(({ items }) => diffItems(items, facts).map(formatDifference))).toEqual([]);
  const removed = planSteps(
    states.map((each) => ({ ...each, items: [] })),
    facts,
  ).map(({ verb, item }) => `${verb} ${item.kind}`);
  expect(new Set(removed)).toEqual(
    new Set(
      ["link", "key", "rule", "chain", "jump", "sysctl", ...(removed.includes("remove route") ? ["route"] : [])].map(
        (kind) => `remove ${kind}`,
      ),
    ),
  );
});

test("a boot script makes the device before its peers, and without them the range is still rejected", () => {
  const script = renderBootScript("training", planRunner(network(), 1, "vxkrW0", hub, runner)).split("\n");
  const at = (text: string): number => script.findIndex((line) => line.includes(text));
  expect(at("type wireguard")).toBeGreaterThan(0);
  expect(at("wg set vxkrW0 private-key")).toBeGreaterThan(at("type wireguard"));
  expect(at("wg set vxkrW0 peer")).toBeGreaterThan(at("wg set vxkrW0 private-key"));
  expect(at("route replace unreachable")).toBeGreaterThan(at("wg set vxkrW0 peer"));
  expect(script.join("\n")).not.toContain("genkey");
});

const KEYS_ON_HOST = `@@ ip
[{"ifname":"vxkrW0","mtu":1440,"flags":["UP"],"linkinfo":{"info_kind":"wireguard"}}]
@@ wg
= vxkrW0 public-key
${HUB_KEY}
= vxkrW0 listen-port
51820
= vxkrW0 allowed-ips
${RUNNER_KEY}\tfd00:128:0:1::/64 10.128.64.0/18
${OTHER_KEY}\t(none)
= vxkrW0 endpoints
${RUNNER_KEY}\t[2001:db8::7]:1024
${OTHER_KEY}\t(none)
= vxkrW0 persistent-keepalive
${RUNNER_KEY}\t25
${OTHER_KEY}\toff
= other0 public-key
${OTHER_KEY}
@@ keys
/var/lib/overlay/training/tunnel.key ${HUB_KEY}
/var/lib/overlay/broken/tunnel.key 
/etc/passwd ${HUB_KEY}
@@ neighbours
10.128.64.254 dev kohaku-overlay proxy 
fd00:128:0:1::fe dev kohaku-overlay proxy 
10.0.0.1 dev eth0 lladdr 02:00:00:00:00:01 proxy router`;

test("devices, peers and public keys are read", () => {
  const facts = parseFacts(KEYS_ON_HOST);
  expect(facts.links.get("vxkrW0")!.wireguard).toEqual({
    publicKey: HUB_KEY,
    port: 51820,
    peers: new Map([
      [
        RUNNER_KEY,
        { allowedIps: ["10.128.64.0/18", "fd00:128:0:1::/64"], endpoint: "[2001:db8::7]:1024", keepalive: 25 },
      ],
      [OTHER_KEY, { allowedIps: [], keepalive: 0 }],
    ]),
  });
  expect([...facts.keys]).toEqual([
    ["/var/lib/overlay/training/tunnel.key", HUB_KEY],
    ["/var/lib/overlay/broken/tunnel.key", ""],
  ]);
  expect([...facts.proxies]).toEqual(["10.128.64.254 kohaku-overlay", "fd00:128:0:1::fe kohaku-overlay"]);
});

test.each([
  ["1", "wireguard", 1],
  ["0", "wireguard", 0],
  ["1", "tun", 0],
])("threaded NAPI %s on a device of type %s: %i warnings", (threaded, type, count) => {
  const text = KEYS_ON_HOST.replace('"info_kind":"wireguard"', `"info_kind":"${type}"`).replace(
    "= other0",
    `= vxkrW0 threaded\n${threaded}\n= other0`,
  );
  const { record, items } = state("net", planHub(dual, hub));
  const facts = { ...parseFacts(text), records: [{ ...record, items }] };
  expect(threadedWarnings(facts)).toEqual(
    Array(count).fill(expect.stringContaining("threaded NAPI is on for vxkrW0. In kernels without the fix")),
  );
});

test("a peer that is silent is a difference", () => {
  const items = planTunnel(network(), 1, hub, runner);
  const facts = hostWith([state("r1", items)]);
  facts.links.get("vxkrW0")!.wireguard!.peers.get(RUNNER_KEY)!.isSilent = true;
  expect(diffItems(items, facts).map(formatDifference)).toEqual([
    `peer ${RUNNER_KEY} of vxkrW0: no handshake for 180 s, and no answer`,
  ]);
  const read = parseFacts(`${KEYS_ON_HOST}\n@@ silent\nvxkrW0 ${RUNNER_KEY}\nother0 ${RUNNER_KEY}\nvxkrW0 unknown`);
  const peers = read.links.get("vxkrW0")!.wireguard!.peers;
  expect([peers.get(RUNNER_KEY)!.isSilent, peers.get(OTHER_KEY)!.isSilent]).toEqual([true, undefined]);
});

test("no script asks for a private key", () => {
  const script = preflightScript([state("net", planHub(dual, hub))]);
  expect(script).toContain("wg show");
  expect(script).not.toMatch(/\bdump\b|showconf|private-key/);
});

test("an endpoint that the kernel has learned is no difference; one that is planned anew is", () => {
  const before = planTunnel(network(), 1, hub, runner);
  const facts = hostWith([state("r1", before)]);
  facts.links.get("vxkrW0")!.wireguard!.peers.get(RUNNER_KEY)!.endpoint = "203.0.113.9:40000";
  expect(diffItems(before, facts)).toEqual([]);
  const moved = planTunnel(network(), 1, hub, { ...runner, underlayIp: "192.0.2.12" });
  expect(diffItems(moved, facts).map(formatDifference)).toEqual([
    `peer ${RUNNER_KEY} of vxkrW0: endpoint is 203.0.113.9:40000, should be 192.0.2.12:51820`,
  ]);
});

test("a key that another runner has is refused, and so is the hub's own", () => {
  const facts = hostWith([state("net", planHub(network(), hub)), state("r1", planTunnel(network(), 1, hub, runner))]);
  const copy = (publicKey: string) => () =>
    preflight(state("r2", planTunnel(network(), 2, hub, { ...runner, underlayIp: "192.0.2.12", publicKey })), facts);
  expect(copy(RUNNER_KEY)).toThrow(
    `KEY_DUPLICATE: The public key ${RUNNER_KEY} of the host at 192.0.2.12 is also that of org/r1`,
  );
  expect(copy(HUB_KEY)).toThrow(
    `KEY_DUPLICATE: The public key ${HUB_KEY} of the host at 192.0.2.12 is also that of this host`,
  );
  expect(copy(OTHER_KEY)).not.toThrow();
});

test("without WireGuard on the host nothing is changed", () => {
  const facts = { ...hostWith([]), missingFeatures: ["wireguard"] };
  expect(() => preflight(state("net", planHub(network(), hub)), facts)).toThrow(
    "HOST_TOOL_MISSING: There is no WireGuard, and vxkrW0 must be a device of it",
  );
});

test("a device of another program under our name is left alone", () => {
  const facts = parseFacts(KEYS_ON_HOST.replace(HUB_KEY, OTHER_KEY));
  const desired = adaptToHost(state("net", planHub(network(), hub)), facts);
  expect(() => preflight(desired, facts)).toThrow("DEVICE_FOREIGN: There is already a device vxkrW0 (wireguard)");
});
