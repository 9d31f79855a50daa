import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import type { Facts } from "../../../provider/network/model/facts";
import type { DesiredState, Item } from "../../../provider/network/model/items";
import { type Network, planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { withLocalRules } from "../../../provider/network/plan/this-host";
import { preflight } from "../../../provider/network/preflight/preflight";
import { parseFacts } from "../../../provider/network/read/facts";
import { onIpv4, training } from "../../network";
import { recordPart } from "./host-facts";

const network = (changes: Partial<Network> = {}) => training({ mtu: "auto", ...changes });
const at = (underlayIp: string, underlayMtu = 1500) => ({ underlayIp, underlayMtu });
const hub = at("192.0.2.1");
const runner = at("192.0.2.11");
const record = { uid: "r1", owner: "o", network: "training", store: "s" };
const desired = (changes: Partial<Network> = {}, ends = [hub, runner], adopt = false): DesiredState => ({
  record,
  items: planRunner(network(changes), 1, "vxkr1", ends[0]!, ends[1]!),
  adopt,
});
const dual = { layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")] };

/** A routing rule and its route, which need no ip6tables. */
const POLICY6: Item[] = [
  { kind: "policy", family: 6, from: "fd00:128::/64", mark: "0x1/0x1", table: 183 },
  { kind: "route", family: 6, dst: "default", via: "fd00:128::fe", dev: "kohaku-overlay", table: 183 },
];

const route = (dst: string, dev: string, protocol = "static"): string =>
  `@@ ip\n[]\n${JSON.stringify([{ dst, dev, protocol, flags: [] }])}`;
const host = (...parts: string[]): Facts => parseFacts(parts.join("\n"));
const dockerNetwork = (Subnet: string): string =>
  `@@ docker\n${JSON.stringify([{ Name: "apps", Driver: "bridge", IPAM: { Config: [{ Subnet }] }, Options: {} }])}`;

const UNDERLAY_1500 = `@@ ip
${JSON.stringify([{ ifname: "eth0", address: "02:00:00:00:00:01", mtu: 1500, flags: ["UP"], addr_info: [{ family: "inet", local: "192.0.2.11", prefixlen: 24 }] }])}
[]`;

test.each<[string, DesiredState, Facts, string]>([
  [
    "an underlay that is too small",
    desired({}, [hub, at("192.0.2.11", 600)]),
    host(),
    "MTU_TOO_SMALL: kohaku-overlay would have an MTU of 550, and IPv4 needs at least 576.",
  ],
  [
    "an underlay that is too small for IPv6",
    desired(dual, [hub, at("192.0.2.11", 1300)]),
    host(),
    "MTU_TOO_SMALL: kohaku-overlay would have an MTU of 1250, and IPv6 needs at least 1280.",
  ],
  [
    "an MTU for which the underlay is too small",
    desired({ mtu: 1480 }, [hub, runner]),
    host(UNDERLAY_1500),
    "MTU_TOO_LARGE: vxkr1 would have an MTU of 1480. With the 50 bytes of VXLAN that exceeds the 1500 of eth0, which has 192.0.2.11. Nothing was changed. Set mtu to 1450 or less, or to auto.",
  ],
  [
    "SSH from inside the range",
    desired(),
    host("@@ ssh\n10.130.1.1 50000 192.0.2.11 22"),
    "ROUTE_OVERLAP: 10.130.1.1, the address from which SSH reaches it, is in the overlay's range 10.128.0.0/12",
  ],
  [
    "SSH to an address inside the range",
    desired(),
    host("@@ ssh\n203.0.113.5 50000 10.128.7.7 22"),
    "ROUTE_OVERLAP: 10.128.7.7, the address at which SSH reaches it, is in the overlay's range 10.128.0.0/12",
  ],
  [
    "an underlay inside the range",
    desired({}, [at("10.129.0.1"), runner]),
    host("@@ ssh\n203.0.113.5 50000 192.0.2.11 22"),
    "ROUTE_OVERLAP: 10.129.0.1, its peer's underlay address, is in the overlay's range 10.128.0.0/12",
  ],
  [
    "a network of the host",
    desired(),
    host(route("10.130.0.0/24", "eth1", "kernel")),
    "ROUTE_OVERLAP: The route '10.130.0.0/24 dev eth1 proto kernel' of another program would take packets of the overlay's range 10.128.0.0/12.",
  ],
  [
    "a Docker network",
    desired(),
    host(dockerNetwork("10.128.0.0/16")),
    "ROUTE_OVERLAP: Docker network apps (10.128.0.0/16) overlaps the overlay's range 10.128.0.0/12.",
  ],
  [
    "a kernel without VXLAN",
    desired(),
    host("@@ lacks\nvxlan"),
    "HOST_TOOL_MISSING: The kernel has no vxlan devices, and vxkr1 must be one.",
  ],
  [
    "IPv6 without ip6tables",
    desired(dual),
    host("@@ lacks\nip6tables-restore"),
    "HOST_TOOL_MISSING: There is no 'ip6tables-restore'.",
  ],
])("refused before anything is changed: %s", (_, wanted, facts, text) => {
  expect(() => preflight(wanted, facts)).toThrow(text);
});

test.each<[string, DesiredState, Facts]>([
  ["a bare host", desired(), host()],
  ["default and wider routes", desired(), host(route("10.0.0.0/8", "eth0"), route("default", "eth0"))],
  ["the routes of our own devices", desired(), host(route("10.128.64.0/18", "kohaku-overlay", "kernel"))],
  [
    "the tunnels of other runners on a hub",
    { record: { ...record, uid: "net" }, items: planHub(network()) },
    host(
      route("10.128.64.0/18", "vxkr1", "kernel"),
      recordPart({ ...record, items: planTunnel(network(), 1, hub, runner) }),
    ),
  ],
  [
    "existing devices that are to be adopted",
    { record: { ...record, uid: "net" }, items: planHub(network()), adopt: true },
    host(route("10.128.64.0/18", "vxkr1", "kernel")),
  ],
  ["Docker networks elsewhere", desired(), host(dockerNetwork("172.17.0.0/16"))],
  [
    "a default route in a table of its own",
    {
      record,
      items: [{ kind: "route", family: 4, dst: "default", via: "10.128.64.254", dev: "kohaku-overlay", table: 183 }],
    },
    host(),
  ],
  ["an MTU that just fits into the underlay", desired({ mtu: 1450 }), host(UNDERLAY_1500)],
  ["SSH from elsewhere", desired(), host("@@ ssh\nfe80::1%eth0 50000 192.0.2.11 22")],
  [
    "IPv4 alone without ip6tables",
    { ...desired(), items: onIpv4(desired().items) },
    host("@@ lacks\nip6tables-restore"),
  ],
  ["IPv6 routing rules without ip6tables", { record, items: POLICY6 }, host("@@ lacks\nip6tables-restore")],
])("passes: %s", (_, wanted, facts) => {
  expect(() => preflight(wanted, facts)).not.toThrow();
});

test("on a host without ip6tables, routing rules of IPv6 stay in the plan, and firewall rules do not", () => {
  const rule: Item = { kind: "rule", family: 6, table: "raw", chain: "OVERLAY-BACK", rule: "-j MARK" };
  expect(withLocalRules([...POLICY6, rule], host())).toEqual(POLICY6);
});
