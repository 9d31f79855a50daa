import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { planSteps } from "../../../provider/network/diff/steps";
import { diffItems, formatDifference } from "../../../provider/network/kinds";
import type { Facts } from "../../../provider/network/model/facts";
import { type DesiredState, type Item, itemKey } from "../../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { refuseForeign } from "../../../provider/network/preflight/foreign";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { hub, onIpv4, runner, training } from "../../network";
import { hostWith, recordPart } from "./host-facts";

const network = training();

const desired = (uid: string, items: Item[], adopt = false): DesiredState => ({
  record: { uid, owner: `org/${uid}`, network: "training", store: "s" },
  items,
  adopt,
});

const factsOf = (...states: DesiredState[]): Facts => hostWith(states);

const text = (states: DesiredState[], facts: Facts): string[] =>
  planSteps(states, facts).map(({ verb, item }) => `${verb} ${itemKey(item)}`);

const hubState = desired("net", onIpv4(planHub(network)));
const tunnel1 = desired("r1", onIpv4(planTunnel(network, 1, hub, runner)));
const runnerState = desired("r1", onIpv4(planRunner(network, 1, "vxkr1", hub, runner)));

test("a host in the desired state needs no step", () => {
  expect(text([hubState, tunnel1], factsOf(hubState, tunnel1))).toEqual([]);
});

test("a bare host gets all items, in the order that the kernel needs", () => {
  const kinds = text([runnerState], factsOf()).map((step) => (step.startsWith("add rule ") ? "add rules" : step));
  expect(kinds.filter((step, i) => step !== kinds[i - 1])).toEqual([
    "add chain OVERLAY-IN (IPv4 filter)",
    "add chain OVERLAY-PRE (IPv4 raw)",
    "add chain OVERLAY-GUARD (IPv4 mangle)",
    "add chain OVERLAY-OUT (IPv4 raw)",
    "add chain OVERLAY-FWD (IPv4 filter)",
    "add chain OVERLAY-NAT (IPv4 nat)",
    "add rules",
    "add jump from INPUT to OVERLAY-IN (IPv4 filter)",
    "add jump from PREROUTING to OVERLAY-PRE (IPv4 raw)",
    "add jump from FORWARD to OVERLAY-GUARD (IPv4 mangle)",
    "add jump from OUTPUT to OVERLAY-OUT (IPv4 raw)",
    "add jump from FORWARD to OVERLAY-FWD (IPv4 filter)",
    "add jump from POSTROUTING to OVERLAY-NAT (IPv4 nat)",
    "add link kohaku-overlay",
    "add link vxkr1",
    "add address 10.128.64.1/18 on kohaku-overlay",
    "add route 10.128.0.0/12",
    "add route default in table 3083008888 (IPv4)",
    "change sysctl net.ipv4.ip_forward",
  ]);
});

