import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { containsIp, findRiskySteps } from "../../../provider/network/diff/steps";
import type { Facts } from "../../../provider/network/model/facts";
import { type Item, itemKey, type Step } from "../../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderRevert } from "../../../provider/network/render/script";
import { hub, runner, training } from "../../network";

const network = training({
  layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/40/6/82")],
  mtu: 1430,
});

/** A runner with eth0 on 192.0.2.0/24 and our bridge, as its tools show it. */
const runnerFacts = (ssh: string): Facts =>
  parseFacts(
    [
      `@@ ssh\n${ssh}`,
      "@@ ip",
      JSON.stringify([
        {
          ifname: "eth0",
          address: "02:00:00:00:00:0b",
          mtu: 1500,
          flags: ["UP"],
          addr_info: [{ local: "192.0.2.11", prefixlen: 24 }],
        },
        {
          ifname: "kohaku-overlay",
          address: "02:b4:50:c4:a4:32",
          mtu: 1430,
          flags: ["UP"],
          linkinfo: { info_kind: "bridge" },
          addr_info: [{ local: "10.128.64.1", prefixlen: 18 }],
        },
        {
          ifname: "vxkr1",
          address: "02:6d:9b:be:e2:62",
          mtu: 1430,
          flags: ["UP"],
          master: "kohaku-overlay",
          linkinfo: {
            info_kind: "vxlan",
            info_data: { id: 101, remote: "192.0.2.1", local: "192.0.2.11", port: 4789, learning: false },
          },
        },
      ]),
      JSON.stringify([
        { dst: "default", gateway: "192.0.2.254", dev: "eth0", protocol: "dhcp" },
        { dst: "192.0.2.0/24", dev: "eth0", protocol: "kernel" },
        { dst: "10.128.64.0/18", dev: "kohaku-overlay", protocol: "kernel" },
        { dst: "10.128.0.0/12", gateway: "10.128.64.254", dev: "kohaku-overlay", protocol: "183" },
      ]),
      "@@ routing6",
      JSON.stringify([{ dst: "default", gateway: "fe80::1", dev: "eth0", protocol: "ra" }]),
      "@@ rules4\n*nat\n:PREROUTING ACCEPT [0:0]\n:OVERLAY-DNAT - [0:0]\n-A OVERLAY-DNAT -d 192.0.2.11/32 -j DNAT --to-destination 10.128.64.9\nCOMMIT",
      "@@ sysctls\n/proc/sys/net/ipv4/ip_forward:0\n/proc/sys/net/ipv6/conf/all/forwarding:0",
    ].join("\n"),
  );

const FROM_OUTSIDE = "198.51.100.7 40000 192.0.2.11 22";
const all = (verb: Step["verb"], items: Item[]): Step[] => items.map((item) => ({ verb, item }));
const nat = (rule: string): Item => ({ kind: "rule", family: 4, table: "nat", chain: "OVERLAY-DNAT", rule });

test.each<Step["verb"]>(["add", "change", "remove"])(
  "steps that %s items of an ordinary overlay cannot cut SSH from outside it",
  (verb) => {
    const v4 = { ...network, layouts: network.layouts.slice(0, 1) };
    const items = [...planHub(v4), ...planTunnel(v4, 1, hub, runner), ...planRunner(v4, 1, "vxkr1", hub, runner)];
    expect(findRiskySteps(all(verb, items), runnerFacts(FROM_OUTSIDE))).toEqual([]);
  },
);

test("without SSH no step is risky", () => {
  expect(findRiskySteps(all("remove", planHub(network)), runnerFacts(""))).toEqual([]);
});

const route = (dst: string): Item => ({ kind: "route", family: dst.includes(":") ? 6 : 4, dst, metric: 4096 });
const address = (text: string): Item => ({ kind: "address", dev: "kohaku-host", address: text });
const link = (name: string, master?: string): Item => ({
  kind: "link",
  name,
  type: "vxlan",
  ...(master && { master }),
});
const sysctl6: Item = { kind: "sysctl", key: "net.ipv6.conf.all.forwarding", value: "1" };

