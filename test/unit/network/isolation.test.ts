import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { planSteps } from "../../../provider/network/diff/steps";
import { diffItems } from "../../../provider/network/kinds";
import type { Facts } from "../../../provider/network/model/facts";
import type { Item } from "../../../provider/network/model/items";
import { type Network, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import type { HostAccess } from "../../../provider/network/plan/isolation";
import { localWarnings, withLocalRules } from "../../../provider/network/plan/this-host";
import { preflight } from "../../../provider/network/preflight/preflight";
import { parseFacts } from "../../../provider/network/read/facts";
import { hub, runner, training } from "../../network";
import { recordPart } from "./host-facts";

const DUAL = [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")];
const dual = (changes: Partial<Network> = {}) => training({ layouts: DUAL, ...changes });

/** Rules as iptables-save writes them, without NAT. */
const rules = (items: Item[], family: 4 | 6): string[] =>
  items.flatMap((item) =>
    item.kind === "rule" && item.family === family && item.table !== "nat" ? [`${item.chain} ${item.rule}`] : [],
  );

test("the hub's end of a tunnel, IPv4", () => {
  expect(rules(planTunnel(dual(), 1, hub, runner), 4)).toEqual([
    "OVERLAY-GUARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN",
    "OVERLAY-GUARD -s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j RETURN",
    "OVERLAY-FWD -s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j ACCEPT",
    "OVERLAY-IN -s 10.128.0.0/12 -i vxkr+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "OVERLAY-IN -s 10.128.0.0/12 -i vxkr+ -p icmp -m icmp --icmp-type 8 -j ACCEPT",
    "OVERLAY-OUT -o vxkr+ -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000",
    "OVERLAY-IN -s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT",
    "OVERLAY-IN -p udp -m udp --dport 4789 -j DROP",
    "OVERLAY-PRE ! -s 10.128.64.0/18 -i vxkr1 -j DROP",
    "OVERLAY-GUARD -i vxkr1 -j DROP",
    "OVERLAY-GUARD -o vxkr1 -j DROP",
    "OVERLAY-IN -i vxkr1 -j REJECT --reject-with icmp-port-unreachable",
  ]);
});

test("the hub's end of a tunnel, IPv6: neighbours are found by link-local addresses", () => {
  expect(rules(planTunnel(dual(), 1, hub, runner), 6)).toEqual([
    "OVERLAY-PRE -s fe80::/10 -i vxkr+ -j RETURN",
    "OVERLAY-PRE -s ::/128 -i vxkr+ -j RETURN",
    "OVERLAY-GUARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN",
    "OVERLAY-GUARD -s fd00:128::/48 -d fd00:128::/48 -i vxkr+ -o vxkr+ -j RETURN",
    "OVERLAY-FWD -s fd00:128::/48 -d fd00:128::/48 -i vxkr+ -o vxkr+ -j ACCEPT",
    "OVERLAY-IN -i vxkr+ -p ipv6-icmp -m icmp6 --icmpv6-type 135 -j ACCEPT",
    "OVERLAY-IN -i vxkr+ -p ipv6-icmp -m icmp6 --icmpv6-type 136 -j ACCEPT",
    "OVERLAY-IN -s fd00:128::/48 -i vxkr+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "OVERLAY-IN -s fd00:128::/48 -i vxkr+ -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
    "OVERLAY-OUT -o vxkr+ -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000",
    "OVERLAY-PRE ! -s fd00:128:0:1::/64 -i vxkr1 -j DROP",
    "OVERLAY-GUARD -i vxkr1 -j DROP",
    "OVERLAY-GUARD -o vxkr1 -j DROP",
    "OVERLAY-IN -i vxkr1 -j REJECT --reject-with icmp6-port-unreachable",
  ]);
});

test("a runner, IPv6 over an IPv6 underlay", () => {
  const [there, here] = [
    { ...hub, underlayIp: "2001:db8::1" },
    { ...runner, underlayIp: "2001:db8::11" },
  ];
  expect(rules(planRunner(dual(), 1, "vxkr1", there, here), 6)).toEqual([
    "OVERLAY-IN -s 2001:db8::1/128 -p udp -m udp --dport 4789 -j ACCEPT",
    "OVERLAY-IN -p udp -m udp --dport 4789 -j DROP",
    "OVERLAY-PRE ! -d fd00:128::/48 -i kohaku-overlay -p udp -m udp --dport 4789 -j DROP",
    "OVERLAY-GUARD -s fd00:128:0:1::/64 -d 2001:db8::1/128 -i kohaku-overlay -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j RETURN",
    "OVERLAY-GUARD -d 2001:db8::1/128 -i kohaku-overlay -j DROP",
    "OVERLAY-GUARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN",
    "OVERLAY-GUARD -s fe80::/10 -i kohaku-overlay -o kohaku-overlay -j RETURN",
    "OVERLAY-GUARD -s ::/128 -i kohaku-overlay -o kohaku-overlay -j RETURN",
    "OVERLAY-GUARD ! -s fd00:128:0:1::/64 ! -d fd00:128:0:1::/64 -i kohaku-overlay -o kohaku-overlay -j DROP",
    "OVERLAY-GUARD ! -s fd00:128:0:1::/64 -i kohaku-overlay ! -o kohaku-overlay -j DROP",
    "OVERLAY-GUARD ! -i kohaku-overlay -o kohaku-overlay -j DROP",
    "OVERLAY-OUT -o kohaku-overlay -p ipv6-icmp -m icmp6 --icmpv6-type 137 -j DROP",
    "OVERLAY-OUT -o kohaku-overlay -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000",
    "OVERLAY-FWD -i kohaku-overlay -o kohaku-overlay -j ACCEPT",
    "OVERLAY-FWD -o kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "OVERLAY-IN -i kohaku-overlay -p ipv6-icmp -m icmp6 --icmpv6-type 135 -j ACCEPT",
    "OVERLAY-IN -i kohaku-overlay -p ipv6-icmp -m icmp6 --icmpv6-type 136 -j ACCEPT",
    "OVERLAY-IN -s fd00:128::/48 -i kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "OVERLAY-IN -s fd00:128::/48 -i kohaku-overlay -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
    "OVERLAY-IN -i kohaku-overlay -j REJECT --reject-with icmp6-port-unreachable",
  ]);
});

test("in a family that the network does not have, hub and runner drop everything", () => {
  const v4 = training();
  expect(rules(planTunnel(v4, 1, hub, runner), 6)).toEqual(["OVERLAY-PRE -i vxkr1 -j DROP"]);
  expect(rules(planRunner(v4, 1, "vxkr1", hub, runner), 6)).toEqual([
    "OVERLAY-GUARD -i kohaku-overlay ! -o kohaku-overlay -j DROP",
    "OVERLAY-GUARD ! -i kohaku-overlay -o kohaku-overlay -j DROP",
    "OVERLAY-IN -i kohaku-overlay -j REJECT --reject-with icmp6-port-unreachable",
  ]);
});

const FROM = "OVERLAY-IN -s 10.128.0.0/12 -i kohaku-overlay";
const CLOSED = "OVERLAY-IN -i kohaku-overlay -j REJECT --reject-with icmp-port-unreachable";

test.each<[HostAccess, string[]]>([
  ["ping", [`${FROM} -p icmp -m icmp --icmp-type 8 -j ACCEPT`, CLOSED]],
  ["all", [`${FROM} -j ACCEPT`, `${FROM} -p icmp -m icmp --icmp-type 8 -j ACCEPT`]],
  [
    [
      { protocol: "tcp", first: 22, last: 22 },
      { protocol: "udp", first: 6000, last: 6100 },
    ],
    [
      `${FROM} -p icmp -m icmp --icmp-type 8 -j ACCEPT`,
      `${FROM} -p tcp -m tcp --dport 22 -j ACCEPT`,
      `${FROM} -p udp -m udp --dport 6000:6100 -j ACCEPT`,
      CLOSED,
    ],
  ],
])("hostAccess %j", (hostAccess, expected) => {
  const all = rules(planRunner(training({ hostAccess }), 1, "vxkr1", hub, runner), 4);
  const mine = all.filter((rule) => rule.startsWith("OVERLAY-IN") && !/ctstate|4789/.test(rule));
  expect(mine).toEqual(expected);
});

const ETH0 = { ifname: "eth0", mtu: 1500, flags: ["UP"], addr_info: [{ local: "192.0.2.11", prefixlen: 24 }] };
const vxlan = (ifname: string, data: object) => ({
  ...{ ifname, mtu: 1450, flags: ["UP"], addr_info: [] },
  linkinfo: { info_kind: "vxlan", info_data: { id: 7, port: 4789, ...data } },
});
const facts = (links: object[], ...more: string[]): Facts =>
  parseFacts([`@@ ip\n${JSON.stringify([ETH0, ...links])}`, "@@ rules6", ...more, ""].join("\n"));
const PLAN = planRunner(training(), 1, "vxkr1", hub, runner);
const added = (host: Facts, plan = PLAN): string[] => {
  const before = rules([...plan], 4);
  return rules(withLocalRules(plan, host), 4).filter((rule) => !before.includes(rule));
};
const DROP = "OVERLAY-IN -p udp -m udp --dport 4789 -j DROP";

test("packets of workloads leave by the devices of the default route and of the underlay, and by no other", () => {
  const routes =
    '[{"dst":"default","gateway":"198.51.100.1","dev":"eth1","protocol":"dhcp"},{"dst":"172.17.0.0/16","dev":"docker0","protocol":"kernel"}]';
  expect(added(facts([], `@@ ip\n[]\n${routes}`))).toEqual([
    "OVERLAY-FWD -i kohaku-overlay -o eth0 -j ACCEPT",
    "OVERLAY-FWD -i kohaku-overlay -o eth1 -j ACCEPT",
    "OVERLAY-PRE -i eth0 -p udp -m udp --dport 4789 -j RETURN",
    "OVERLAY-PRE -i eth1 -p udp -m udp --dport 4789 -j RETURN",
    "OVERLAY-PRE -p udp -m udp --dport 4789 -m addrtype --dst-type LOCAL -j DROP",
    "OVERLAY-GUARD -o eth0 -p udp -m udp --dport 4789 -j DROP",
    "OVERLAY-GUARD -o eth1 -p udp -m udp --dport 4789 -j DROP",
    "OVERLAY-OUT -o eth0 -p udp -m udp --dport 4789 -m owner --uid-owner 1-4294967294 -m mark ! --mark 0x20000000/0x20000000 -j DROP",
    "OVERLAY-OUT -o eth1 -p udp -m udp --dport 4789 -m owner --uid-owner 1-4294967294 -m mark ! --mark 0x20000000/0x20000000 -j DROP",
  ]);
});

const ofTunnelPort = (host: Facts): string[] => added(host).filter((rule) => /PRE|OUT/.test(rule));
const ARRIVE = (device: string): string => `OVERLAY-PRE -i ${device} -p udp -m udp --dport 4789 -j RETURN`;
const LOCAL = "OVERLAY-PRE -p udp -m udp --dport 4789 -m addrtype --dst-type LOCAL -j DROP";
const USERS = (device: string): string =>
  `OVERLAY-OUT -o ${device} -p udp -m udp --dport 4789 -m owner --uid-owner 1-4294967294 -m mark ! --mark 0x20000000/0x20000000 -j DROP`;
const MARK = "OVERLAY-OUT -o theirs -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000";
const ECMP =
  '[{"dst":"192.0.2.0/24","protocol":"bgp","nexthops":[{"gateway":"198.51.100.1","dev":"eth1"},{"gateway":"203.0.113.1","dev":"eth2"}]},{"dst":"default","dev":"eth9","protocol":"dhcp"}]';

test.each<[string, object[], string[], string[]]>([
  ["the device with our address", [], [], [ARRIVE("eth0"), LOCAL, USERS("eth0")]],
  [
    "also those of the most specific route to the peer",
    [],
    [`@@ ip\n[]\n${ECMP}`],
    [...["eth0", "eth1", "eth2"].map(ARRIVE), LOCAL, ...["eth0", "eth1", "eth2"].map(USERS)],
  ],
  [
    "also those of another program's tunnel on the port, whose users are not dropped",
    [vxlan("theirs", { remote: "198.51.100.9" })],
    ['@@ ip\n[]\n[{"dst":"198.51.100.0/24","dev":"eth7","protocol":"kernel"}]'],
    [ARRIVE("eth0"), LOCAL, USERS("eth0"), ARRIVE("eth7"), MARK],
  ],
  ["all devices, if its peers are not known", [vxlan("theirs", {})], [], [ARRIVE("eth0"), USERS("eth0"), MARK]],
])("the port of a tunnel is open to %s", (_, links, more, expected) => {
  expect(ofTunnelPort(facts(links, ...more))).toEqual(expected);
});

const OFF = "/proc/sys/net/ipv4/ip_forward:0";
const ON = "/proc/sys/net/ipv4/ip_forward:1";
const former = (value: number): string => `/var/lib/overlay/former/net.ipv4.ip_forward:${value}`;
const CLOSED_BY_US = "*filter\n:OVERLAY-REST - [0:0]\n-A OVERLAY-REST -j DROP\nCOMMIT";
const REST_RULE: Item = { kind: "rule", family: 4, table: "filter", chain: "OVERLAY-REST", rule: "-j DROP" };
const onRecord = (...items: Item[]): string =>
  recordPart({
    ...{ uid: "u", owner: "o", network: "training", store: "s" },
    items: [{ kind: "sysctl", key: "net.ipv4.ip_forward", value: "1" }, ...items],
  });
const REST = ["OVERLAY-REST -i kohaku-overlay -j RETURN", "OVERLAY-REST -j DROP"];

test.each<[string, string, string[]]>([
  ["off until now", OFF, REST],
  ["switched on by us", `${former(0)}\n${ON}`, REST],
  ["on before us", ON, []],
  ["on before us, as the saved value shows", `${former(1)}\n${ON}`, []],
  ["switched on by us, with the saved value lost", `${ON}\n@@ rules4\n${CLOSED_BY_US}`, REST],
  ["switched on by us, with the saved value and the rules lost", `${ON}\n${onRecord(REST_RULE)}`, REST],
  ["on before us, with the saved value lost, and switched off since", `${OFF}\n${onRecord()}`, []],
  ["switched on by us, with a saved value that is none", `${former(7)}\n${ON}\n@@ rules4\n${CLOSED_BY_US}`, REST],
])("forwarding that was %s", (_, sysctls, rest) => {
  expect(added(facts([], `@@ sysctls\n${sysctls}`)).filter((rule) => rule.startsWith("OVERLAY-REST"))).toEqual(rest);
});

test.each<[string, string, string, string[]]>([
  ["saved before the first change", OFF, "0", ["value is 0, should be 1", "its former value is not saved"]],
  ["saved although it needs no change", ON, "1", ["its former value is not saved"]],
  ["written once", `${former(0)}\n${ON}`, "", []],
  ["known from OVERLAY-REST", `${ON}\n@@ rules4\n${CLOSED_BY_US}`, "0", ["its former value is not saved"]],
])("the former value of forwarding is %s", (_, parts, saved, wrong) => {
  const item: Item = { kind: "sysctl", key: "net.ipv4.ip_forward", value: "1" };
  const host = facts([], `@@ sysctls\n${parts}`);
  expect(diffItems([item], host).flatMap((each) => each.wrong)).toEqual(wrong);
  const steps = planSteps([{ record: { uid: "u", owner: "o", network: "n", store: "s" }, items: [item] }], host);
  expect(steps.map(({ formerValue }) => formerValue).join()).toBe(saved);
});

test.each(["7", "", "yes", "0 1", "1\n0", "-1"])("a saved former value %j is refused", (found) => {
  const files = found.split("\n").map((line) => `/var/lib/overlay/former/net.ipv4.ip_forward:${line}`);
  const host = facts([], `@@ sysctls\n${ON}\n${files.join("\n")}`);
  const desired = { record: { uid: "u", owner: "o", network: "n", store: "s" }, items: PLAN };
  expect(() => preflight(desired, host)).toThrow(
    `FILE_FOREIGN: /var/lib/overlay/former/net.ipv4.ip_forward says whether this host forwarded packets before the overlay, and has ${JSON.stringify(found)} instead of 0 or 1.`,
  );
  expect(diffItems(PLAN, host).flatMap(({ wrong }) => wrong)).toContain(
    `its saved former value is ${JSON.stringify(found)}`,
  );
});

test.each<[string, object[], string[], added: string[], dropped: boolean, warning: string]>([
  ["no other tunnel", [], [], [], true, ""],
  ["another's tunnel on another port", [vxlan("theirs", { port: 8472, remote: "192.0.2.77" })], [], [], true, ""],
  [
    "another's tunnel on our port",
    [vxlan("theirs", { remote: "192.0.2.77" })],
    [],
    ["OVERLAY-IN -s 192.0.2.77/32 -p udp -m udp --dport 4789 -j ACCEPT"],
    true,
    "",
  ],
  [
    "one with unknown peers",
    [vxlan("vxlan.calico", {})],
    [],
    [],
    false,
    "because device vxlan.calico uses UDP port 4789",
  ],
  [
    "one with a multicast group",
    [vxlan("theirs", { group: "239.1.1.1" })],
    [],
    [],
    false,
    "because device theirs uses",
  ],
  [
    "Docker's overlay networks",
    [],
    ['@@ docker\n[{"Name":"ingress","Driver":"overlay"}]'],
    [],
    false,
    "because Docker's overlay network ingress uses UDP port 4789",
  ],
])("VXLAN from hosts that are not peers, with %s", (_, links, more, accepts, dropped, warning) => {
  const host = facts(links, ...more);
  expect(added(host).filter((rule) => rule.startsWith("OVERLAY-IN"))).toEqual(accepts);
  expect(rules(withLocalRules(PLAN, host), 4).includes(DROP)).toBe(dropped);
  expect(localWarnings(PLAN, host).join()).toContain(warning);
  expect(localWarnings(PLAN, host)).toHaveLength(warning ? 1 : 0);
});

const SECOND = { ...ETH0, ifname: "eth1", addr_info: [{ local: "198.51.100.2", prefixlen: 24 }] };

test.each<[string, links: object[], all: number, device: number, warned: boolean]>([
  ["strict on the other network", [SECOND], 0, 1, false],
  ["off on the other network", [SECOND], 0, 0, true],
  ["loose on the other network", [SECOND], 2, 1, true],
  ["off where there is no other network", [], 0, 0, false],
])("reverse path filtering %s", (_, links, all, device, warned) => {
  const sysctls = `@@ sysctls\n/proc/sys/net/ipv4/conf/all/rp_filter:${all}\n/proc/sys/net/ipv4/conf/eth1/rp_filter:${device}`;
  const found = localWarnings(PLAN, facts(links, sysctls));
  expect(found.map((text) => text.split(":")[0])).toEqual(
    warned ? [`net.ipv4.conf.eth1.rp_filter is ${Math.max(all, device)}`] : [],
  );
});

test("a host without ip6tables gets no rules for a family that the network does not have", () => {
  expect(rules(withLocalRules(PLAN, parseFacts("")), 6)).toEqual([]);
  expect(rules(withLocalRules(PLAN, facts([])), 6)).toHaveLength(3);
});

test("a peer that gets another address is still accepted from the former one, unless another program has set that", () => {
  const moved = planRunner(training(), 1, "vxkr1", { ...hub, underlayIp: "192.0.2.2" }, runner);
  const standing = (remote: string) => facts([vxlan("vxkr1", { id: 101, remote })]);
  const transient = (host: Facts): string[] =>
    withLocalRules(moved, host, PLAN).flatMap((item) => (item.kind === "rule" && item.transient ? [item.rule] : []));
  expect(transient(standing("192.0.2.1"))).toEqual(["-s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT"]);
  expect(transient(standing("198.51.100.7"))).toEqual([]);
});
