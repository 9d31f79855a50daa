import { expect, test } from "vitest";
import { withAdoptedMacs } from "../../../provider/network/diff/ownership";
import { planSteps } from "../../../provider/network/diff/steps";
import type { Facts } from "../../../provider/network/model/facts";
import type { DesiredState, HostRecord, Item } from "../../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { refuseForeign } from "../../../provider/network/preflight/foreign";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { hub, runner, training } from "../../network";

/** Hosts as KohakuRiver configures them, as output of `ip`; and the commands that we send to them. */
const network = training({ masquerade: false });

const link = (ifname: string, kind: string, data: object = {}, more: object = {}) => ({
  ifname,
  address: "aa:00:00:00:00:01",
  mtu: 1450,
  flags: ["UP"],
  linkinfo: { info_kind: kind, info_data: data },
  ...more,
});
const tunnel = (ifname: string, id: number, remote: string, more: object = {}) =>
  link(ifname, "vxlan", { id, port: 4789, remote, local: "192.0.2.1", learning: false }, more);

function hostFacts(links: object[], addresses: [dev: string, address: string][] = [], routes: object[] = []): Facts {
  const all = (links as { ifname: string }[]).map((each) => {
    const own = addresses.filter(([dev]) => dev === each.ifname).map(([, address]) => address.split("/"));
    return { ...each, addr_info: own.map(([local, prefix]) => ({ local, prefixlen: Number(prefix) })) };
  });
  return parseFacts(
    [
      `@@ ip\n${JSON.stringify(all)}\n${JSON.stringify(routes)}`,
      "@@ sysctls\n/proc/sys/net/ipv4/ip_forward:1\n/var/lib/overlay/former/net.ipv4.ip_forward:1",
    ].join("\n"),
  );
}

const adopting = (items: Item[]): DesiredState => ({
  record: { uid: "u", owner: "org/u", network: "training", store: "s" },
  items,
  adopt: true,
});

