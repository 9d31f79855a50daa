import { expect, test } from "vitest";
import { planSteps } from "../../../provider/network/diff/steps";
import type { Facts } from "../../../provider/network/model/facts";
import { type DesiredState, type Item, itemKey } from "../../../provider/network/model/items";
import { scriptPath } from "../../../provider/network/model/record";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { adaptToHost } from "../../../provider/network/plan/this-host";
import { hub, onIpv4, runner, training } from "../../network";
import { hostWith } from "./host-facts";

/** What the removal of one owner removes from a host on which all records are lost. */
const network = training();
const other = training({
  networkName: "other",
  devicePrefix: "vxo",
  bridgeName: "other",
  vniBase: 900,
  vxlanPort: 4790,
});
const runner2 = { ...runner, underlayIp: "192.0.2.12" };

const desired = (uid: string, items: Item[], of = "training"): DesiredState => ({
  record: { uid, owner: `org/${uid}`, network: of, store: "s" },
  items: onIpv4(items),
});
const net = desired("net", planHub(network));
const r1 = desired("r1", planTunnel(network, 1, hub, runner));
const r2 = desired("r2", planTunnel(network, 2, hub, runner2));
const bridge = desired("r1", planRunner(network, 1, "vxkr1", hub, runner));
const otherBridge = desired("o1", planRunner(other, 2, "vxo2", hub, runner), "other");

function withoutRecords(states: DesiredState[], scriptsOf = states): Facts {
  const facts = hostWith(states);
  facts.records = [];
  for (const { record } of scriptsOf) facts.files.set(scriptPath(record), "sum");
  return facts;
}

const leaving = (desired: DesiredState, facts: Facts): DesiredState =>
  adaptToHost({ ...desired, items: [], plannedItems: desired.items }, facts);
const removed = (desired: DesiredState, facts: Facts): string[] =>
  planSteps([leaving(desired, facts)], facts).map(({ verb, item }) => `${verb} ${itemKey(item)}`);

const OF_R1_ON_HUB = [
  "remove rule '-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT' in OVERLAY-IN (IPv4 filter)",
  "remove rule '! -s 10.128.64.0/18 -i vxkr1 -j DROP' in OVERLAY-PRE (IPv4 raw)",
  "remove rule '-i vxkr1 -j DROP' in OVERLAY-GUARD (IPv4 mangle)",
  "remove rule '-o vxkr1 -j DROP' in OVERLAY-GUARD (IPv4 mangle)",
  "remove rule '-i vxkr1 -j REJECT --reject-with icmp-port-unreachable' in OVERLAY-IN (IPv4 filter)",
  "remove link vxkr1",
  "remove file /var/lib/overlay/training/r1.sh",
];

test.each<[string, Facts]>([
  ["the scripts of all owners are there", withoutRecords([net, r1, r2])],
  ["only its own script is there, and the MAC of vxkr2 shows its owner", withoutRecords([net, r1, r2], [r1])],
])("the removal of a runner removes from the hub only what names its device or peer, while %s", (_, facts) => {
  expect(removed(r1, facts).sort()).toEqual([...OF_R1_ON_HUB].sort());
});

test("a peer that two tunnels have stays accepted until both are gone", () => {
  const second = desired("o1", planTunnel({ ...other, vxlanPort: 4789 }, 1, hub, runner), "other");
  const accept = "remove rule '-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT' in OVERLAY-IN (IPv4 filter)";
  expect(removed(r1, withoutRecords([r1, second]))).not.toContain(accept);
  expect(removed(r1, withoutRecords([r1]))).toContain(accept);
});

/** Removes owners one after the other, and returns the rules that are left in our chains. */
function leftAfter(states: DesiredState[], facts: Facts): string[] {
  for (const each of states) {
    for (const { item } of planSteps([leaving(each, facts)], facts)) {
      if (item.kind === "link") facts.links.delete(item.name);
      if (item.kind === "chain") facts.chains.delete(`${item.family} ${item.table} ${item.chain}`);
      if (item.kind !== "rule") continue;
      const key = `${item.family} ${item.table} ${item.chain}`;
      facts.chains.set(
        key,
        facts.chains.get(key)!.filter((rule) => rule !== item.rule),
      );
    }
    facts.files.delete(scriptPath(each.record));
  }
  return [...facts.chains].flatMap(([key, rules]) => (key.includes("OVERLAY-") ? [key, ...rules] : []));
}

test.each<[string, DesiredState[]]>([
  ["runners and then their network on a hub", [r1, r2, net]],
  ["runners of two networks on one host", [bridge, otherBridge]],
])("nothing is left in our chains after the last owner: %s", (_, states) => {
  expect(leftAfter(states, withoutRecords(states))).toEqual([]);
});

test("nothing is left in our chains of a host that has a tunnel of another program", () => {
  const foreign = { vni: 7, port: 4789, remote: "192.0.2.77", local: "192.0.2.1", learning: false };
  const accept = "-s 192.0.2.77/32 -p udp -m udp --dport 4789 -j ACCEPT";
  const facts = withoutRecords([net, r1]);
  facts.links.set("flannel.7", { type: "vxlan", mac: "02:00:00:00:00:07", mtu: 1450, up: true, vxlan: foreign });
  facts.chains.get("4 filter OVERLAY-IN")!.unshift(accept);
  expect(leftAfter([r1, net], facts)).toEqual([]);
});

test("a tunnel of ours whose record is lost adds no rule to the records of others", () => {
  const facts = withoutRecords([net, r1, r2], []);
  const { items } = adaptToHost(r1, facts);
  expect(items.map(itemKey).filter((key) => key.includes("192.0.2.12"))).toEqual([]);
});
