import { expect, test } from "vitest";
import { diffItems } from "../../../provider/network/kinds";
import { type DesiredState, type Item, itemKey } from "../../../provider/network/model/items";
import { type Forward, planCarrier, planReturn, type StaticAddress } from "../../../provider/network/plan/static-ip";
import { refuseForeign } from "../../../provider/network/preflight/foreign";
import { preflight } from "../../../provider/network/preflight/preflight";
import { parseFacts } from "../../../provider/network/read/facts";
import { flushConntrack, renderAnnouncements, renderChange } from "../../../provider/network/render/script";

const carrier = { underlayIp: "192.0.2.1", underlayMtu: 1500, uplink: "eth0" };
const runner = { underlayIp: "192.0.2.11", underlayMtu: 1500 };
const web: Forward = { protocol: "tcp", port: 80, to: "10.128.64.5", toPort: 8080 };
const names: Forward = { protocol: "udp", port: 53, to: "10.128.64.6", toPort: 53 };
const phone: Forward = { protocol: "sctp", port: 3868, to: "10.128.64.7", toPort: 3868 };

const address = (changes: Partial<StaticAddress> = {}): StaticAddress => ({
  ip: "203.0.113.10",
  forwards: [web],
  cidrs: ["10.128.0.0/12", "fd00:128::/40"],
  preserveClientIp: false,
  ...changes,
});

/** The commands for a bare host. */
const shell = (items: Item[]): string[] =>
  renderChange(
    items.map((item) => ({ verb: "add", item })),
    [],
  ).split("\n");
const rules = (items: Item[], chain: string): string[] =>
  items.flatMap((item) => (item.kind === "rule" && item.chain === chain ? [item.rule] : []));

test("the carrier has the address on a device of ours, and rewrites packets to it from outside and from itself", () => {
  const lines = shell(planCarrier(address(), carrier));
  expect(lines.slice(0, lines.indexOf("announce() {"))).toEqual([
    "rc=0",
    expect.stringContaining("iptables-restore --noflush -w 10"),
    "*filter",
    ":OVERLAY-IN - [0:0]",
    "-A OVERLAY-IN -d 203.0.113.10/32 ! -p icmp -m conntrack --ctstate NEW -j REJECT --reject-with icmp-port-unreachable",
    "-I INPUT 1 -j OVERLAY-IN",
    ":OVERLAY-FWD - [0:0]",
    "-I OVERLAY-FWD 1 -m conntrack --ctstate DNAT --ctorigdst 203.0.113.10 -j ACCEPT",
    "-I FORWARD 1 -j OVERLAY-FWD",
    "COMMIT",
    "*nat",
    ":OVERLAY-DNAT - [0:0]",
    "-A OVERLAY-DNAT -d 203.0.113.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.128.64.5:8080",
    "-I PREROUTING 1 -j OVERLAY-DNAT",
    "-I OUTPUT 1 -j OVERLAY-DNAT",
    ":OVERLAY-NAT - [0:0]",
    "-A OVERLAY-NAT -p tcp -m conntrack --ctstate DNAT --ctorigdst 203.0.113.10 --ctorigdstport 80 -j MASQUERADE",
    "-I POSTROUTING 1 -j OVERLAY-NAT",
    "COMMIT",
    "END",
    "{ [ -e /sys/class/net/overlay-vip ] || ip link add overlay-vip address 02:c9:77:3c:53:27 type dummy 2>/dev/null || ip link add overlay-vip address 02:c9:77:3c:53:27 type bridge; } || rc=1",
    "ip -force -batch - <<'END' || rc=1",
    "link set dev overlay-vip address 02:c9:77:3c:53:27 up",
    "address replace 203.0.113.10/32 dev overlay-vip",
    "END",
    "{ [ ! -e /proc/sys/net/ipv4/ip_forward ] || echo '1' >/proc/sys/net/ipv4/ip_forward; } || rc=1",
  ]);
  expect(lines.slice(-2)).toEqual(["announce eth0 203.0.113.10", "exit $rc"]);
});

