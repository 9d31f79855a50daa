import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { appliesToHost } from "../../../provider/network/kinds";
import type { Item } from "../../../provider/network/model/items";
import { effectiveMtu, type Network, planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { hub, onIpv4, runner, training } from "../../network";

const network = (changes: Partial<Network> = {}) => training({ mtu: "auto", ...changes });

const BARE = parseFacts("");

/** It ends the script if it fails. */
const RESTORE =
  "iptables-restore --noflush -w 10 <<'END' || { echo 'The firewall rules could not be added, so devices and forwarding were not changed.' >&2; exit 1; }";

/** The commands for a bare host. */
const shell = (items: Item[]): string[] =>
  renderChange(
    onIpv4(items.filter((item) => appliesToHost(item, BARE))).map((item) => ({ verb: "add", item })),
    [],
  ).split("\n");

test("a hub has its address, forwards packets, and rejects those to subnets without a runner", () => {
  expect(shell(planHub(network()))).toEqual([
    "rc=0",
    RESTORE,
    "*raw",
    ":OVERLAY-OUT - [0:0]",
    "-A OVERLAY-OUT -o vxkr+ -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000",
    "-I OUTPUT 1 -j OVERLAY-OUT",
    "COMMIT",
    "*mangle",
    ":OVERLAY-GUARD - [0:0]",
    "-I OVERLAY-GUARD 1 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN",
    "-I OVERLAY-GUARD 1 -s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j RETURN",
    "-I FORWARD 1 -j OVERLAY-GUARD",
    "COMMIT",
    "*filter",
    ":OVERLAY-FWD - [0:0]",
    "-I OVERLAY-FWD 1 -s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j ACCEPT",
    "-I FORWARD 1 -j OVERLAY-FWD",
    ":OVERLAY-IN - [0:0]",
    "-I OVERLAY-IN 1 -s 10.128.0.0/12 -i vxkr+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-I OVERLAY-IN 1 -s 10.128.0.0/12 -i vxkr+ -p icmp -m icmp --icmp-type 8 -j ACCEPT",
    "-I INPUT 1 -j OVERLAY-IN",
    "COMMIT",
    "END",
    "{ [ -e /sys/class/net/kohaku-host ] || ip link add kohaku-host address 02:ec:c5:c0:d7:9c type dummy 2>/dev/null || ip link add kohaku-host address 02:ec:c5:c0:d7:9c type bridge; } || rc=1",
    "ip -force -batch - <<'END' || rc=1",
    "link set dev kohaku-host address 02:ec:c5:c0:d7:9c up",
    "address replace 10.128.0.1/32 dev kohaku-host",
    "route replace unreachable 10.128.0.0/12 proto 183 metric 4096",
    "END",
    "{ [ ! -e /proc/sys/net/ipv4/ip_forward ] || echo '1' >/proc/sys/net/ipv4/ip_forward; } || rc=1",
    "exit $rc",
  ]);
});

test("the hub's end of a tunnel is a VXLAN device with .254 of the runner's subnet", () => {
  const lines = shell(planTunnel(network(), 10, hub, runner));
  expect(lines.slice(lines.indexOf("ip -force -batch - <<'END' || rc=1") + 1).slice(0, 3)).toEqual([
    "link add vxkra address 02:bf:fa:9e:b7:9c type vxlan id 110 dstport 4789 remote 192.0.2.11 local 192.0.2.1 nolearning",
    "link set dev vxkra address 02:bf:fa:9e:b7:9c mtu 1450 up",
    "address replace 10.130.128.254/18 dev vxkra",
  ]);
});

test("a runner has a bridge with .1, the tunnel as its port, a route by the hub, and masquerades outgoing packets", () => {
  const lines = shell(planRunner(network(), 1, "vxkr1", hub, runner));
  expect(lines).toEqual([
    "rc=0",
    RESTORE,
    "*raw",
    ":OVERLAY-PRE - [0:0]",
    "-A OVERLAY-PRE ! -d 10.128.0.0/12 -i kohaku-overlay -p udp -m udp --dport 4789 -j DROP",
    "-I PREROUTING 1 -j OVERLAY-PRE",
    ":OVERLAY-OUT - [0:0]",
    "-A OVERLAY-OUT -o kohaku-overlay -p icmp -m icmp --icmp-type 5 -j DROP",
    "-A OVERLAY-OUT -o kohaku-overlay -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000",
    "-I OUTPUT 1 -j OVERLAY-OUT",
    "COMMIT",
    "*mangle",
    ":OVERLAY-GUARD - [0:0]",
    "-I OVERLAY-GUARD 1 -s 10.128.64.0/18 -d 192.0.2.1/32 -i kohaku-overlay -p icmp -m icmp --icmp-type 8 -j RETURN",
    "-A OVERLAY-GUARD -d 192.0.2.1/32 -i kohaku-overlay -j DROP",
    "-I FORWARD 1 -j OVERLAY-GUARD",
    "-I OVERLAY-GUARD 1 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN",
    "-A OVERLAY-GUARD ! -s 10.128.64.0/18 ! -d 10.128.64.0/18 -i kohaku-overlay -o kohaku-overlay -j DROP",
    "-A OVERLAY-GUARD ! -s 10.128.64.0/18 -i kohaku-overlay ! -o kohaku-overlay -j DROP",
    "-A OVERLAY-GUARD ! -i kohaku-overlay -o kohaku-overlay -j DROP",
    "COMMIT",
    "*filter",
    ":OVERLAY-IN - [0:0]",
    "-I OVERLAY-IN 1 -s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT",
    "-A OVERLAY-IN -p udp -m udp --dport 4789 -j DROP",
    "-I INPUT 1 -j OVERLAY-IN",
    ":OVERLAY-FWD - [0:0]",
    "-I OVERLAY-FWD 1 -i kohaku-overlay -o kohaku-overlay -j ACCEPT",
    "-I OVERLAY-FWD 1 -o kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-I FORWARD 1 -j OVERLAY-FWD",
    "-I OVERLAY-IN 1 -s 10.128.0.0/12 -i kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-I OVERLAY-IN 1 -s 10.128.0.0/12 -i kohaku-overlay -p icmp -m icmp --icmp-type 8 -j ACCEPT",
    "-A OVERLAY-IN -i kohaku-overlay -j REJECT --reject-with icmp-port-unreachable",
    "COMMIT",
    "*nat",
    ":OVERLAY-NAT - [0:0]",
    "-A OVERLAY-NAT -s 10.128.64.0/18 ! -d 10.128.0.0/12 -j MASQUERADE",
    "-I POSTROUTING 1 -j OVERLAY-NAT",
    "COMMIT",
    "END",
    "ip -force -batch - <<'END' || rc=1",
    "link add kohaku-overlay address 02:b4:50:c4:a4:32 type bridge",
    "link set dev kohaku-overlay address 02:b4:50:c4:a4:32 mtu 1450 up",
    "link add vxkr1 address 02:6d:9b:be:e2:62 type vxlan id 101 dstport 4789 remote 192.0.2.1 local 192.0.2.11 nolearning",
    "link set dev vxkr1 address 02:6d:9b:be:e2:62 mtu 1450 master kohaku-overlay up",
    "address replace 10.128.64.1/18 dev kohaku-overlay",
    "route replace 10.128.0.0/12 via 10.128.64.254 dev kohaku-overlay proto 183",
    "route replace default via 10.128.64.254 dev kohaku-overlay proto 183 table 3083008888",
    "END",
    "{ [ ! -e /proc/sys/net/ipv4/ip_forward ] || echo '1' >/proc/sys/net/ipv4/ip_forward; } || rc=1",
    "exit $rc",
  ]);
});

test("IPv6 has the same rules in ip6tables", () => {
  const dual = network({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/40/6/82")] });
  const lines = shell(planRunner(dual, 2, "vxkr2", hub, runner));
  expect(lines).toContain("address replace fd00:128:8::1/46 dev kohaku-overlay nodad");
  expect(lines).toContain("route replace fd00:128::/40 via fd00:128:8::fe dev kohaku-overlay proto 183");
  expect(lines).toContain(RESTORE.replace("iptables", "ip6tables"));
  expect(lines).toContain("-A OVERLAY-NAT -s fd00:128:8::/46 ! -d fd00:128::/40 -j MASQUERADE");
  expect(lines.some((line) => line.includes("/proc/sys/net/ipv6/conf/all/forwarding"))).toBe(true);
});

test.each([
  ["auto, both 1500", "auto", 1500, 1500, "192.0.2.1", 1450],
  ["auto, the smaller underlay decides", "auto", 9000, 1500, "192.0.2.1", 1450],
  ["auto over IPv6", "auto", 1500, 1500, "2001:db8::1", 1430],
  ["as configured", 1300, 1500, 1500, "192.0.2.1", 1300],
] as const)("MTU: %s", (_, mtu, hubMtu, runnerMtu, underlayIp, expected) => {
  const ends = [hubMtu, runnerMtu].map((underlayMtu) => ({ underlayIp, underlayMtu }));
  expect(effectiveMtu({ mtu, tunnel: "vxlan" }, ...ends)).toBe(expected);
});

test("without masquerade there is no NAT", () => {
  expect(shell(planRunner(network({ masquerade: false }), 1, "vxkr1", hub, runner))).not.toContain("*nat");
});