test.each<[string, string, Step, boolean]>([
  ["a route to the client's network", FROM_OUTSIDE, { verb: "add", item: route("198.51.100.0/24") }, true],
  ["a route to another network", FROM_OUTSIDE, { verb: "add", item: route("203.0.113.0/24") }, false],
  ["an address whose range has the client", FROM_OUTSIDE, { verb: "add", item: address("198.51.100.1/24") }, true],
  ["the client's own address", FROM_OUTSIDE, { verb: "add", item: address("198.51.100.7/32") }, true],
  ["the server's address", FROM_OUTSIDE, { verb: "remove", item: address("192.0.2.11/32") }, true],
  ["another address", FROM_OUTSIDE, { verb: "add", item: address("203.0.113.7/32") }, false],
  ["the device with the server's address", FROM_OUTSIDE, { verb: "change", item: link("eth0") }, true],
  ["a new port of it", FROM_OUTSIDE, { verb: "add", item: link("vxkr1", "eth0") }, true],
  [
    "the bridge, for SSH through the overlay",
    "10.128.128.9 1 10.128.64.1 22",
    { verb: "remove", item: link("kohaku-overlay") },
    true,
  ],
  [
    "its port, for SSH through the overlay",
    "10.128.128.9 1 10.128.64.1 22",
    { verb: "change", item: link("vxkr1") },
    true,
  ],
  [
    "the route back, for SSH through the overlay",
    "10.128.128.9 1 192.0.2.11 22",
    { verb: "change", item: link("vxkr1") },
    true,
  ],
  [
    "IPv6 forwarding, where the route was advertised",
    "2001:db8::7 1 2001:db8:1::b 22",
    { verb: "change", item: sysctl6 },
    true,
  ],
  ["IPv6 forwarding, for SSH by IPv4", FROM_OUTSIDE, { verb: "change", item: sysctl6 }, false],
  [
    "a forward of the server's own port",
    FROM_OUTSIDE,
    { verb: "add", item: nat("-d 192.0.2.11/32 -p tcp -m tcp --dport 22 -j DNAT --to-destination 10.128.64.9:22") },
    true,
  ],
  [
    "a forward of a range of ports with it",
    FROM_OUTSIDE,
    { verb: "add", item: nat("-p tcp -m tcp --dport 20:25 -j DNAT --to-destination 10.128.64.9") },
    true,
  ],
  [
    "a forward of another port",
    FROM_OUTSIDE,
    { verb: "add", item: nat("-d 192.0.2.11/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.128.64.9:80") },
    false,
  ],
  [
    "a forward of another protocol",
    FROM_OUTSIDE,
    { verb: "add", item: nat("-p udp -m udp --dport 22 -j DNAT --to-destination 10.128.64.9") },
    false,
  ],
  [
    "a forward of another address",
    FROM_OUTSIDE,
    { verb: "add", item: nat("-d 203.0.113.7/32 -p tcp -m tcp --dport 22 -j DNAT --to-destination 10.128.64.9:22") },
    false,
  ],
  ["a rule that accepts", FROM_OUTSIDE, { verb: "add", item: nat("-p tcp -m tcp --dport 22 -j ACCEPT") }, false],
  [
    "the removal of a rule that accepts",
    FROM_OUTSIDE,
    { verb: "remove", item: nat("-p tcp -m tcp --dport 22 -j ACCEPT") },
    true,
  ],
  [
    "a jump to existing rules that match SSH",
    FROM_OUTSIDE,
    { verb: "add", item: { kind: "jump", family: 4, table: "nat", from: "PREROUTING", chain: "OVERLAY-DNAT" } },
    true,
  ],
  [
    "the removal of a rule of the tunnel, for SSH through it",
    "10.128.128.9 1 10.128.64.1 22",
    { verb: "remove", item: nat("-s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT") },
    true,
  ],
])("%s", (_, ssh, step, yes) => {
  expect(findRiskySteps([step], runnerFacts(ssh)).map(({ item }) => itemKey(item))).toEqual(
    yes ? [itemKey(step.item)] : [],
  );
});

