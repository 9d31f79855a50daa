import { expect, test } from "vitest";
import { renderChange } from "../../../provider/network/commands";
import { differences, differenceText, fits } from "../../../provider/network/compare";
import { type Facts, parseFacts } from "../../../provider/network/facts";
import type { Item, Link } from "../../../provider/network/items";
import { planSteps, type Want } from "../../../provider/network/steps";
import { planZones } from "../../../provider/network/zones";
import { recordPart } from "./machine";

const tunnel: Link = {
  kind: "link",
  name: "vxkr1",
  type: "vxlan",
  vxlan: { vni: 101, port: 4789, remote: "10.254.0.1", local: "10.254.1.1" },
};
const [device, rule] = planZones(tunnel) as [Item, Item];
const RULE = 'rule family="ipv4" source address="10.254.0.1" port port="4789" protocol="udp" accept';

/** As firewalld 1.3 prints it. */
const zone = (name: string, interfaces = "", rules: string[] = []): string =>
  [
    name,
    "  target: default",
    "  icmp-block-inversion: no",
    `  interfaces: ${interfaces}`,
    "  sources: ",
    "  services: dhcpv6-client ssh",
    "  rich rules: ",
    ...rules.map((text) => `\t${text}`),
    "",
  ].join("\n");

const host = (runtime: string[] | "stopped", permanent: string[], recorded: Item[] = [], docker = false): Facts =>
  parseFacts(
    [
      ...(docker ? ["@@ docker", '[{"Name":"bridge","Driver":"bridge"}]'] : []),
      "@@ link",
      '[{"ifname":"eth0","flags":["UP"],"mtu":1500,"addr_info":[{"local":"10.254.1.1","prefixlen":16}]}]',
      "@@ zone",
      "public",
      ...(runtime === "stopped" ? [] : ["@@ zones", ...runtime]),
      "@@ permanent",
      ...permanent,
      recordPart({ uid: "r1", owner: "o", network: "training", store: "s", items: recorded }),
    ].join("\n"),
  );
const want = (items: Item[]): Want => ({ record: { uid: "r1", owner: "o", network: "training", store: "s" }, items });
const script = (items: Item[], facts: Facts): string[] =>
  renderChange(planSteps([want(items)], facts), [])
    .split("\n")
    .slice(1, -1);

const bare = [zone("public", "eth0"), zone("trusted")];
const done = [zone("public (active)", "eth0", [RULE]), zone("trusted (active)", "kohaku-overlay vxkr1")];

test("devices go to the trusted zone and VXLAN into the underlay's, now and for good", () => {
  expect(script([device, rule], host(bare, bare))).toEqual([
    "'firewall-cmd' '--quiet' '--zone=trusted' '--change-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=trusted' '--change-interface=vxkr1' || rc=1",
    `'firewall-cmd' '--quiet' '--zone=public' '--add-rich-rule=${RULE}' || rc=1`,
    `'firewall-cmd' '--quiet' '--permanent' '--zone=public' '--add-rich-rule=${RULE}' || rc=1`,
  ]);
});

test("an underlay in another zone gets the rule there", () => {
  const internal = [zone("internal", "eth0"), zone("public"), zone("trusted", "vxkr1")];
  expect(script([rule], host(internal, internal))[0]).toContain("'--zone=internal'");
  const unbound = [zone("public"), zone("trusted")];
  expect(script([rule], host(unbound, unbound))[0]).toContain("'--zone=public'");
});

test("what is done is not done again, and goes with its owner", () => {
  expect(script([device, rule], host(done, done))).toEqual([]);
  expect(script([], host(done, done, [device, rule]))).toEqual([
    "'firewall-cmd' '--quiet' '--zone=trusted' '--remove-interface=vxkr1' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=trusted' '--remove-interface=vxkr1' || rc=1",
    `'firewall-cmd' '--quiet' '--zone=public' '--remove-rich-rule=${RULE}' || rc=1`,
    `'firewall-cmd' '--quiet' '--permanent' '--zone=public' '--remove-rich-rule=${RULE}' || rc=1`,
  ]);
});

test("what only one of the two configurations has is drift", () => {
  expect(differences([device, rule], host(done, bare)).map(differenceText)).toEqual([
    "firewalld zone of vxkr1: not in the permanent configuration of zone trusted",
    `firewalld ${RULE}: not in the permanent configuration of zone public`,
  ]);
  expect(differences([device], host(bare, bare)).map(differenceText)).toEqual(["firewalld zone of vxkr1: missing"]);
});

test("where firewalld does not run, zones are none of our business", () => {
  expect(fits(device, parseFacts(""))).toBe(false);
  expect(script([device, rule], parseFacts(""))).toEqual([]);
});

test("while firewalld is stopped, entries are made for its next start, and go with their owner, too", () => {
  expect(script([device, rule], host("stopped", bare))).toEqual([
    "'firewall-offline-cmd' '--quiet' '--zone=trusted' '--change-interface=vxkr1' || rc=1",
    `'firewall-offline-cmd' '--quiet' '--zone=public' '--add-rich-rule=${RULE}' || rc=1`,
  ]);
  expect(differences([device, rule], host("stopped", done))).toEqual([]);
  expect(script([], host("stopped", done, [device, rule]))).toEqual([
    "'firewall-offline-cmd' '--quiet' '--zone=trusted' '--remove-interface=vxkr1' || rc=1",
    `'firewall-offline-cmd' '--quiet' '--zone=public' '--remove-rich-rule=${RULE}' || rc=1`,
  ]);
});

test("a bridge with a Docker network is left to Docker's own zone, where there is one", () => {
  const [bridge] = planZones({ kind: "link", name: "kohaku-overlay", type: "bridge" }, true) as [Item];
  const dockers = [...bare, zone("docker", "docker0")];
  expect(fits(bridge, host(dockers, dockers, [], true))).toBe(false);
  expect(fits(device, host(dockers, dockers, [], true))).toBe(true);
  expect(fits(bridge, host(bare, bare, [], true))).toBe(true); // Docker before 20.10
  expect(fits(bridge, host(dockers, dockers))).toBe(true); // there was Docker once
});

test("a bridge that was in the trusted zone before Docker came leaves it for Docker's", () => {
  const [bridge] = planZones({ kind: "link", name: "kohaku-overlay", type: "bridge" }, true) as [Item];
  const both = [zone("docker", "docker0"), zone("trusted", "kohaku-overlay")];
  expect(script([device], host(both, both, [bridge], true)).slice(0, 2)).toEqual([
    "'firewall-cmd' '--quiet' '--zone=trusted' '--remove-interface=kohaku-overlay' || rc=1",
    "'firewall-cmd' '--quiet' '--permanent' '--zone=trusted' '--remove-interface=kohaku-overlay' || rc=1",
  ]);
});