test("each forward is rewritten by its own protocol and port", () => {
  expect(rules(planCarrier(address({ forwards: [web, names, phone] }), carrier), "OVERLAY-DNAT")).toEqual([
    "-d 203.0.113.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.128.64.5:8080",
    "-d 203.0.113.10/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.128.64.6:53",
    "-d 203.0.113.10/32 -p sctp -m sctp --dport 3868 -j DNAT --to-destination 10.128.64.7:3868",
  ]);
});

test("tracked UDP flows of a forward are deleted when it changes; TCP connections are kept", () => {
  const rule = (forward: Forward): Item =>
    planCarrier(address({ forwards: [forward] }), carrier).find(
      (item) => item.kind === "rule" && item.chain === "OVERLAY-DNAT",
    )!;
  const steps = (verb: "add" | "remove", forward: Forward) => flushConntrack([{ verb, item: rule(forward) }]);
  const forgotten = [
    "! command -v conntrack >/dev/null || conntrack -D -p udp --orig-dst 203.0.113.10 --orig-port-dst 53 >/dev/null 2>&1 || :",
  ];
  expect([steps("add", names), steps("remove", names)]).toEqual([forgotten, forgotten]);
  expect(steps("remove", web)).toEqual([]);
});

test("with preserveClientIp clients are masqueraded only if their replies would not pass the carrier", () => {
  const items = planCarrier(address({ preserveClientIp: true }), carrier, [runner]);
  expect(rules(items, "OVERLAY-NAT")).toEqual([
    "-p tcp -m addrtype --src-type LOCAL -m conntrack --ctstate DNAT --ctorigdst 203.0.113.10 --ctorigdstport 80 -j MASQUERADE",
    "-s 10.128.0.0/12 -p tcp -m conntrack --ctstate DNAT --ctorigdst 203.0.113.10 --ctorigdstport 80 -j MASQUERADE",
    "-s 192.0.2.11/32 -p tcp -m conntrack --ctstate DNAT --ctorigdst 203.0.113.10 --ctorigdstport 80 -j MASQUERADE",
  ]);
});

const PATH = {
  networkName: "training",
  cidr: "10.128.0.0/12",
  subnet: "10.128.64.0/18",
  bridge: "kohaku-overlay",
};

test("on the runner, replies to clients outside are untracked, marked, and routed through the hub", () => {
  expect(shell(planReturn(PATH, [web]))).toEqual([
    "rc=0",
    expect.stringContaining("iptables-restore --noflush -w 10"),
    "*raw",
    ":OVERLAY-BACK - [0:0]",
    "-A OVERLAY-BACK -s 10.128.64.5/32 ! -d 10.128.0.0/12 -p tcp -m tcp --sport 8080 -j MARK --set-xmark 0x10000000/0x10000000",
    "-A OVERLAY-BACK -s 10.128.64.5/32 ! -d 10.128.0.0/12 -p tcp -m tcp --sport 8080 -j CT --notrack",
    "-I PREROUTING 1 -j OVERLAY-BACK",
    "-I OUTPUT 1 -j OVERLAY-BACK",
    "COMMIT",
    "END",
    '{ [ -n "$(ip -4 rule show from 10.128.64.0/18 fwmark 0x10000000/0x10000000 table 3083008888)" ] || ip -4 rule add from 10.128.64.0/18 fwmark 0x10000000/0x10000000 lookup 3083008888 priority 18300 protocol 183; } || rc=1',
    "exit $rc",
  ]);
});

test("IPv6 answers only for a device's own addresses: the address is on the uplink, and never a source by default", () => {
  const six = address({ ip: "2001:db8::10", forwards: [{ ...web, to: "fd00:128:4::5" }], preserveClientIp: true });
  const lines = shell(planCarrier(six, carrier, [{ ...runner, underlayIp: "2001:db8::11" }]));
  expect(lines).toContain("address replace 2001:db8::10/128 dev eth0 nodad preferred_lft 0");
  expect(lines).toContain(
    "-A OVERLAY-DNAT -d 2001:db8::10/128 -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00:128:4::5]:8080",
  );
  expect(lines).toContain(
    "-A OVERLAY-NAT -s 2001:db8::11/128 -p tcp -m conntrack --ctstate DNAT --ctorigdst 2001:db8::10 --ctorigdstport 80 -j MASQUERADE",
  );
  const path = {
    ...PATH,
    cidr: "fd00:128::/40",
    subnet: "fd00:128:4::/46",
  };
  const back = shell(planReturn(path, six.forwards));
  expect(back).toContain("-I OVERLAY-FWD 1 -i kohaku-overlay -o kohaku-overlay -p ipv6-icmp -j ACCEPT");
  expect(back).toContainEqual(expect.stringMatching(/ip -6 rule add from fd00:128:4::\/46 fwmark/));
});

