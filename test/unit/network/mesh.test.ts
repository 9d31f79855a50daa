import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { planSteps } from "../../../provider/network/diff/steps";
import { type Item, itemKey } from "../../../provider/network/model/items";
import { planRunner, type Underlay } from "../../../provider/network/plan/hub";
import { planProbe } from "../../../provider/network/plan/probes";
import type { MeshPeer } from "../../../provider/network/plan/tunnels/tunnel";
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
