import { expect, test } from "vitest";
import { parseLayout } from "../../../provider/addressing/layout";
import type { Item } from "../../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { findForeignRoutes } from "../../../provider/network/preflight/foreign-routes";
import { preflight } from "../../../provider/network/preflight/preflight";
import { parseFacts } from "../../../provider/network/read/facts";
import { hub, runner, training } from "../../network";

const network = training({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")] });
const record = { uid: "r1", owner: "o", network: "training", store: "s" };
const onRunner = planRunner(network, 1, "vxkr1", hub, runner);
const onHub = [...planHub(network), ...planTunnel(network, 1, hub, runner)];

type Raw = Record<string, unknown>;
const MAIN: Raw[] = [
  { priority: 0, src: "all", table: "local" },
  { priority: 32766, src: "all", table: "main" },
];
const facts = (family: 4 | 6, routes: Raw[], rules: Raw[] = []) =>
  parseFacts(
    `${family === 4 ? "@@ ip\n[]" : "@@ routing6"}\n${JSON.stringify(routes)}\n[]\n${JSON.stringify([...rules, ...MAIN])}`,
  );

const via = { gateway: "192.0.2.9", dev: "eth0" };
const first: Raw = { priority: 100, src: "all", table: "100" };

test.each<[string, Item[], ReturnType<typeof facts>, string[]]>([
  [
    "a route to another runner's subnet",
    onRunner,
    facts(4, [{ dst: "10.128.128.0/18", ...via, protocol: "boot", type: "unicast", table: "main", scope: "global" }]),
    ["10.128.128.0/18 via 192.0.2.9 dev eth0"],
  ],
  [
    "one to a single address, and one that drops",
    onRunner,
    facts(4, [
      { dst: "10.128.128.7", dev: "eth1", protocol: "static", scope: "link", metric: 5 },
      { type: "blackhole", dst: "10.129.0.0/16" },
    ]),
    ["10.128.128.7 dev eth1 proto static scope link metric 5", "blackhole 10.129.0.0/16"],
  ],
  [
    "one with our protocol number that no owner lists",
    onRunner,
    facts(4, [{ dst: "10.128.128.0/18", dev: "vxkrM0", protocol: "183" }]),
    ["10.128.128.0/18 proto 183"],
  ],
  [
    "one with several next hops",
    onRunner,
    facts(4, [{ dst: "10.128.128.0/18", nexthops: [{ ...via, weight: 2 }, { dev: "tun0" }] }]),
    ["10.128.128.0/18 nexthop via 192.0.2.9 dev eth0 weight 2 nexthop dev tun0 weight 1"],
  ],
  [
    "one to the whole range, with a metric as good as ours",
    onRunner,
    facts(4, [{ dst: "10.128.0.0/12", ...via }]),
    ["10.128.0.0/12 via 192.0.2.9 dev eth0"],
  ],
  [
    "IPv6",
    onRunner,
    facts(6, [{ dst: "fd00:128:0:2::/64", gateway: "fd01::9", dev: "eth0", metric: 1024, pref: "medium" }]),
    ["fd00:128:0:2::/64 via fd01::9 dev eth0 metric 1024 pref medium"],
  ],
  [
    "one over our own bridge to another runner's subnet",
    onRunner,
    facts(4, [{ dst: "10.128.128.0/18", gateway: "10.128.64.77", dev: "kohaku-overlay", protocol: "static" }]),
    ["10.128.128.0/18 via 10.128.64.77 dev kohaku-overlay proto static"],
  ],
  [
    "on the hub, one that is better than a tunnel's own",
    onHub,
    facts(6, [{ dst: "fd00:128:0:1::/64", gateway: "fd01::9", dev: "eth0", metric: 100 }]),
    ["fd00:128:0:1::/64 via fd01::9 dev eth0 metric 100"],
  ],
  [
    "on the hub, one to the whole range, which is better than unreachable",
    onHub,
    facts(4, [{ dst: "10.128.0.0/12", ...via, metric: 100 }]),
    ["10.128.0.0/12 via 192.0.2.9 dev eth0 metric 100"],
  ],
  [
    "any route in a table that is looked up before main",
    onRunner,
    facts(4, [{ dst: "default", ...via, table: "100" }], [first]),
    ["default via 192.0.2.9 dev eth0 table 100"],
  ],
  [
    "the same for all but marked packets",
    onRunner,
    facts(4, [{ dst: "10.0.0.0/8", ...via, table: "vpn" }], [{ ...first, not: null, fwmark: "0x7", table: "vpn" }]),
    ["10.0.0.0/8 via 192.0.2.9 dev eth0 table vpn"],
  ],
])("conflicting: %s", (_, items, have, expected) => {
  expect(findForeignRoutes({ items }, have).map(({ text }) => text)).toEqual(expected);
  expect(() => preflight({ record, items }, have)).toThrow(
    /ROUTE_OVERLAP: (The route '|There is already a route to )1?[0df]/,
  );
});

test.each<[string, Item[], ReturnType<typeof facts>]>([
  [
    "wider routes",
    onRunner,
    facts(4, [
      { dst: "10.0.0.0/8", ...via },
      { dst: "default", ...via },
    ]),
  ],
  ["our own", onRunner, facts(4, [{ dst: "10.128.0.0/12", ...via, protocol: "183" }])],
  [
    "that of a device of ours, which the kernel or Docker makes",
    onRunner,
    facts(4, [{ dst: "10.128.64.0/18", dev: "kohaku-overlay", protocol: "kernel" }]),
  ],
  [
    "one to a workload's own range behind our bridge",
    onRunner,
    facts(4, [{ dst: "10.128.64.128/25", gateway: "10.128.64.5", dev: "kohaku-overlay", protocol: "static" }]),
  ],
  ["one with a worse metric than ours", onHub, facts(4, [{ dst: "10.128.64.0/18", ...via, metric: 100 }])],
  ["a table that no rule looks up", onRunner, facts(4, [{ dst: "default", ...via, table: "100" }])],
  [
    "a table after main",
    onRunner,
    facts(4, [{ dst: "default", ...via, table: "100" }], [{ ...first, priority: 40000 }]),
  ],
  [
    "a table for packets from elsewhere, to elsewhere, with a mark, or by another device",
    onRunner,
    facts(
      4,
      [{ dst: "default", ...via, table: "100" }],
      [
        { ...first, src: "192.0.2.11" },
        { ...first, dst: "203.0.113.0", dstlen: 24 },
        { ...first, fwmark: "0x7" },
        { ...first, iif: "eth1" },
      ],
    ),
  ],
  [
    "a default route behind main without its default route, as wg-quick makes it",
    onRunner,
    facts(
      4,
      [{ dst: "default", dev: "wg0", table: "51820" }],
      [
        { priority: 98, src: "all", table: "main", suppress_prefixlen: 0 },
        { priority: 99, not: null, src: "all", fwmark: "0xca6c", table: "51820" },
      ],
    ),
  ],
  [
    "a table that only a rule of ours looks up before main",
    onRunner,
    facts(4, [{ dst: "default", ...via, table: "100" }], [{ ...first, protocol: "183" }]),
  ],
  [
    "a table that has our own route, too",
    onRunner,
    facts(
      4,
      [
        { dst: "default", ...via, table: "100" },
        { dst: "10.128.0.0/12", gateway: "10.128.64.254", dev: "kohaku-overlay", table: "100" },
      ],
      [first],
    ),
  ],
])("not conflicting: %s", (_, items, have) => {
  expect(findForeignRoutes({ items }, have)).toEqual([]);
});

test("the fix is a command that removes the route", () => {
  const have = facts(
    6,
    [{ dst: "fd00:128:0:2::/64", gateway: "fd01::9", dev: "eth0", metric: 5, table: "7" }],
    [{ ...first, table: "7" }],
  );
  expect(findForeignRoutes({ items: onRunner }, have)[0]).toEqual({
    kind: "route",
    range: "fd00:128::/48",
    text: "fd00:128:0:2::/64 via fd01::9 dev eth0 metric 5 table 7",
    remedy: "ip -6 route del fd00:128:0:2::/64 via fd01::9 dev eth0 metric 5 table 7",
  });
});

test.each<[string, string]>([
  ["route", `@@ ip\n[]\n[]\n${JSON.stringify([{ dst: "default", dev: "br0", table: "vpn" }])}\n[]`],
  [
    "rule",
    `@@ changed\n[]\n${JSON.stringify([{ src: "10.0.0.0", srclen: 8, fwmark: "0x1", table: "vpn", protocol: "183" }])}`,
  ],
])("a %s of ours in a table that has a name there cannot be recognized, and is refused", (_, text) => {
  expect(() => parseFacts(text)).toThrow(/^HOST_COMMAND_FAILED: a routing table of ours has the name "vpn" there/);
});

test("a marked rule of another program may lead to a table with a name", () => {
  const rule = { src: "10.0.0.0", srclen: 8, fwmark: "0x1", table: "vpn" };
  expect([...parseFacts(`@@ changed\n[]\n${JSON.stringify([rule])}`).policies]).toEqual([
    "4 10.0.0.0/8 0x1/0xffffffff vpn",
  ]);
});
