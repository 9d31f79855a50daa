import { describe, expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { planSteps } from "../../../provider/network/diff/steps";
import { type Item, itemKey } from "../../../provider/network/model/items";
import { type Network, planRunner, type Underlay } from "../../../provider/network/plan/hub";
import { planProbe } from "../../../provider/network/plan/probes";
import { withLocalRules } from "../../../provider/network/plan/this-host";
import type { MeshPeer } from "../../../provider/network/plan/tunnels/tunnel";
import { describeForeign } from "../../../provider/network/preflight/foreign";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { hub, runner, training } from "../../network";
import { hostWith, recordFiles } from "./host-facts";

const KEYS = {
  own: "TI7Hy8FqtCtl4iS0zImetgZOQmCq4rAXk858fgWlUkM=",
  other: "00xJeODJIokOf+IUylyYW+k3n1gzSQHVVnOIEZATWH4=",
};
const network = training({
  tunnel: "wireguard",
  mtu: "auto",
  layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")],
});
const own: Underlay = { ...runner, publicKey: KEYS.own };
const other: MeshPeer = { id: 2, underlayIp: "192.0.2.12", publicKey: KEYS.other, port: 51820, isRouted: true };
const plan = (peers?: MeshPeer[]): Item[] => planRunner(network, 1, "vxkrW0", hub, own, peers);

/** Items that a runner has for the mesh. */
const added = (peers: MeshPeer[]): Item[] => {
  const before = new Set(plan().map(itemKey));
  return plan(peers).filter((item) => !before.has(itemKey(item)));
};

const WAY = {
  kind: "wgpeer",
  dev: "vxkrM0",
  publicKey: KEYS.other,
  allowedIps: ["10.128.128.0/18", "fd00:128:0:2::/64", "fe80::1:2/128"],
  endpoint: { ip: "192.0.2.12", port: 51822 },
  keepalive: 25,
};
const ROUTES = [
  { kind: "route", family: 4, dst: "10.128.128.0/18", dev: "vxkrM0", src: "10.128.64.1" },
  { kind: "route", family: 6, dst: "fd00:128:0:2::/64", dev: "vxkrM0", src: "fd00:128:0:1::1" },
];

test("a runner of a mesh has a second device with an address, a port and no route, and all that it had before", () => {
  const items = added([]);
  expect(items.filter(({ kind }) => !["rule", "chain", "jump", "zone"].includes(kind))).toEqual([
    {
      kind: "link",
      name: "vxkrM0",
      type: "wireguard",
      mtu: 1440,
      wireguard: {
        port: 51822,
        keyFile: "/var/lib/overlay/training/tunnel.key",
        publicKey: KEYS.own,
        local: "192.0.2.11",
      },
    },
    { kind: "sysctl", key: "net.ipv4.conf.vxkrM0.rp_filter", value: "2" },
    { kind: "address", dev: "vxkrM0", address: "fe80::1:1/64" },
    { kind: "address", dev: "vxkrM0", address: "10.128.64.1/32" },
    { kind: "address", dev: "vxkrM0", address: "fd00:128:0:1::1/128" },
  ]);
  expect(items).toContainEqual(
    expect.objectContaining({ chain: "OVERLAY-IN", family: 4, rule: "-p udp -m udp --dport 51822 -j ACCEPT" }),
  );
  const keys = new Set(plan([other]).map(itemKey));
  expect(plan().filter((item) => !keys.has(itemKey(item)))).toEqual([]);
});

test.each([
  ["data has passed to it: it has a route", other, [WAY, ...ROUTES]],
  ["no data has passed to it: packets go by the hub", { ...other, isRouted: false }, [WAY]],
  ["it has no key yet: it is no peer", { id: 2, underlayIp: "192.0.2.12", port: 51820, isRouted: false }, []],
])("another runner of which %s", (_, peer, items) => {
  const base = new Set(added([]).map(itemKey));
  expect(added([peer]).filter((item) => !base.has(itemKey(item)))).toEqual(items);
});

test.each([
  ["each peer with a direct route must answer, in each family", [other], [["10.128.128.1"], ["fd00:128:0:2::1"]]],
  ["without direct routes one of those that the hub has", [{ ...other, isRouted: false }], [["10.128.192.1"]]],
  ["on a host without others nothing", undefined, []],
] as const)("in a probe of a runner %s", (_, peers, groups) => {
  const { others } = planProbe(network, 1420, peers ? ["10.128.192.1"] : [], peers ? [...peers] : []);
  expect(others).toEqual({ groups, reachableFrom: "hub" });
});

test("a device of a process that was renamed is known by its address, because wg knows it by its first name alone", () => {
  const record = {
    uid: "0123456789abcdef",
    owner: "o",
    network: "training",
    store: "0123456789abcdef",
    items: plan([]),
  };
  const tun = (ifname: string, local: string) => ({
    ...{ ifname, flags: ["UP"], mtu: 1440, linkinfo: { info_kind: "tun" } },
    addr_info: [{ local, prefixlen: 32 }],
  });
  const answer = [
    "@@ ip",
    JSON.stringify([tun("other0", "10.128.64.1"), tun("theirs", "10.9.9.9"), tun("vxkrM0", "10.128.64.1")]),
    recordFiles({ "/var/lib/overlay/training/0123456789abcdef.json": JSON.stringify(record) }),
  ].join("\n");
  const { links } = parseFacts(answer);
  expect([...links].map(([name, { renamedTo }]) => [name, renamedTo])).toEqual([
    ["theirs", undefined],
    ["vxkrM0", undefined],
    ["vxkrW0", "other0"],
  ]);
});

describe("with VXLAN", () => {
  const vxlan: Network = { ...network, tunnel: "vxlan" };
  const planVxlan = (peers?: MeshPeer[]): Item[] => planRunner(vxlan, 1, "vxkr1", hub, runner, peers);
  const peer: MeshPeer = { id: 2, underlayIp: "192.0.2.12", port: 4789, isRouted: true };
  const addedWith = (peers: MeshPeer[], before: Item[]): Item[] => {
    const keys = new Set(before.map(itemKey));
    return planVxlan(peers).filter((item) => !keys.has(itemKey(item)));
  };
  const rulesIn = (items: Item[]): string[] =>
    items.flatMap((item) => (item.kind === "rule" ? `${item.chain} ${item.family} ${item.rule}` : []));

  test("a runner has a device without a remote, on a port and with a VNI of its own", () => {
    const items = addedWith([], planVxlan());
    expect(items.filter(({ kind }) => !["rule", "chain", "jump", "zone"].includes(kind))).toEqual([
      {
        kind: "link",
        name: "vxkrMV",
        type: "vxlan",
        mac: "02:69:56:30:00:01",
        mtu: 1450,
        vxlan: { vni: 100, port: 4790, remote: "", local: "192.0.2.11" },
      },
      { kind: "sysctl", key: "net.ipv4.conf.vxkrMV.rp_filter", value: "2" },
      { kind: "address", dev: "vxkrMV", address: "fe80::1:1/64" },
      { kind: "address", dev: "vxkrMV", address: "10.128.64.1/32" },
      { kind: "address", dev: "vxkrMV", address: "fd00:128:0:1::1/128" },
      { kind: "sysctl", key: "net.ipv4.conf.kohaku-overlay.rp_filter", value: "2" },
    ]);
    expect(rulesIn(items)).toEqual(
      expect.arrayContaining([
        "OVERLAY-IN 4 -p udp -m udp --dport 4790 -j DROP",
        "OVERLAY-SRC 4 -i vxkrMV -j DROP",
        "OVERLAY-SRC 6 -i vxkrMV -j DROP",
        "OVERLAY-PRE 4 ! -d 10.128.0.0/12 -i kohaku-overlay -p udp -m udp --dport 4790 -j DROP",
      ]),
    );
  });

  test("a peer sends by its host alone, and from its subnets alone", () => {
    const items = addedWith([peer], planVxlan([]));
    expect(items.filter(({ kind }) => kind !== "rule")).toEqual([
      { kind: "vxpeer", dev: "vxkrMV", mac: "02:69:56:30:00:02", ip: "fe80::1:2", remote: "192.0.2.12" },
      {
        kind: "zone",
        rule: 'rule family="ipv4" source address="192.0.2.12" port port="4790" protocol="udp" accept',
        underlay: "192.0.2.11",
      },
      { kind: "route", family: 4, dst: "10.128.128.0/18", via: "fe80::1:2", dev: "vxkrMV", src: "10.128.64.1" },
      { kind: "route", family: 6, dst: "fd00:128:0:2::/64", via: "fe80::1:2", dev: "vxkrMV", src: "fd00:128:0:1::1" },
    ]);
    expect(rulesIn(items)).toEqual([
      "OVERLAY-IN 4 -s 192.0.2.12/32 -p udp -m udp --dport 4790 -j ACCEPT",
      "OVERLAY-SRC 4 -s 10.128.128.0/18 -i vxkrMV -m mac --mac-source 02:69:56:30:00:02 -j RETURN",
      "OVERLAY-SRC 6 -s fd00:128:0:2::/64 -i vxkrMV -m mac --mac-source 02:69:56:30:00:02 -j RETURN",
      "OVERLAY-SRC 6 -s fe80::1:2/128 -i vxkrMV -m mac --mac-source 02:69:56:30:00:02 -j RETURN",
    ]);
  });

  test("a host whose entries were learned has no others, and a host with no IPv6 has no peers", () => {
    const record = { uid: "0123456789abcdef", owner: "o", network: "training", store: "0123456789abcdef" };
    const device = {
      ...{ ifname: "vxkrMV", address: "02:69:56:30:00:01", flags: ["UP"], mtu: 1450 },
      linkinfo: { info_kind: "vxlan", info_data: { id: 100, port: 4790, local: "192.0.2.11", learning: true } },
    };
    const answer = [
      "@@ ip",
      JSON.stringify([device]),
      "[]",
      "@@ fdb",
      "02:69:56:30:00:02 dev vxkrMV dst 192.0.2.12 self permanent",
      "02:00:00:00:00:99 dev vxkrMV dst 192.0.2.12 self",
      "02:00:00:00:00:98 dev vxkrMV dst 192.0.2.99 self permanent",
    ].join("\n");
    const facts = parseFacts(answer);
    expect(facts.links.get("vxkrMV")!.fdb!.map(({ mac }) => mac)).toEqual(["02:69:56:30:00:02", "02:00:00:00:00:98"]);
    const items = planVxlan([peer]);
    expect(describeForeign({ record, items }, facts)).toEqual([
      expect.stringMatching(/^foreign FDB entry '02:00:00:00:00:98 dev vxkrMV dst 192.0.2.99' sends frames/),
    ]);
    const kinds = withLocalRules(
      planRunner({ ...vxlan, layouts: [vxlan.layouts[0]!] }, 1, "vxkr1", hub, runner, [peer]),
      facts,
    );
    expect(kinds.filter(({ kind }) => kind === "vxpeer")).toEqual([]);
  });

  test("a device is made before its peers, and these before routes to them", () => {
    const record = { uid: "0123456789abcdef", owner: "o", network: "training", store: "0123456789abcdef" };
    const script = renderChange(planSteps([{ record, items: planVxlan([peer]) }], hostWith([])), []);
    const lines = script.split("\n").filter((line) => line.includes("vxkrMV") && /link|fdb|neigh|route/.test(line));
    expect(lines).toEqual([
      "{ [ -e /sys/class/net/vxkrMV ] || ip link add vxkrMV address 02:69:56:30:00:01 type vxlan id 100 dstport 4790 local 192.0.2.11 learning; } || rc=1",
      "{ ip link set dev vxkrMV addrgenmode none 2>/dev/null || :; } || rc=1",
      "bridge fdb replace 02:69:56:30:00:02 dev vxkrMV dst 192.0.2.12 || rc=1",
      "link set dev vxkrMV address 02:69:56:30:00:01 mtu 1450 up",
      "neigh replace fe80::1:2 lladdr 02:69:56:30:00:02 dev vxkrMV nud permanent",
      "route replace 10.128.128.0/18 via inet6 fe80::1:2 dev vxkrMV src 10.128.64.1 proto 183",
      "route replace fd00:128:0:2::/64 via fe80::1:2 dev vxkrMV src fd00:128:0:1::1 proto 183",
    ]);
  });
});

test("the tunnel to the hub is not taken for a renamed mesh device, although both have the same key", () => {
  const record = {
    uid: "0123456789abcdef",
    owner: "o",
    network: "training",
    store: "0123456789abcdef",
    items: plan([other]),
  };
  const device = {
    ifname: "vxkrW0",
    flags: ["UP"],
    mtu: 1440,
    link_type: "none",
    linkinfo: { info_kind: "wireguard" },
  };
  const answer = [
    "@@ ip",
    JSON.stringify([device]),
    "[]",
    "@@ wg",
    "= vxkrW0 public-key",
    KEYS.own,
    "= vxkrW0 listen-port",
    "51820",
    recordFiles({ "/var/lib/overlay/training/0123456789abcdef.json": JSON.stringify(record) }),
  ].join("\n");
  const facts = parseFacts(answer);
  expect(facts.invalidRecords).toEqual([]);
  expect([...facts.links.keys()]).toEqual(["vxkrW0"]);
});

test("a peer that leaves: its routes are removed before the peer, so that no packet takes a route without a peer", () => {
  const record = { uid: "0123456789abcdef", owner: "o", network: "training", store: "0123456789abcdef" };
  const facts = hostWith([{ record, items: plan([other]) }]);
  const lines = renderChange(planSteps([{ record, items: plan([]) }], facts), []).split("\n");
  const removals = lines.filter((line) => line.includes("vxkrM0"));
  expect(removals).toEqual([
    "route del 10.128.128.0/18 dev vxkrM0 src 10.128.64.1 proto 183",
    "route del fd00:128:0:2::/64 dev vxkrM0 src fd00:128:0:1::1 proto 183",
    `wg set vxkrM0 peer ${KEYS.other} remove || rc=1`,
  ]);
});
