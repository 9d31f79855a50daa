import { expect, test } from "vitest";
import { tapName } from "../../../provider/addressing/layout";
import type { DesiredState, Link } from "../../../provider/network/model/items";
import { planRunner } from "../../../provider/network/plan/hub";
import { parseFacts } from "../../../provider/network/read/facts";
import { findLostPorts, parsePortFacts } from "../../../provider/network/read/ports";
import { renderChange } from "../../../provider/network/render/script";
import { hub, runner, training } from "../../network";

const docker = { name: "apps", required: false, share: 4 };
const desired: DesiredState = {
  record: { uid: "r1", owner: "o", network: "training", store: "s" },
  items: planRunner(training({ docker }), 1, "vxkr1", hub, runner),
};
const bridge = desired.items.find((item): item is Link => item.kind === "link" && item.type === "bridge")!;

const veth = (ifindex: number, ifname: string, more = {}) => ({
  ifindex,
  ifname,
  link_index: 2,
  link_netnsid: ifindex,
  linkinfo: { info_kind: "veth", info_data: {} },
  addr_info: [],
  ...more,
});
const tap = (ifindex: number, ifname: string) => ({
  ifindex,
  ifname,
  linkinfo: { info_kind: "tun", info_data: { type: "tap" } },
});
const inside = (id: number, ...addresses: string[]) => {
  const addr_info = addresses.map((local) => ({ local, scope: "global" }));
  return `@@ namespace ${id} 40${id}\n${JSON.stringify([{ ifindex: 2, ifname: "eth0", addr_info }])}`;
};
const found = (links: object[], ...parts: string[]) =>
  findLostPorts(bridge, desired, parsePortFacts([`@@ links\n${JSON.stringify(links)}`, ...parts].join("\n"))!, {
    ...parseFacts(""),
    routes: [{ family: 4, dst: "172.16.0.9", dev: "cali9", protocol: "boot", unreachable: false }],
  });

test.each<[string, ReturnType<typeof found>, string[], (string | RegExp)[]]>([
  ["a veth with an address of the subnet behind it", found([veth(7, "ve-a")], inside(7, "10.128.64.9")), ["ve-a"], []],
  ["one that is another bridge's port", found([veth(7, "ve-a", { master: "br0" })], inside(7, "10.128.64.9")), [], []],
  ["one with an address of another runner's", found([veth(7, "ve-a")], inside(7, "10.128.128.9")), [], []],
  [
    "one whose other end has the index in another namespace",
    found([veth(7, "ve-a", { link_netnsid: 8 })], inside(7, "10.128.64.9"), inside(8, "172.16.0.1")),
    [],
    [],
  ],
  [
    "a tap of a VM of this subnet",
    found([tap(7, tapName("training", "10.128.64.9"))]),
    [tapName("training", "10.128.64.9")],
    [],
  ],
  [
    "a tap of another runner's VM",
    found([tap(7, tapName("training", "10.128.128.9"))]),
    [],
    [/is no port of a bridge/],
  ],
  ["a veth whose other end has no address", found([veth(7, "ve-a")], inside(7)), [], [/^ve-a is no port/]],
  ["one that has a route of its own", found([veth(7, "cali9")]), [], []],
  [
    "a container whose port is not there",
    found(
      [veth(7, "ve-a")],
      inside(7, "10.128.64.9"),
      "@@ containers\n407 alpha apps,\n408 beta bridge,apps,\n409 other bridge,",
    ),
    ["ve-a"],
    [/^the port of container beta was not found.*`docker network disconnect apps beta`/],
  ],
])("ports of a bridge that was deleted: %s", (_, { ports, warnings }, plugged, said) => {
  expect(ports).toEqual(plugged);
  expect(warnings).toHaveLength(said.length);
  for (const [i, text] of said.entries()) expect(warnings[i]).toMatch(text);
});

test("ports are attached when the bridge is created", () => {
  const script = renderChange([{ verb: "add", item: bridge, ports: ["ve-a", "ve-b"] }], []);
  expect(script).toMatch(
    /link add kohaku-overlay .*\n.*up\nlink set dev ve-a master kohaku-overlay\nlink set dev ve-b/,
  );
});
