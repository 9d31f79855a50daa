import { describe, expect, test } from "vitest";
import { planSteps } from "../../../provider/network/diff/steps";
import {
  bootSteps,
  diffItems,
  factsWithout,
  formatDifference,
  ITEM_KINDS,
  isPresent,
  readBackOf,
  renderSteps,
} from "../../../provider/network/kinds";
import type { DesiredState, Item, Link } from "../../../provider/network/model/items";
import { adaptToHost } from "../../../provider/network/plan/this-host";
import { preflightScript, readbackScript } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { hostWith } from "./host-facts";
import { SAMPLE_ITEMS } from "./sample-items";

/** A setting keeps a value. */
const STAYS_IN_FACTS: Item["kind"][] = ["sysctl"];

const hasPart = (script: string, part: string): boolean => new RegExp(`@@ ${part}\\b`).test(script);

test.each(Object.entries(ITEM_KINDS))(
  "the facts about a %s are read before a change and after it",
  (_, { readFrom: { before, after } }) => {
    const preflight = preflightScript([]);
    const readback = readbackScript({ devices: ["vxkr1"], files: [], isIpv6: true });
    expect(before.filter((part) => !hasPart(preflight, part))).toEqual([]);
    expect(after.filter((part) => !hasPart(readback, part))).toEqual([]);
    expect([before.length, after.length]).not.toContain(0);
  },
);

const record = { uid: "all", owner: "org/all", network: "training", store: "s" };

describe.each(Object.values(SAMPLE_ITEMS))("an item of kind $kind", (item) => {
  test("is as desired on a host that has it", () => {
    expect(diffItems([item], hostWith([{ record, items: [item] }]))).toEqual([]);
  });

  test("has in its boot script only what a boot script can hold", () => {
    const { writes, files, removedRules } = renderSteps(bootSteps(item));
    expect([...writes, ...files, ...removedRules]).toEqual([]);
  });

  test("is absent from the facts after its removal, and the facts before it are unchanged", () => {
    const facts = hostWith([{ record, items: [item] }]);
    const before = structuredClone(facts);
    const after = factsWithout([item], facts);
    expect(facts).toEqual(before);
    expect(isPresent(item, after)).toBe(STAYS_IN_FACTS.includes(item.kind));
  });
});

test("after a change the devices, files and families of its items are read", () => {
  const items: Item[] = [
    { kind: "link", name: "vxkr1", type: "anchor" },
    { kind: "address", dev: "kohaku-overlay", address: "10.128.64.1/18" },
    { kind: "route", family: 6, dst: "fd00::/48", via: "fd00::fe", dev: "br0" },
    { kind: "file", path: "/etc/overlay-dns" },
    { kind: "zone", rule: "rule", underlay: "192.0.2.11" },
  ];
  const facts = hostWith([]);
  facts.addresses.add("192.0.2.11/24 eth0");
  expect(readBackOf(items, facts)).toEqual({
    devices: ["br0", "eth0", "kohaku-overlay", "vxkr1"],
    files: ["/etc/overlay-dns"],
    isIpv6: true,
  });
  expect(readBackOf([{ kind: "sysctl", key: "net.ipv4.ip_forward", value: "1" }], facts).isIpv6).toBe(false);
});

const anchor: Link = { kind: "link", name: "kohaku-hub", type: "anchor", mac: "02:00:00:00:00:01" };
const state = (link: Link): DesiredState => ({
  record: { uid: "net", owner: "org/net", network: "training", store: "s" },
  items: [link],
});

test("an optional field that is no longer planned gets the kernel's default again", () => {
  const facts = hostWith([state({ ...anchor, mtu: 1400, master: "br0" })]);
  const desired = adaptToHost(state(anchor), facts);
  expect(diffItems(desired.items, facts).map(formatDifference)).toEqual([
    "link kohaku-hub: MTU is 1400, should be 1500, master is br0, should be none",
  ]);
  expect(renderChange(planSteps([desired], facts), [])).toContain(
    "link set dev kohaku-hub address 02:00:00:00:00:01 mtu 1500 nomaster up",
  );
});

test("an optional field that was never planned stays as it is on the host", () => {
  const facts = hostWith([state(anchor)]);
  facts.links.set("kohaku-hub", { ...facts.links.get("kohaku-hub")!, mtu: 1400, master: "vrf0" });
  expect(planSteps([adaptToHost(state(anchor), facts)], facts)).toEqual([]);
});

test("after the reset the host has no further difference", () => {
  const facts = hostWith([state({ ...anchor, mtu: 1500, master: "" })]);
  const desired = adaptToHost(state(anchor), facts);
  expect(desired.items).toEqual([{ ...anchor, mtu: 1500, master: "" }]);
  expect(planSteps([desired], facts)).toEqual([]);
});