/** The commands for the host, without those for its firewall; or the error that refuses the change. */
function sentLines(desired: DesiredState, facts: Facts): string[] {
  try {
    refuseForeign(desired, facts);
  } catch (error) {
    return [(error as Error).message];
  }
  const script = renderChange(planSteps([withAdoptedMacs(desired, facts)], facts), []).split("\n");
  return script.filter(
    (line) => !/^(rc=0|ip -force.*|END|exit .*|\*.*|COMMIT|ip6?tables.*|:OVERLAY.*|-[AI] .*|\( sleep .*)$/.test(line),
  );
}

test.each<[string, Item[], Facts, (string | RegExp)[]]>([
  [
    "the hub's own device keeps its MAC, and its address gets the right prefix before the wrong one is removed",
    planHub(network),
    hostFacts([link("kohaku-host", "dummy")], [["kohaku-host", "10.128.0.1/12"]]),
    [
      "link set dev kohaku-host address aa:00:00:00:00:01 up",
      "address replace 10.128.0.1/32 dev kohaku-host",
      "address del 10.128.0.1/12 dev kohaku-host",
      "route replace unreachable 10.128.0.0/12 proto 183 metric 4096",
    ],
  ],
  [
    "a tunnel on the hub is configured once in full, and not created again",
    planTunnel(network, 1, hub, runner),
    hostFacts([tunnel("vxkr1", 101, "192.0.2.11", { mtu: 1400 })], [["vxkr1", "10.128.64.254/18"]]),
    [
      "link set dev vxkr1 type vxlan id 101 remote 192.0.2.11 local 192.0.2.1 nolearning",
      "link set dev vxkr1 address aa:00:00:00:00:01 mtu 1450 up",
    ],
  ],
  [
    "a runner's route over the same next hop only gets our protocol number",
    planRunner(network, 1, "vxlan0", hub, runner),
    hostFacts(
      [link("kohaku-overlay", "bridge"), tunnel("vxlan0", 101, "192.0.2.1", { master: "kohaku-overlay" })],
      [["kohaku-overlay", "10.128.64.1/18"]],
      [{ dst: "10.128.0.0/12", gateway: "10.128.64.254", dev: "kohaku-overlay", protocol: "boot" }],
    ),
    [
      "link set dev kohaku-overlay address aa:00:00:00:00:01 mtu 1450 up",
      "link set dev vxlan0 type vxlan id 101 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxlan0 address aa:00:00:00:00:01 mtu 1450 master kohaku-overlay up",
      "route replace 10.128.0.0/12 via 10.128.64.254 dev kohaku-overlay proto 183",
      "route replace default via 10.128.64.254 dev kohaku-overlay proto 183 table 3083008888",
    ],
  ],
  [
    "on a runner there is one tunnel: its remote follows a hub that has moved",
    planRunner(network, 1, "vxlan0", hub, runner).filter(({ kind }) => kind === "link"),
    hostFacts([link("kohaku-overlay", "bridge"), tunnel("vxlan0", 101, "192.0.2.7", { master: "kohaku-overlay" })]),
    [
      "link set dev kohaku-overlay address aa:00:00:00:00:01 mtu 1450 up",
      "link set dev vxlan0 type vxlan id 101 remote 192.0.2.1 local 192.0.2.11 nolearning",
      "link set dev vxlan0 address aa:00:00:00:00:01 mtu 1450 master kohaku-overlay up",
    ],
  ],
  [
    "a route over another next hop is refused",
    planRunner(network, 1, "vxlan0", hub, runner),
    hostFacts([], [], [{ dst: "10.128.0.0/12", gateway: "192.0.2.254", dev: "eth0", protocol: "static" }]),
    [/^ROUTE_OVERLAP: /],
  ],
  [
    "a tunnel with another VNI is refused",
    planTunnel(network, 1, hub, runner),
    hostFacts([tunnel("vxkr1", 999, "192.0.2.11")]),
    [
      /^DEVICE_FOREIGN: .*\(vxlan, VNI 999 on port 4789 to 192\.0\.2\.11\).* only a tunnel with VNI 101 on port 4789 to 192/,
    ],
  ],
  [
    "on the hub another runner's tunnel is refused",
    planTunnel(network, 1, hub, runner),
    hostFacts([tunnel("vxkr1", 101, "192.0.2.99")]),
    [/^DEVICE_FOREIGN: /],
  ],
  [
    "a device of another type is refused",
    planTunnel(network, 3, hub, runner),
    hostFacts([link("vxkr3", "dummy")]),
    [/^DEVICE_FOREIGN: .*vxkr3 \(dummy\)/],
  ],
  [
    "this runner's tunnel has another id, with one digit more",
    planTunnel(network, 35, hub, runner),
    hostFacts([tunnel("vxkr10", 136, "192.0.2.11")]),
    [/^PLAN_STALE: The tunnel vxkr10 \(VNI 136\) already leads to 192\.0\.2\.11, .* Set runnerId: 36 on/],
  ],
])("adopting: %s", (_, items, facts, expected) => {
  const lines = sentLines(adopting(items), facts);
  expect(lines).toEqual(expected.map((line) => (typeof line === "string" ? line : expect.stringMatching(line))));
});

test.each([
  ["another program's tunnel to the same host", tunnel("flannel.1", 1, "192.0.2.11")],
  ["a name that is not canonical", tunnel("vxkr02", 102, "192.0.2.11")],
  ["a name whose VNI does not fit", tunnel("vxkr2", 105, "192.0.2.11")],
])("%s does not count as this runner's tunnel under another id", (_, other) => {
  expect(() => refuseForeign(adopting(planTunnel(network, 1, hub, runner)), hostFacts([other]))).not.toThrow();
});

test("a device in an owner's record is no conflict, and keeps the MAC that it was adopted with", () => {
  const items = planTunnel(network, 1, hub, runner);
  const facts = hostFacts([tunnel("vxkr1", 101, "192.0.2.11"), tunnel("vxkr2", 102, "192.0.2.11")]);
  const kept = withAdoptedMacs(adopting(items), facts);
  const records: HostRecord[] = [
    { ...kept.record, items: kept.items },
    { ...kept.record, uid: "other", items: planTunnel(network, 2, hub, runner) },
  ];
  expect(() => refuseForeign(adopting(items), { ...facts, records })).not.toThrow();
  const later = { ...hostFacts([]), records };
  expect(withAdoptedMacs({ ...kept, items, adopt: false }, later).items[0]).toMatchObject({ mac: "aa:00:00:00:00:01" });
});
