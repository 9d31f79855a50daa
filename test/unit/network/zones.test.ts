import { describe, expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { planSteps } from "../../../provider/network/diff/steps";
import { appliesToHost, diffItems, formatDifference } from "../../../provider/network/kinds";
import type { Facts } from "../../../provider/network/model/facts";
import type { DesiredState, Item, Link } from "../../../provider/network/model/items";
import { type HostAccess, planZone, planZoneDevice } from "../../../provider/network/plan/isolation";
import { localWarnings } from "../../../provider/network/plan/this-host";
import { planZonePeer } from "../../../provider/network/plan/tunnels/vxlan";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { recordFiles, recordPart } from "./host-facts";

const layouts = [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:6b6f::/48/16/64")];
const tunnel: Link = {
  kind: "link",
  name: "vxkr1",
  type: "vxlan",
  vxlan: { vni: 101, port: 4789, remote: "10.254.0.1", local: "10.254.1.1" },
};
const [device] = planZoneDevice(tunnel) as [Item];
const [rule] = planZonePeer(tunnel.vxlan!) as [Item];
const [ours] = planZone({ layouts, hostAccess: "ping" }) as [Item];
const accepting = (hostAccess: HostAccess): Item[] => planZone({ layouts, hostAccess }).slice(1);
const RULE = 'rule family="ipv4" source address="10.254.0.1" port port="4789" protocol="udp" accept';
const BASE = [
  'rule protocol value="icmp" accept',
  'rule protocol value="ipv6-icmp" accept',
  'rule priority="32767" reject',
];
const ADD_BASE = BASE.map((text) => `'--add-rich-rule=${text}'`).join(" ");

/** As firewalld 1.3 prints it. */
const zone = (name: string, interfaces = "", rules: string[] = [], target = "default"): string =>
  [
    name,
    `  target: ${target}`,
    "  icmp-block-inversion: no",
    `  interfaces: ${interfaces}`,
    "  sources: ",
    "  services: dhcpv6-client ssh",
    "  rich rules: ",
    ...rules.map((text) => `\t${text}`),
    "",
  ].join("\n");
const overlay = (interfaces = "", rules: string[] = []): string =>
  zone("pulumi-overlay", interfaces, [...BASE, ...rules], "ACCEPT");

const host = (
  runtime: string[] | "stopped",
  permanent: string[],
  recorded: Item[] = [],
  { docker = false, more = "" } = {},
): Facts =>
  parseFacts(
    [
      ...(docker ? ["@@ docker", '[{"Name":"bridge","Driver":"bridge"}]'] : []),
      "@@ ip",
      '[{"ifname":"eth0","flags":["UP"],"mtu":1500,"addr_info":[{"local":"10.254.1.1","prefixlen":16}]}]',
      "@@ zone",
      "public",
      ...(runtime === "stopped" ? [] : ["@@ zones", ...runtime]),
      "@@ permanent",
      ...permanent,
      recordPart({ uid: "r1", owner: "o", network: "training", store: "s", items: recorded }),
      more,
    ].join("\n"),
  );
const desired = (items: Item[]): DesiredState => ({
  record: { uid: "r1", owner: "o", network: "training", store: "s" },
  items,
});
const script = (items: Item[], facts: Facts): string[] =>
  renderChange(planSteps([desired(items)], facts), [])
    .split("\n")
    .slice(1, -1);
const drift = (items: Item[], facts: Facts): string[] => diffItems(items, facts).map(formatDifference);

const bare = [zone("public", "eth0"), zone("trusted")];
const loaded = [zone("public", "eth0", [RULE]), zone("trusted"), overlay("kohaku-overlay vxkr1")];
const unloaded = [zone("public (active)", "eth0", [RULE]), zone("trusted (active)", "kohaku-overlay vxkr1")];

test("a new zone is permanent, and until firewalld loads it devices are in trusted; VXLAN goes into the underlay's", () => {
  expect(script([device, rule, ours], host(bare, bare))).toEqual([
    "'firewall-cmd' '--quiet' '--permanent' '--new-zone=pulumi-overlay' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--set-target=ACCEPT' || rc=1",
    `'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' ${ADD_BASE} || rc=1`,
    "'firewall-cmd' '--quiet' '--zone=trusted' '--change-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--change-interface=vxkr1' || rc=1",
    `'firewall-cmd' '--quiet' '--zone=public' '--add-rich-rule=${RULE}' || rc=1`,
    `'firewall-cmd' '--quiet' '--permanent' '--zone=public' '--add-rich-rule=${RULE}' || rc=1`,
  ]);
});

test("one warning describes what a reload would change", () => {
  const warning = expect.stringMatching(
    /^firewalld loads the new zone pulumi-overlay when it is reloaded or started\./,
  );
  expect(localWarnings([ours, device], host(bare, bare))).toEqual([warning]);
  expect(localWarnings([ours, device], host(bare, loaded))).toEqual([]);
  expect(localWarnings([ours, device], host(loaded, loaded))).toEqual([]);
  expect(localWarnings([ours, device], host("stopped", bare))).toEqual([]);
  expect(localWarnings([ours, device], parseFacts(""))).toEqual([]);
});

test("a device is put into our zone at once where that is loaded", () => {
  expect(script([device], host([...bare, overlay()], [...bare, overlay()]))).toEqual([
    "'firewall-cmd' '--quiet' '--zone=pulumi-overlay' '--change-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--change-interface=vxkr1' || rc=1",
  ]);
});

test("devices that an earlier version has put into trusted are moved", () => {
  const recorded = [device, rule];
  expect(script([device, rule, ours], host(unloaded, unloaded, recorded)).slice(3)).toEqual([
    "'firewall-cmd' '--quiet' '--zone=trusted' '--change-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--change-interface=vxkr1' || rc=1",
  ]);
  const besideOurs = [zone("trusted", "vxkr1"), overlay()];
  expect(drift([device], host(besideOurs, besideOurs))).toEqual([
    "firewalld zone of vxkr1: not in the runtime configuration of zone pulumi-overlay, not in the permanent configuration of zone pulumi-overlay",
  ]);
});

describe("hostAccess", () => {
  test.each<[HostAccess, string[]]>([
    ["ping", []],
    [
      "all",
      [
        'rule family="ipv4" source address="10.128.0.0/12" accept',
        'rule family="ipv6" source address="fd00:6b6f::/48" accept',
      ],
    ],
    [
      [
        { protocol: "tcp", first: 22, last: 22 },
        { protocol: "udp", first: 6000, last: 6100 },
      ],
      [
        'rule family="ipv4" source address="10.128.0.0/12" port port="22" protocol="tcp" accept',
        'rule family="ipv4" source address="10.128.0.0/12" port port="6000-6100" protocol="udp" accept',
        'rule family="ipv6" source address="fd00:6b6f::/48" port port="22" protocol="tcp" accept',
        'rule family="ipv6" source address="fd00:6b6f::/48" port port="6000-6100" protocol="udp" accept',
      ],
    ],
  ])("%j is in our zone", (hostAccess, expected) => {
    expect(accepting(hostAccess)).toEqual(expected.map((text) => ({ kind: "zone", rule: text })));
  });

  const [all] = accepting("all") as [Item];
  const ALL = 'rule family="ipv4" source address="10.128.0.0/12" accept';

  test("is added and removed at runtime where our zone is loaded, else only permanently", () => {
    expect(script([all], host(loaded, loaded))).toEqual([
      `'firewall-cmd' '--quiet' '--zone=pulumi-overlay' '--add-rich-rule=${ALL}' || rc=1`,
      `'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--add-rich-rule=${ALL}' || rc=1`,
    ]);
    expect(script([all], host(unloaded, loaded))).toEqual([
      `'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--add-rich-rule=${ALL}' || rc=1`,
    ]);
    const open = [zone("trusted"), overlay("vxkr1", [ALL])];
    expect(script([device, ours], host(open, open, [device, ours, all]))).toEqual([
      `'firewall-cmd' '--quiet' '--zone=pulumi-overlay' '--remove-rich-rule=${ALL}' || rc=1`,
      `'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--remove-rich-rule=${ALL}' || rc=1`,
    ]);
  });
});

test("an underlay in another zone gets the rule there", () => {
  const internal = [zone("internal", "eth0"), zone("public"), overlay("vxkr1")];
  expect(script([rule], host(internal, internal))[0]).toContain("'--zone=internal'");
  const unbound = [zone("public"), overlay()];
  expect(script([rule], host(unbound, unbound))[0]).toContain("'--zone=public'");
});

test.each<[string, string[]]>([
  ["before firewalld has loaded our zone", unloaded],
  ["after", loaded],
])("entries that exist are not added again: %s", (_, runtime) => {
  expect(script([ours, device, rule], host(runtime, loaded))).toEqual([]);
});

test("all entries are removed with the last owner, from the zone that has them; other devices in trusted stay", () => {
  expect(script([], host(loaded, loaded, [ours, device, rule]))).toEqual([
    "'firewall-cmd' '--quiet' '--zone=pulumi-overlay' '--remove-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--remove-interface=vxkr1' || rc=1",
    `'firewall-cmd' '--quiet' '--zone=public' '--remove-rich-rule=${RULE}' || rc=1`,
    `'firewall-cmd' '--quiet' '--permanent' '--zone=public' '--remove-rich-rule=${RULE}' || rc=1`,
    "'firewall-cmd' '--quiet' '--permanent' '--delete-zone=pulumi-overlay' || rc=1",
  ]);
  expect(script([], host(unloaded, loaded, [ours, device]))).toEqual([
    "'firewall-cmd' '--quiet' '--zone=trusted' '--remove-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--remove-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--delete-zone=pulumi-overlay' || rc=1",
  ]);
  expect(script([], host(unloaded, unloaded, [device]))).toEqual([
    "'firewall-cmd' '--quiet' '--zone=trusted' '--remove-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=trusted' '--remove-interface=vxkr1' || rc=1",
  ]);
});

test("our zone stays while another owner has it, also one whose record is lost", () => {
  const other = { uid: "r2", owner: "o2", network: "training", store: "s", items: [ours] };
  const onlyDevice = [
    "'firewall-cmd' '--quiet' '--zone=pulumi-overlay' '--remove-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--remove-interface=vxkr1' || rc=1",
  ];
  const both = recordFiles({
    "/var/lib/overlay/training/r1.json": JSON.stringify({ ...desired([]).record, items: [ours, device] }),
    "/var/lib/overlay/training/r2.json": JSON.stringify(other),
  });
  expect(script([], host(loaded, loaded, [], { more: both }))).toEqual(onlyDevice);
  const lost = `@@ files\n${"0".repeat(64)}  /var/lib/overlay/training/r2.sh`;
  expect(script([], host(loaded, loaded, [ours, device], { more: lost }))).toEqual(onlyDevice);
});

test("a zone that is only in the runtime configuration is created permanently", () => {
  const facts = host(loaded, bare);
  expect(drift([ours], facts)).toEqual(["firewalld zone pulumi-overlay: missing"]);
  expect(script([ours], facts)).toContain("'firewall-cmd' '--quiet' '--permanent' '--new-zone=pulumi-overlay' || rc=1");
  expect(script([], host(loaded, bare, [ours]))).toEqual([]);
});

test("an entry in only one of the two configurations is drift", () => {
  expect(drift([device, rule], host(loaded, bare))).toEqual([
    "firewalld zone of vxkr1: not in the permanent configuration of zone pulumi-overlay",
    `firewalld ${RULE}: not in the permanent configuration of zone public`,
  ]);
  expect(drift([device], host(bare, bare))).toEqual(["firewalld zone of vxkr1: missing"]);
});

test("another target, and a missing rule of our zone, are drift, and are repaired in place", () => {
  const open = [zone("trusted"), zone("pulumi-overlay", "vxkr1", BASE.slice(0, 2), "DROP")];
  expect(drift([ours], host(open, open))).toEqual([
    'firewalld zone pulumi-overlay: no rule priority="32767" reject in the runtime configuration, target is DROP, should be ACCEPT, no rule priority="32767" reject in the permanent configuration',
  ]);
  expect(script([ours], host(open, open))).toEqual([
    `'firewall-cmd' '--quiet' '--zone=pulumi-overlay' ${ADD_BASE} || rc=1`,
    "'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' '--set-target=ACCEPT' || rc=1",
    `'firewall-cmd' '--quiet' '--permanent' '--zone=pulumi-overlay' ${ADD_BASE} || rc=1`,
  ]);
});

test("without firewalld, zones have no effect", () => {
  expect(appliesToHost(device, parseFacts(""))).toBe(false);
  expect(script([ours, device, rule], parseFacts(""))).toEqual([]);
  const gone = parseFacts(recordPart({ ...desired([]).record, items: [ours, device, rule] }));
  expect(script([], gone)).toEqual([]);
});

test("while firewalld is stopped, entries are added for its next start, and removed with their owner", () => {
  expect(script([ours, device, rule], host("stopped", bare))).toEqual([
    "'firewall-offline-cmd' '--quiet' '--new-zone=pulumi-overlay' || rc=1",
    "'firewall-offline-cmd' '--quiet' '--zone=pulumi-overlay' '--set-target=ACCEPT' || rc=1",
    `'firewall-offline-cmd' '--quiet' '--zone=pulumi-overlay' ${ADD_BASE} || rc=1`,
    "'firewall-offline-cmd' '--quiet' '--zone=pulumi-overlay' '--change-interface=vxkr1' || rc=1",
    `'firewall-offline-cmd' '--quiet' '--zone=public' '--add-rich-rule=${RULE}' || rc=1`,
  ]);
  expect(diffItems([ours, device, rule], host("stopped", loaded))).toEqual([]);
  expect(script([], host("stopped", loaded, [ours, device, rule]))).toEqual([
    "'firewall-offline-cmd' '--quiet' '--zone=pulumi-overlay' '--remove-interface=vxkr1' || rc=1",
    `'firewall-offline-cmd' '--quiet' '--zone=public' '--remove-rich-rule=${RULE}' || rc=1`,
    "'firewall-offline-cmd' '--quiet' '--delete-zone=pulumi-overlay' || rc=1",
  ]);
});

test("a bridge with a Docker network stays in Docker's own zone, if there is one", () => {
  const [bridge] = planZoneDevice({ name: "kohaku-overlay" }, true) as [Item];
  const dockers = [...bare, zone("docker", "docker0")];
  expect(appliesToHost(bridge, host(dockers, dockers, [], { docker: true }))).toBe(false);
  expect(appliesToHost(device, host(dockers, dockers, [], { docker: true }))).toBe(true);
  expect(appliesToHost(bridge, host(bare, bare, [], { docker: true }))).toBe(true); // Docker before 20.10
  expect(appliesToHost(bridge, host(dockers, dockers))).toBe(true); // Docker was removed
});

test.each(["trusted", "pulumi-overlay"])(
  "a bridge in zone %s is removed from it when Docker manages the bridge",
  (name) => {
    const [bridge] = planZoneDevice({ name: "kohaku-overlay" }, true) as [Item];
    const both = [zone("docker", "docker0"), zone(name, "kohaku-overlay")];
    expect(script([device], host(both, both, [bridge], { docker: true })).slice(0, 2)).toEqual([
      `'firewall-cmd' '--quiet' '--zone=${name}' '--remove-interface=kohaku-overlay' || rc=1`,
      `'firewall-cmd' '--quiet' '--permanent' '--zone=${name}' '--remove-interface=kohaku-overlay' || rc=1`,
    ]);
  },
);