test.each<[string, (facts: Facts) => void, string[], string[]]>([
  [
    "a deleted tunnel comes back with its address",
    (f) => {
      f.links.delete("vxkr1");
      f.addresses.delete("10.128.64.254/18 vxkr1");
    },
    ["link vxkr1: missing", "address 10.128.64.254/18 on vxkr1: missing"],
    ["add link vxkr1", "add address 10.128.64.254/18 on vxkr1"],
  ],
  [
    "a changed remote is set in place",
    (f) => {
      f.links.get("vxkr1")!.vxlan!.remote = "192.0.2.99";
    },
    ["link vxkr1: remote is 192.0.2.99, should be 192.0.2.11"],
    ["change link vxkr1"],
  ],
  [
    "another VNI needs a new device, and its address again",
    (f) => {
      f.links.get("vxkr1")!.vxlan!.vni = 7;
    },
    ["link vxkr1: VNI is 7, should be 101"],
    ["remove link vxkr1", "add link vxkr1", "add address 10.128.64.254/18 on vxkr1"],
  ],
  [
    "a flushed chain gets its rules again",
    (f) => f.chains.set("4 filter OVERLAY-FWD", []),
    ["rule '-s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j ACCEPT' in OVERLAY-FWD (IPv4 filter): missing"],
    ["add rule '-s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j ACCEPT' in OVERLAY-FWD (IPv4 filter)"],
  ],
  [
    "a rule that accepts after one that drops is moved before it",
    (f) => {
      const rules = f.chains.get("4 filter OVERLAY-IN")!;
      rules.push(rules.splice(rules.indexOf("-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT"), 1)[0]!);
    },
    [
      "rule '-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT' in OVERLAY-IN (IPv4 filter): it comes after a rule that drops",
    ],
    ["change rule '-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT' in OVERLAY-IN (IPv4 filter)"],
  ],
  [
    "a jump behind another program's rule is moved to the top",
    (f) => f.chains.get("4 filter FORWARD")!.unshift("-j REJECT"),
    ["jump from FORWARD to OVERLAY-FWD (IPv4 filter): position is 2, should be 1"],
    ["change jump from FORWARD to OVERLAY-FWD (IPv4 filter)"],
  ],
  [
    "forwarding that was switched off is switched on",
    (f) => f.sysctls.set("net.ipv4.ip_forward", "0"),
    ["sysctl net.ipv4.ip_forward: value is 0, should be 1"],
    ["change sysctl net.ipv4.ip_forward"],
  ],
  [
    "a device that is down is set up",
    (f) => {
      f.links.get("kohaku-host")!.up = false;
    },
    ["link kohaku-host: state is down, should be up"],
    ["change link kohaku-host"],
  ],
])("drift: %s", (_, spoil, drift, steps) => {
  const facts = factsOf(hubState, tunnel1);
  spoil(facts);
  const found = diffItems([...hubState.items, ...tunnel1.items], facts).map(formatDifference);
  expect([...new Set(found)]).toEqual(drift);
  expect(text([hubState, tunnel1], facts)).toEqual(steps);
});

test("the removal of one runner keeps shared items; the removal of the last one removes them", () => {
  const facts = factsOf(hubState, tunnel1);
  expect(text([desired("r1", [])], facts)).toEqual([
    "remove link vxkr1",
    "remove jump from PREROUTING to OVERLAY-PRE (IPv4 raw)",
    "remove rule '-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT' in OVERLAY-IN (IPv4 filter)",
    "remove rule '-p udp -m udp --dport 4789 -j DROP' in OVERLAY-IN (IPv4 filter)",
    "remove rule '! -s 10.128.64.0/18 -i vxkr1 -j DROP' in OVERLAY-PRE (IPv4 raw)",
    "remove rule '-i vxkr1 -j DROP' in OVERLAY-GUARD (IPv4 mangle)",
    "remove rule '-o vxkr1 -j DROP' in OVERLAY-GUARD (IPv4 mangle)",
    "remove rule '-i vxkr1 -j REJECT --reject-with icmp-port-unreachable' in OVERLAY-IN (IPv4 filter)",
    "remove chain OVERLAY-PRE (IPv4 raw)",
  ]);
  const last = text([desired("net", []), desired("r1", [])], facts);
  expect(last.filter((step) => !/ (rule|jump) /.test(step))).toEqual([
    "remove sysctl net.ipv4.ip_forward",
    "remove unreachable 10.128.0.0/12",
    "remove link kohaku-host",
    "remove link vxkr1",
    "remove chain OVERLAY-GUARD (IPv4 mangle)",
    "remove chain OVERLAY-FWD (IPv4 filter)",
    "remove chain OVERLAY-IN (IPv4 filter)",
    "remove chain OVERLAY-OUT (IPv4 raw)",
    "remove chain OVERLAY-PRE (IPv4 raw)",
  ]);
});

test("a rule that another network's record lists too is not removed", () => {
  const other = desired("other", planHub({ ...network, networkName: "other", hubInterface: "other-host" }));
  expect(text([desired("net", [])], factsOf(hubState, other))).toEqual(["remove link kohaku-host"]);
});

test("two owners in one request share the steps of shared items", () => {
  const second = desired("b", planHub({ ...network, networkName: "b", hubInterface: "b-host" }));
  const chains = text([hubState, second], factsOf()).filter((step) => step.startsWith("add chain"));
  expect(chains).toEqual([
    "add chain OVERLAY-GUARD (IPv4 mangle)",
    "add chain OVERLAY-FWD (IPv4 filter)",
    "add chain OVERLAY-IN (IPv4 filter)",
    "add chain OVERLAY-OUT (IPv4 raw)",
  ]);
});

