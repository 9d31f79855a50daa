import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import { toRecordItem } from "../../../provider/network/kinds";
import type { HostRecord, Item } from "../../../provider/network/model/items";
import { BOOT_SCRIPT, isInvalidRecord, parseRecord } from "../../../provider/network/model/record";
import { withBootItems } from "../../../provider/network/plan/boot";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { planCarrier, planReturn } from "../../../provider/network/plan/static-ip";
import { parseFacts } from "../../../provider/network/read/facts";
import { hub, runner, training } from "../../network";
import { recordFiles } from "./host-facts";
import { SAMPLE_ITEMS } from "./sample-items";

const FILE = "/var/lib/overlay/training/u1.json";
const network = training({ docker: { name: "kohakuriver-overlay", required: false, share: 4 } });
const both = training({
  layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/40/6/82")],
  docker: { name: "kohakuriver-overlay", required: true, share: 4 },
});
const forwards = [
  { protocol: "udp" as const, port: 53, to: "10.128.64.9", toPort: 5353 },
  { protocol: "tcp" as const, port: 443, to: "10.128.64.9", toPort: 8443 },
];
const address = (ip: string, preserveClientIp: boolean) => ({
  ip,
  forwards,
  cidrs: ["10.128.0.0/12"],
  preserveClientIp,
});
const path = {
  networkName: "training",
  cidr: "10.128.0.0/12",
  subnet: "10.128.64.0/18",
};

const record = (items: Item[]): HostRecord => ({
  uid: "u1",
  owner: "org/urn:pulumi:dev::a b'c::overlay:index:RunnerSubnet::r1",
  network: "training",
  name: "r1",
  store: "1f0e8c9a-2f6c-4c3b-9e1c-0a8e1f2d3c4b",
  items,
});

/** As version 0.1.0 wrote it. */
const RECORD_0_1 = `{"uid":"u1","owner":"org/urn:pulumi:dev::p::overlay:index:RunnerSubnet::r1","network":"training","name":"r1","store":"1f0e8c9a-2f6c-4c3b-9e1c-0a8e1f2d3c4b","items":[
{"kind":"link","name":"kohaku-overlay","type":"bridge","mtu":1450,"mac":"02:b4:50:c4:a4:32"},
{"kind":"link","type":"vxlan","mtu":1450,"vxlan":{"vni":101,"port":4789,"remote":"192.0.2.1","local":"192.0.2.11"},"name":"vxkr1","master":"kohaku-overlay","mac":"02:6d:9b:be:e2:62"},
{"kind":"chain","family":4,"table":"filter","chain":"OVERLAY-IN"},
{"kind":"rule","family":4,"table":"filter","chain":"OVERLAY-IN","rule":"-s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT"},
{"kind":"jump","family":4,"table":"filter","chain":"OVERLAY-IN","from":"INPUT"},
{"kind":"zone","rule":"rule family=\\"ipv4\\" source address=\\"192.0.2.1\\" port port=\\"4789\\" protocol=\\"udp\\" accept","underlay":"192.0.2.11"},
{"kind":"address","dev":"kohaku-overlay","address":"10.128.64.1/18"},
{"kind":"route","family":4,"dst":"10.128.0.0/12","via":"10.128.64.254","dev":"kohaku-overlay"},
{"kind":"sysctl","key":"net.ipv4.ip_forward","value":"1"},
{"kind":"chain","family":4,"table":"filter","chain":"OVERLAY-FWD"},
{"kind":"rule","family":4,"table":"filter","chain":"OVERLAY-FWD","rule":"-s 10.128.0.0/12 -j ACCEPT"},
{"kind":"jump","family":4,"table":"filter","chain":"OVERLAY-FWD","from":"FORWARD"},
{"kind":"jump","family":4,"table":"filter","chain":"OVERLAY-FWD","from":"DOCKER-USER","ifPresent":true}]}`;

test("a record of version 0.1.0 is valid; its field ifPresent is dropped", () => {
  const parsed = parseRecord(FILE, RECORD_0_1) as HostRecord;
  expect(parsed).toMatchObject({ uid: "u1", network: "training" });
  expect(parsed.items).toHaveLength(13);
  expect(parsed.items.at(-1)).toEqual({
    kind: "jump",
    family: 4,
    table: "filter",
    chain: "OVERLAY-FWD",
    from: "DOCKER-USER",
  });
});

