import { expect, test } from "vitest";
import { planSteps } from "../../../provider/network/diff/steps";
import type { Facts } from "../../../provider/network/model/facts";
import type { DesiredState, Item } from "../../../provider/network/model/items";
import { type Network, planHub, planRunner, planTunnel, type Underlay } from "../../../provider/network/plan/hub";
import { withLocalRules } from "../../../provider/network/plan/this-host";
import { renderChange } from "../../../provider/network/render/script";
import { hub, onIpv4, runner, training } from "../../network";
import { hostWith } from "./host-facts";

/** A change of a live network with the fewest commands: the exact commands for hub and runner. */
const network = training();

interface State {
  network: Network;
  hub: Underlay;
  runner: Underlay;
}
const start: State = { network, hub, runner };

const desired = (uid: string, items: Item[]): DesiredState => ({
  record: { uid, owner: `org/${uid}`, network: "training", store: "s" },
  items: onIpv4(items),
});
const onHub = ({ network, hub, runner }: State): DesiredState[] => [
  desired("net", planHub(network)),
  desired("r1", planTunnel(network, 1, hub, runner)),
];
const onRunner = ({ network, hub, runner }: State): DesiredState[] => [
  desired("r1", planRunner(network, 1, "vxkr1", hub, runner)),
];

/** The lines of the script that change the host. */
const sentLines = (states: DesiredState[], facts: Facts): string[] => {
  const recorded = (uid: string) => facts.records.filter((record) => record.uid === uid).flatMap(({ items }) => items);
  const here = states.map((desired) => ({
    ...desired,
    items: withLocalRules(desired.items, facts, recorded(desired.record.uid)),
  }));
  const steps = planSteps(here, facts);
  const lines = steps.length === 0 ? [] : renderChange(steps, []).split("\n");
  return lines.filter((line) => !/^(rc=0|ip -force.*|.*ip6?tables-restore --.*|\*\w+|COMMIT|END|exit .*)$/.test(line));
};