test("items in the record of an earlier lease are taken over, and its other items are removed", () => {
  const earlier = desired("old", onIpv4(planTunnel(network, 2, hub, runner)));
  const withoutRules = (steps: string[]): string[] => steps.filter((step) => !/ (rule|jump|chain) /.test(step));
  expect(withoutRules(text([{ ...tunnel1, staleUids: ["old"] }], factsOf(earlier)))).toEqual([
    "remove link vxkr2",
    "add link vxkr1",
    "add address 10.128.64.254/18 on vxkr1",
  ]);
  const beside = withoutRules(text([tunnel1], factsOf(earlier)));
  expect(beside).toEqual(["add link vxkr1", "add address 10.128.64.254/18 on vxkr1"]);
});

test("a device of our name that is not the one we made is neither removed nor changed", () => {
  const facts = factsOf(tunnel1);
  const theirs = { vni: 777, port: 9999, remote: "198.51.100.7", local: "", learning: true };
  facts.links.set("vxkr1", { type: "vxlan", mac: "aa:aa:aa:aa:aa:aa", mtu: 1500, up: true, vxlan: theirs });
  expect(text([desired("r1", [])], facts)).not.toContain("remove link vxkr1");
  expect(() => refuseForeign(tunnel1, facts)).toThrow("DEVICE_FOREIGN");
});

test("another numbering of VNIs: all old tunnels are removed before the first is created", () => {
  const renumbered = (id: number) => desired(`r${id}`, planTunnel({ ...network, vniBase: 101 }, id, hub, runner));
  const tunnel2 = desired("r2", planTunnel(network, 2, hub, runner));
  const links = (states: DesiredState[]): string[] =>
    text(states, factsOf(hubState, tunnel1, tunnel2)).filter((step) => step.includes(" link "));
  const both = links([renumbered(1), renumbered(2)]);
  expect(both.slice(0, 4)).toEqual(["remove link vxkr1", "remove link vxkr2", "add link vxkr1", "add link vxkr2"]);
  const first = links([renumbered(1)]);
  expect(first.slice(0, 3)).toEqual(["remove link vxkr1", "remove link vxkr2", "add link vxkr1"]);
});

test("an underlay of the other family needs a new device", () => {
  const v6 = desired(
    "r1",
    planTunnel(network, 1, { ...hub, underlayIp: "2001:db8::1" }, { ...runner, underlayIp: "2001:db8::2" }),
  );
  const links = text([v6], factsOf(tunnel1)).filter((step) => step.includes(" link "));
  expect(links).toEqual(["remove link vxkr1", "add link vxkr1"]);
});

test("a jump or rule that is present twice is removed twice", () => {
  const facts = factsOf(hubState);
  facts.chains.get("4 filter FORWARD")!.push("-j OVERLAY-FWD");
  expect(text([hubState], facts)).toEqual(["change jump from FORWARD to OVERLAY-FWD (IPv4 filter)"]);
  expect(
    renderChange(planSteps([hubState], facts), [])
      .split("\n")
      .filter((line) => line.includes("FORWARD")),
  ).toEqual(["-D FORWARD -j OVERLAY-FWD", "-D FORWARD -j OVERLAY-FWD", "-I FORWARD 1 -j OVERLAY-FWD"]);
});

test("a foreign IPv6 route is refused, whatever metric the kernel reports", () => {
  const v6 = { ...network, layouts: [parseLayout("fd00:128::/40/6/82")] };
  const facts = factsOf();
  facts.routes.push({
    family: 6,
    dst: "fd00:128::/40",
    via: "fd00:9::2",
    dev: "eth0",
    metric: 1024,
    protocol: "static",
    unreachable: false,
  });
  expect(() => refuseForeign(desired("r1", planRunner(v6, 1, "vxkr1", hub, runner)), facts)).toThrow("ROUTE_OVERLAP");
});