const PLANS: [string, Item[]][] = [
  ["a hub", planHub(both)],
  ["a tunnel", planTunnel(network, 1, hub, runner)],
  [
    "a tunnel over IPv6",
    planTunnel(network, 1, { ...hub, underlayIp: "2001:db8::1" }, { ...runner, underlayIp: "2001:db8::2" }),
  ],
  ["a runner", planRunner(both, 1, "vxkr1", hub, runner)],
  ["a static address", planCarrier(address("203.0.113.7", false), { ...hub, uplink: "eth0.100" })],
  ["one with preserveClientIp", planCarrier(address("203.0.113.7", true), hub, [runner])],
  ["one of IPv6", planCarrier({ ...address("2001:db8::7", false), forwards: [] }, { ...hub, uplink: "eth0" })],
  ["a return path", planReturn({ ...path, bridge: "kohaku-overlay" }, forwards)],
  ["a device with accept_ra", [{ kind: "sysctl", key: "net.ipv6.conf.eth0/100.accept_ra", value: "2" }]],
  ["one item of each kind", Object.values(SAMPLE_ITEMS)],
];

test.each(PLANS)("the plan of %s, with its boot items, is a valid record", (_, items) => {
  const facts = { ...parseFacts(""), systemd: new Map() };
  const { store, ...rest } = record([]);
  const all = withBootItems({ record: { ...rest, store }, items, persist: true }, facts);
  const written = record(all.map(toRecordItem));
  expect(parseRecord(FILE, JSON.stringify(written))).toEqual(written);
});

/** The item with one of its texts replaced, for each of them. */
function withText(value: unknown, text: string): unknown[] {
  if (typeof value === "string") return [text];
  if (typeof value !== "object" || value === null) return [];
  return Object.entries(value).flatMap(([key, inner]) =>
    withText(inner, text).map((changed) => Object.assign(structuredClone(value), { [key]: changed })),
  );
}

const COMMANDS = ["$(id)", "x;reboot", "a\nb", "`id`", "'"];
const NO_WORDS = ["a b", "-x"];

test.each(Object.values(SAMPLE_ITEMS))("no text of a $kind can hold a command, a blank or an option", (item) => {
  const isText = item.kind === "rule"; // which has options of iptables
  for (const text of [...COMMANDS, ...(isText ? [] : NO_WORDS)]) {
    const changed = withText(item, text);
    expect(changed.length).toBeGreaterThan(1);
    const parsed = changed.map((each) => parseRecord(FILE, withItem(each as object)));
    expect(parsed.filter((each) => !isInvalidRecord(each))).toEqual([]);
  }
});

const valid = record(planTunnel(network, 1, hub, runner));
const [link] = valid.items as [Extract<Item, { kind: "link" }>];
const withItem = (item: object): string => JSON.stringify({ ...valid, items: [item] });