test.each<[string, Partial<State>, hub: string[], runner: string[]]>([
  [
    "underlay address of the runner: both ends of one tunnel, in place",
    { runner: { ...runner, underlayIp: "192.0.2.99" } },
    [
      "-I OVERLAY-IN 1 -s 192.0.2.99/32 -p udp -m udp --dport 4789 -j ACCEPT",
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.99 local 192.0.2.1 nolearning",
      "link set dev vxkr1 HUBMAC mtu 1450 up",
      "( sleep 60; ip -d link show type vxlan | grep -q ' remote 192.0.2.11 ' || iptables -w 10 -D OVERLAY-IN -s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT ) >/dev/null 2>&1 </dev/null &",
    ],
    [
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.1 local 192.0.2.99 nolearning",
      "link set dev vxkr1 RUNNERMAC mtu 1450 master kohaku-overlay up",
    ],
  ],
  [
    "underlay address of the hub: both ends, in place",
    { hub: { ...hub, underlayIp: "192.0.2.2" } },
    [
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.11 local 192.0.2.2 nolearning",
      "link set dev vxkr1 HUBMAC mtu 1450 up",
    ],
    [
      "-I OVERLAY-GUARD 1 -s 10.128.64.0/18 -d 192.0.2.2/32 -i kohaku-overlay -p icmp -m icmp --icmp-type 8 -j RETURN",
      "-A OVERLAY-GUARD -d 192.0.2.2/32 -i kohaku-overlay -j DROP",
      "-I OVERLAY-IN 1 -s 192.0.2.2/32 -p udp -m udp --dport 4789 -j ACCEPT",
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.2 local 192.0.2.11 nolearning",
      "link set dev vxkr1 RUNNERMAC mtu 1450 master kohaku-overlay up",
      "-D OVERLAY-GUARD -s 10.128.64.0/18 -d 192.0.2.1/32 -i kohaku-overlay -p icmp -m icmp --icmp-type 8 -j RETURN",
      "-D OVERLAY-GUARD -d 192.0.2.1/32 -i kohaku-overlay -j DROP",
      "( sleep 60; ip -d link show type vxlan | grep -q ' remote 192.0.2.1 ' || iptables -w 10 -D OVERLAY-IN -s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT ) >/dev/null 2>&1 </dev/null &",
    ],
  ],
  [
    "MTU: tunnel and bridge, in place",
    { network: { ...network, mtu: 1400 } },
    [
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.11 local 192.0.2.1 nolearning",
      "link set dev vxkr1 HUBMAC mtu 1400 up",
    ],
    [
      "link set dev kohaku-overlay BRIDGEMAC mtu 1400 up",
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxkr1 RUNNERMAC mtu 1400 master kohaku-overlay up",
    ],
  ],
  [
    "masquerade off: the rule with its chain and jump, on the runner alone",
    { network: { ...network, masquerade: false } },
    [],
    [
      "-D POSTROUTING -j OVERLAY-NAT",
      "-D OVERLAY-NAT -s 10.128.64.0/18 ! -d 10.128.0.0/12 -j MASQUERADE",
      "-F OVERLAY-NAT",
      "-X OVERLAY-NAT",
    ],
  ],
  [
    "VNI base: the tunnel is created again; bridge, routes and firewall stay",
    { network: { ...network, vniBase: 300 } },
    [
      "link del dev vxkr1",
      "link add vxkr1 HUBMAC type vxlan id 301 dstport 4789 remote 192.0.2.11 local 192.0.2.1 nolearning",
      "link set dev vxkr1 HUBMAC mtu 1450 up",
      "address replace 10.128.64.254/18 dev vxkr1",
    ],
    [
      "link del dev vxkr1",
      "link add vxkr1 RUNNERMAC type vxlan id 301 dstport 4789 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxkr1 RUNNERMAC mtu 1450 master kohaku-overlay up",
    ],
  ],
  [
    "UDP port: likewise, and the rules for VXLAN",
    { network: { ...network, vxlanPort: 4790 } },
    [
      "-I OVERLAY-IN 1 -s 192.0.2.11/32 -p udp -m udp --dport 4790 -j ACCEPT",
      "-A OVERLAY-IN -p udp -m udp --dport 4790 -j DROP",
      "link del dev vxkr1",
      "link add vxkr1 HUBMAC type vxlan id 101 dstport 4790 remote 192.0.2.11 local 192.0.2.1 nolearning",
      "link set dev vxkr1 HUBMAC mtu 1450 up",
      "address replace 10.128.64.254/18 dev vxkr1",
      "-D OVERLAY-IN -s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT",
      "-D OVERLAY-IN -p udp -m udp --dport 4789 -j DROP",
    ],
    [
      "-A OVERLAY-PRE ! -d 10.128.0.0/12 -i kohaku-overlay -p udp -m udp --dport 4790 -j DROP",
      "-I OVERLAY-IN 1 -s 192.0.2.1/32 -p udp -m udp --dport 4790 -j ACCEPT",
      "-A OVERLAY-IN -p udp -m udp --dport 4790 -j DROP",
      "link del dev vxkr1",
      "link add vxkr1 RUNNERMAC type vxlan id 101 dstport 4790 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxkr1 RUNNERMAC mtu 1450 master kohaku-overlay up",
      "-D OVERLAY-PRE ! -d 10.128.0.0/12 -i kohaku-overlay -p udp -m udp --dport 4789 -j DROP",
      "-D OVERLAY-IN -s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT",
      "-D OVERLAY-IN -p udp -m udp --dport 4789 -j DROP",
    ],
  ],
])("%s", (_, change, hubLines, runnerLines) => {
  const later = { ...start, ...change };
  expect(sentLines(onHub(later), hostWith(onHub(start))).map(named)).toEqual(hubLines);
  expect(sentLines(onRunner(later), hostWith(onRunner(start))).map(named)).toEqual(runnerLines);
});

/** MACs are fixed, and have tests of their own. */
const named = (line: string): string =>
  line
    .replace("address 02:9d:2c:a0:82:d1", "HUBMAC")
    .replace("address 02:6d:9b:be:e2:62", "RUNNERMAC")
    .replace("address 02:b4:50:c4:a4:32", "BRIDGEMAC");

test("a chain is restored in one call, and the jump is inserted after DOCKER-USER", () => {
  const facts = hostWith(onHub(start));
  facts.chains.delete("4 filter OVERLAY-FWD");
  facts.chains.set("4 filter FORWARD", ["-j DOCKER-USER"]);
  expect(sentLines(onHub(start), facts)).toEqual([
    ":OVERLAY-FWD - [0:0]",
    "-I OVERLAY-FWD 1 -s 10.128.0.0/12 -d 10.128.0.0/12 -i vxkr+ -o vxkr+ -j ACCEPT",
    "-I FORWARD 2 -j OVERLAY-FWD",
  ]);
});

test("the hub moves: the new host gets all items, the old one loses them, a runner changes one end", () => {
  const moved = { ...start, hub: { ...hub, underlayIp: "192.0.2.2" } };
  const bare = hostWith([]);
  bare.sysctls.set("net.ipv4.ip_forward", "1");
  bare.savedSysctls.set("net.ipv4.ip_forward", "1");
  expect(sentLines(onHub(moved), bare)).toHaveLength(29);
  expect(sentLines([desired("net", []), desired("r1", [])], hostWith(onHub(start)))).toEqual(
    expect.arrayContaining([
      "link del dev vxkr1",
      "-X OVERLAY-FWD",
      "route del unreachable 10.128.0.0/12 proto 183 metric 4096",
    ]),
  );
  expect(sentLines(onRunner(moved), hostWith(onRunner(start)))).toHaveLength(8);
});