test("a foreign device of our name is refused, also when only a record of another owner lists it", () => {
  const foreign = factsOf();
  foreign.links.set("vxkr1", {
    type: "vxlan",
    mac: "",
    mtu: 1500,
    up: true,
    vxlan: { vni: 7, port: 4789, remote: "198.51.100.7", local: "", learning: true },
  });
  expect(() => refuseForeign(tunnel1, foreign)).toThrow(
    "DEVICE_FOREIGN: There is already a device vxkr1 (vxlan, VNI 7), and it is not in our records.",
  );
  const theirs = factsOf(desired("x", tunnel1.items));
  expect(() => refuseForeign(tunnel1, theirs)).toThrow("belongs to org/x (network training)");
  expect(() => refuseForeign(tunnel1, factsOf(tunnel1))).not.toThrow();
});

test("an address that the host has for another purpose is refused, and kept", () => {
  const wanted = desired("s", [{ kind: "address", dev: "eth0", address: "fd00::5/128" }]);
  const facts = factsOf();
  facts.addresses.add("fd00::5/64 eth0");
  expect(() => refuseForeign(wanted, facts)).toThrow("IP_IN_USE: The host already has fd00::5 on eth0");
  expect(() => refuseForeign(wanted, factsOf(wanted))).not.toThrow();
});

test("in place of an object on record that is missing, one of another program is refused", () => {
  const address: Item = { kind: "address", dev: "eth0", address: "fd00::5/128" };
  const route: Item = { kind: "route", family: 4, dst: "default", via: "10.128.64.254", dev: "br0", table: 183 };
  const wanted = desired("s", [address, route]);
  const facts = factsOf(wanted);
  facts.addresses = new Set(["fd00::5/128 eth1"]);
  expect(() => refuseForeign(wanted, facts)).toThrow("IP_IN_USE: The host already has fd00::5 on eth1");
  facts.addresses = new Set();
  expect(() => refuseForeign(wanted, facts)).not.toThrow();
  facts.routes = facts.routes.map((each) => ({ ...each, protocol: "static" }));
  expect(() => refuseForeign(wanted, facts)).toThrow("ROUTE_OVERLAP: There is already a route to default");
});

test("adopt takes over a device that is as desired, and no other", () => {
  const standing = factsOf({ ...tunnel1, record: { ...tunnel1.record, uid: "nobody" } });
  standing.records = [];
  expect(() => refuseForeign(tunnel1, standing)).not.toThrow(); // its MAC is the one that we give
  standing.links.get("vxkr1")!.mac = "02:00:00:00:00:01";
  expect(() => refuseForeign(tunnel1, standing)).toThrow("DEVICE_FOREIGN");
  expect(() => refuseForeign({ ...tunnel1, adopt: true }, standing)).not.toThrow();
  standing.links.get("vxkr1")!.vxlan!.vni = 9;
  expect(() => refuseForeign({ ...tunnel1, adopt: true }, standing)).toThrow("DEVICE_FOREIGN");
});

test("a foreign route to the overlay's range is refused", () => {
  const facts = factsOf();
  facts.routes.push({
    family: 4,
    dst: "10.128.0.0/12",
    via: "192.0.2.254",
    dev: "eth0",
    protocol: "static",
    unreachable: false,
  });
  expect(() => refuseForeign(runnerState, facts)).toThrow(
    "ROUTE_OVERLAP: There is already a route to 10.128.0.0/12 (via 192.0.2.254 dev eth0, protocol static).",
  );
});