test.each<[string, string, RegExp]>([
  ["nothing", "", /^it is empty or cannot be read$/],
  ["a line end", "\n", /^it is empty/],
  ["null", "null", /expected object/],
  ["an empty object", "{}", /^uid: /],
  ["an empty list", "[]", /expected object/],
  ["a number", "7", /expected object/],
  ["a truncated record", JSON.stringify(valid).slice(0, 200), /^it is not JSON$/],
  ["a record without items", JSON.stringify({ ...valid, items: [] }), /^items: /],
  ["items that are no list", JSON.stringify({ ...valid, items: {} }), /^items: /],
  ["an item of no kind", withItem({}), /^items\.0\.kind: /],
  ["an item of an unknown kind", withItem({ kind: "cron" }), /^items\.0\.kind: /],
  ["a field that no item has", withItem({ ...link, run: "x" }), /^items\.0: /],
  ["a field that no record has", JSON.stringify({ ...valid, run: "x" }), /run/],
  [
    "another network's record",
    JSON.stringify({ ...valid, network: "other" }),
    /^it is the record of u1 in network other$/,
  ],
  ["a uid with a path in it", JSON.stringify({ ...valid, uid: "../u1" }), /^uid: /],
  ["an owner of two lines", JSON.stringify({ ...valid, owner: "a\nb" }), /^owner: /],
  ["a command in a device's name", withItem({ ...link, name: "x;reboot" }), /^items\.0\.name: /],
  ["an option for a device's name", withItem({ ...link, name: "-x" }), /^items\.0\.name: /],
  ["a MAC with a blank", withItem({ ...link, mac: "02:00:00:00:00:01 up" }), /^items\.0\.mac: /],
  ["a VNI as text", withItem({ ...link, vxlan: { ...link.vxlan, vni: "101" } }), /^items\.0\.vxlan\.vni: /],
  [
    "a remote that is a name",
    withItem({ ...link, vxlan: { ...link.vxlan, remote: "$(id)" } }),
    /^items\.0\.vxlan\.remote: /,
  ],
  [
    "an address without a prefix",
    withItem({ kind: "address", dev: "br0", address: "10.0.0.1" }),
    /^items\.0\.address: /,
  ],
  [
    "an address with a prefix that its family does not have",
    withItem({ kind: "address", dev: "br0", address: "10.0.0.1/46" }),
    /^items\.0\.address: /,
  ],
  ["a route to a name", withItem({ kind: "route", family: 4, dst: "all; reboot" }), /^items\.0\.dst: /],
  [
    "a chain of another program",
    withItem({ kind: "chain", family: 4, table: "filter", chain: "FORWARD" }),
    /^items\.0\.chain: /,
  ],
  [
    "a rule of two lines",
    withItem({ kind: "rule", family: 4, table: "filter", chain: "OVERLAY-FWD", rule: "-j ACCEPT\nEND\nreboot" }),
    /^items\.0\.rule: /,
  ],
  [
    "a rule with a substitution",
    withItem({ kind: "rule", family: 4, table: "filter", chain: "OVERLAY-FWD", rule: "-j `reboot`" }),
    /^items\.0\.rule: /,
  ],
  ["a setting outside of `net`", withItem({ kind: "sysctl", key: "kernel.panic", value: "1" }), /^items\.0\.key: /],
  [
    "a setting with `..` in its path",
    withItem({ kind: "sysctl", key: "net.ipv4.conf.//.x", value: "1" }),
    /^items\.0\.key: /,
  ],
  [
    "a file of another program",
    withItem({ kind: "file", path: "/etc/passwd" }),
    /^items\.0\.path: is not a file of this/,
  ],
  ["another record's script", withItem({ kind: "file", path: "/var/lib/overlay/training/u2.sh" }), /^items\.0\.path: /],
  ["a unit of another program", withItem({ kind: "service", name: "ssh.service" }), /^items\.0\.name: /],
  ["a rich rule with more in it", withItem({ kind: "zone", rule: 'rule family="ipv4" accept' }), /^items\.0\.rule: /],
])("no record: %s", (_, text, reason) => {
  const parsed = parseRecord(FILE, text);
  expect(parsed).toEqual({ file: FILE, network: "training", uid: "u1", reason: expect.stringMatching(reason) });
});

test("a file without the name of a record is not a record, whatever its content", () => {
  const parsed = parseRecord("/var/lib/overlay/training/a b.json", JSON.stringify(valid));
  expect(isInvalidRecord(parsed) && parsed.uid).toBeUndefined();
});

test("files that are not records are found, and no text in a record is read as another part of the facts", () => {
  const written = record([{ kind: "file", path: BOOT_SCRIPT }]);
  const text = recordFiles({
    [FILE]: JSON.stringify(written),
    "/var/lib/overlay/2001:db8::7/u2.json": "",
    "/var/lib/overlay/training/u3.json": "{\n@@ lacks\nvxlan\n}",
  });
  const { records, invalidRecords, missingFeatures } = parseFacts(text);
  expect(records).toEqual([written]);
  expect(invalidRecords.map(({ file, uid }) => [file, uid])).toEqual([
    ["/var/lib/overlay/2001:db8::7/u2.json", "u2"],
    ["/var/lib/overlay/training/u3.json", "u3"],
  ]);
  expect(missingFeatures).toEqual([]);
});