test.each<[string, string, boolean]>([
  ["10.128.0.0/12", "10.143.255.255", true],
  ["10.128.0.0/12", "10.144.0.0", false],
  ["10.128.64.1/18", "10.128.127.1", true],
  ["192.0.2.1", "192.0.2.1", true],
  ["192.0.2.1", "192.0.2.2", false],
  ["0.0.0.0/0", "203.0.113.1", true],
  ["0.0.0.0/0", "2001:db8::1", false],
  ["::/0", "203.0.113.1", false],
  ["fd00:128::/40", "fd00:128:3::9", true],
  ["default", "203.0.113.1", true],
])("%s covers %s: %s", (range, inside, yes) => {
  expect(containsIp(range, inside)).toBe(yes);
});

/** The commands that revert these steps, without those that all scripts have. */
const undone = (...steps: Step[]): string[] =>
  renderRevert(steps, runnerFacts(FROM_OUTSIDE))
    .split("\n")
    .filter((line) => !/^(rc=0|exit|END|COMMIT|\*|ip -force|iptables-restore)/.test(line));
const bridge = planRunner(network, 1, "vxkr1", hub, runner)[0]!;

test.each<[string, Step[], string[]]>([
  ["an added device", [{ verb: "add", item: link("vxnew") }], ["link del dev vxnew"]],
  [
    "a changed device gets back what it had",
    [{ verb: "change", item: { ...link("vxkr1"), mtu: 1300 } as Item }],
    [
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxkr1 address 02:6d:9b:be:e2:62 mtu 1430 master kohaku-overlay up",
    ],
  ],
  [
    "a removed bridge is created with its port, address and route",
    [{ verb: "remove", item: bridge }],
    [
      "link add kohaku-overlay address 02:b4:50:c4:a4:32 type bridge",
      "link set dev kohaku-overlay address 02:b4:50:c4:a4:32 mtu 1430 nomaster up",
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxkr1 address 02:6d:9b:be:e2:62 mtu 1430 master kohaku-overlay up",
      "address replace 10.128.64.1/18 dev kohaku-overlay",
      "route replace 10.128.0.0/12 via 10.128.64.254 dev kohaku-overlay proto 183",
    ],
  ],
  [
    "a device that was created again",
    [
      { verb: "remove", item: link("vxkr1") },
      { verb: "add", item: link("vxkr1") },
    ],
    [
      "link del dev vxkr1",
      "link add vxkr1 address 02:6d:9b:be:e2:62 type vxlan id 101 dstport 4789 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxkr1 address 02:6d:9b:be:e2:62 mtu 1430 master kohaku-overlay up",
    ],
  ],
  ["an address", [{ verb: "add", item: address("198.51.100.1/24") }], ["address del 198.51.100.1/24 dev kohaku-host"]],
  [
    "a route",
    [{ verb: "add", item: route("198.51.100.0/24") }],
    ["route del unreachable 198.51.100.0/24 proto 183 metric 4096"],
  ],
  [
    "a route that led elsewhere",
    [{ verb: "change", item: { kind: "route", family: 4, dst: "10.128.0.0/12", via: "10.128.64.9", dev: "eth0" } }],
    ["route replace 10.128.0.0/12 via 10.128.64.254 dev kohaku-overlay proto 183"],
  ],
  [
    "rules, the last first",
    [
      { verb: "add", item: { kind: "chain", family: 4, table: "nat", chain: "OVERLAY-NEW" } },
      { verb: "add", item: { kind: "rule", family: 4, table: "nat", chain: "OVERLAY-NEW", rule: "-j DNAT" } },
      { verb: "add", item: { kind: "jump", family: 4, table: "nat", from: "PREROUTING", chain: "OVERLAY-NEW" } },
    ],
    ["-D PREROUTING -j OVERLAY-NEW", "-D OVERLAY-NEW -j DNAT", "-F OVERLAY-NEW", "-X OVERLAY-NEW"],
  ],
  [
    "a jump that was moved to the top stays",
    [{ verb: "change", item: { kind: "jump", family: 4, table: "nat", from: "PREROUTING", chain: "X" } }],
    [],
  ],
])("reverting %s", (_, steps, lines) => {
  expect(undone(...steps)).toEqual(lines);
});

test("reverting a sysctl sets its former value", () => {
  expect(undone({ verb: "change", item: sysctl6 }).join()).toContain(
    "echo '0' >/proc/sys/net/ipv6/conf/all/forwarding",
  );
});
