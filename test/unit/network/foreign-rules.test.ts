import { expect, test } from "vitest";
import type { DesiredState, Item } from "../../../provider/network/model/items";
import { planHub, planTunnel } from "../../../provider/network/plan/hub";
import { describeForeignRules, findBlockedRemovals } from "../../../provider/network/preflight/foreign-rules";
import { hub, runner, training } from "../../network";
import { hostWith } from "./host-facts";

const network = training();
const desired = (uid: string, items: Item[], stack = "dev"): DesiredState => ({
  record: { uid, owner: `org/urn:pulumi:${stack}::app::T::${uid}`, network: "training", store: "s" },
  items,
});
const net = desired("z-net", planHub(network));
const first = desired("a", planTunnel(network, 1, hub, runner));
const second = desired("b", planTunnel(network, 2, hub, runner));
const other = desired("c", planTunnel(network, 3, hub, runner), "prod");

/** The hub of all four, with one rule in OVERLAY-IN that is in no record. */
function hubFacts() {
  const facts = hostWith([net, first, second, other]);
  facts.chains.get("4 filter OVERLAY-IN")!.push("-s 203.0.113.7/32 -j DROP");
  return facts;
}

test("one resource of each stack reports a foreign rule, the network before its runners", () => {
  const reporting = [net, first, second, other].filter((each) => describeForeignRules(each, hubFacts()).length > 0);
  expect(reporting).toEqual([net, other]);
});

test("a foreign rule that is present twice is named once, and our own rules never", () => {
  const facts = hubFacts();
  facts.chains
    .get("4 filter OVERLAY-IN")!
    .push("-s 203.0.113.7/32 -j DROP", "-s 192.0.2.11/32 -p udp -m udp --dport 4789 -j ACCEPT");
  expect(describeForeignRules(net, facts)).toEqual([
    "foreign rule '-s 203.0.113.7/32 -j DROP' in OVERLAY-IN (IPv4 filter): remove it with `iptables -t filter -D OVERLAY-IN -s 203.0.113.7/32 -j DROP`",
  ]);
});

test.each<[string, DesiredState[], string[]]>([
  ["other owners have the chain", [net, first], []],
  ["all owners of the chain are removed", [net, first, second, other], ["z-net", "a", "b", "c"]],
])("a removal is blocked only if the chain would be deleted: %s", (_, leaving, blocked) => {
  const ending = leaving.map(({ record }) => ({ record, items: [] }));
  expect([...findBlockedRemovals(ending, hubFacts()).keys()]).toEqual(blocked);
});