test("an address that is routed to the host, and in none of its subnets, is not announced", () => {
  const { uplink: _, ...routed } = carrier;
  const steps = planCarrier(address({ ip: "2001:db8::10", forwards: [] }), routed).map((item) => ({
    verb: "add" as const,
    item,
  }));
  expect(renderAnnouncements(steps)).toEqual([]);
  expect(shell(steps.map(({ item }) => item))).toContain("address replace 2001:db8::10/128 dev overlay-vip nodad");
});

test("a removed or unchanged address is not announced", () => {
  const steps = planCarrier(address(), carrier).map((item) => ({ verb: "remove" as const, item }));
  expect(renderAnnouncements(steps)).toEqual([]);
});

test("policies and routes in tables are read back as they were made", () => {
  const facts = parseFacts(`@@ ip
[]
[]
[{"dst":"10.128.0.0/12","gateway":"10.128.64.254","dev":"kohaku-overlay"},{"dst":"default","gateway":"10.128.64.254","dev":"kohaku-overlay","table":"3083008888"}]
[{"priority":0,"src":"all","table":"local"},{"priority":18300,"src":"10.128.64.0","srclen":18,"fwmark":"0x10000000","fwmask":"0x10000000","table":"3083008888"}]
`);
  const [policy] = planReturn(PATH, []).filter(({ kind }) => kind === "policy");
  const route: Item = {
    kind: "route",
    family: 4,
    dst: "default",
    via: "10.128.64.254",
    dev: "kohaku-overlay",
    table: 3083008888,
  };
  const items = [route, policy!];
  expect(diffItems(items, facts)).toEqual([]);
  facts.routes[0]!.via = "10.128.64.9";
  facts.policies.clear();
  expect(diffItems(items, facts).map(({ item, missing, wrong }) => [itemKey(item), missing, wrong])).toEqual([
    ["route default in table 3083008888 (IPv4)", false, ["via is 10.128.64.9, should be 10.128.64.254"]],
    ["policy from 10.128.64.0/18 mark 0x10000000/0x10000000 to table 3083008888", true, []],
  ]);
});

test("the default route of our own table is not a range of the overlay", () => {
  const facts = parseFacts(
    "@@ nft\ntable inet own {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}",
  );
  expect(facts.blockingChains).toHaveLength(1);
  facts.routes.push({ family: 4, dst: "10.0.0.0/8", dev: "eth1", protocol: "static", unreachable: false });
  const record = { uid: "a", owner: "org/a", network: "203.0.113.10", store: "s" };
  expect(() => preflight({ record, items: planReturn(PATH, [web]) }, facts)).not.toThrow();
});

test("owners share the device that carries their addresses, but not with an owner that has it unshared", () => {
  const desired = (uid: string, items: Item[]): DesiredState => ({
    record: { uid, owner: `org/${uid}`, network: "203.0.113.10", store: "s" },
    items,
  });
  const mine = desired("a", planCarrier(address(), carrier));
  const facts = parseFacts("");
  const device = { type: "bridge", mac: "02:c9:77:3c:53:27", mtu: 1500, up: true };
  facts.links.set("overlay-vip", device);
  expect(() => refuseForeign(mine, facts)).not.toThrow();
  facts.links.set("overlay-vip", { ...device, mac: "02:00:00:00:00:01" });
  expect(() => refuseForeign(mine, facts)).toThrow(/DEVICE_FOREIGN: There is already a device overlay-vip/);
  const other = desired("b", planCarrier(address({ ip: "203.0.113.11" }), carrier));
  facts.records.push({ ...other.record, items: other.items });
  expect(() => refuseForeign(mine, facts)).not.toThrow();
  const unaware = { ...other.record, items: [{ kind: "link" as const, name: "overlay-vip", type: "anchor" as const }] };
  expect(() => refuseForeign(mine, { ...facts, records: [unaware] })).toThrow(/belongs to org\/b/);
});