test("facts are parsed from the output of the tools", () => {
  const record = { uid: "u", owner: "o", network: "n", store: "s", items: planHub(network) };
  const facts = parseFacts(
    [
      "@@ ip",
      '[{"ifname":"vxkr1","address":"02:11:22:33:44:55","mtu":1450,"flags":["UP"],"master":"br0","linkinfo":{"info_kind":"vxlan","info_data":{"id":101,"remote":"10.254.1.1","local":"10.254.0.1","port":4789,"learning":false}},"addr_info":[]},' +
        '{"ifname":"br0","address":"","mtu":1450,"flags":[],"addr_info":[{"local":"10.128.64.1","prefixlen":18},{"local":"fe80::1","prefixlen":64}]}]',
      '[{"type":"unreachable","dst":"10.128.0.0/12","protocol":"183","metric":4096,"flags":[]}]',
      "@@ routing6",
      "",
      "@@ rules4",
      "*filter",
      ":FORWARD ACCEPT [0:0]",
      ":OVERLAY-FWD - [0:0]",
      "-A FORWARD -j OVERLAY-FWD",
      "-A OVERLAY-FWD -s 10.128.0.0/12 -j ACCEPT",
      "COMMIT",
      "@@ sysctls",
      "/proc/sys/net/ipv4/ip_forward:1",
      recordPart(record),
    ].join("\n"),
  );
  expect(facts.links.get("vxkr1")).toEqual({
    type: "vxlan",
    mac: "02:11:22:33:44:55",
    mtu: 1450,
    up: true,
    master: "br0",
    vxlan: { vni: 101, port: 4789, remote: "10.254.1.1", local: "10.254.0.1", learning: false },
  });
  expect([...facts.addresses]).toEqual(["10.128.64.1/18 br0", "fe80::1/64 br0"]);
  expect(facts.routes).toEqual([{ family: 4, dst: "10.128.0.0/12", metric: 4096, protocol: "183", unreachable: true }]);
  expect(facts.chains.get("4 filter FORWARD")).toEqual(["-j OVERLAY-FWD"]);
  expect(facts.sysctls.get("net.ipv4.ip_forward")).toBe("1");
  expect(facts.records).toEqual([record]);
});

test("one process prints devices and IPv4 routes, with the main table; IPv6 is without link-local routes", () => {
  const ours = (dst: string, table: string) =>
    `{"type":"unicast","dst":"${dst}","gateway":"10.128.64.254","table":"${table}"}`;
  const { links, routes, policies } = parseFacts(
    [
      "@@ ip",
      '[{"ifname":"eth0","mtu":1500,"flags":["UP"],"addr_info":[]}]',
      '[{"type":"unicast","dst":"default","gateway":"192.0.2.254","dev":"eth0","protocol":"static"}]',
      `[${ours("10.128.0.0/12", "main")},${ours("default", "7")}]`,
      '[{"src":"10.128.64.0","srclen":18,"fwmark":"0x1","table":"7"}]',
      "",
      "@@ routing6",
      '[{"dst":"2001:db8::/64","dev":"eth0","protocol":"kernel"}]',
      "[]",
      "[]",
      '[{"dst":"fd00::/64","dev":"eth0","protocol":"kernel"}]',
      '[{"dst":"default","gateway":"fe80::1","dev":"eth0","protocol":"ra"}]',
    ].join("\n"),
  );
  expect([...links.keys()]).toEqual(["eth0"]);
  expect(routes.map(({ family, dst, table, protocol }) => `${family} ${dst} ${table ?? "main"} ${protocol}`)).toEqual([
    "4 default main static",
    "4 default 7 183",
    "6 2001:db8::/64 main kernel",
    "6 fd00::/64 main kernel",
    "6 default main ra",
  ]);
  expect([...policies]).toEqual(["4 10.128.64.0/18 0x1/0xffffffff 7"]);
});

test("changes are read back by one process; a device that is gone has no line", () => {
  const { links, routes, policies } = parseFacts(
    [
      "@@ changed",
      '[{"type":"unicast","dst":"10.128.0.0/12","gateway":"10.128.64.254","dev":"br0","table":"main"}]',
      '[{"src":"10.128.64.0","srclen":18,"fwmark":"0x1","table":"7"}]',
      '[{"ifname":"br0","mtu":1450,"flags":["UP"],"addr_info":[]}]',
      '[{"ifname":"vxkr1","mtu":1450,"flags":["UP"],"addr_info":[]}]',
    ].join("\n"),
  );
  expect(routes).toEqual([
    { family: 4, dst: "10.128.0.0/12", via: "10.128.64.254", dev: "br0", protocol: "183", unreachable: false },
  ]);
  expect(policies.size).toBe(1);
  expect([...links.keys()]).toEqual(["br0", "vxkr1"]);
});

test("if rules are added, those of other owners that are missing are added in the same call", () => {
  const tunnel2 = desired("r2", onIpv4(planTunnel(network, 2, hub, { ...runner, underlayIp: "192.0.2.12" })));
  const facts = factsOf(hubState, tunnel1, tunnel2);
  facts.chains.clear();
  const all = text([hubState, tunnel1, tunnel2], facts).sort();
  expect(text([hubState], facts).sort()).toEqual(all);
  expect(text([tunnel1], facts).sort()).toEqual(all);
});
