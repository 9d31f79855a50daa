import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";
import { planSteps } from "../../../provider/network/diff/steps";
import type { Facts } from "../../../provider/network/model/facts";
import { type Item, itemKey } from "../../../provider/network/model/items";
import { withAcceptRa } from "../../../provider/network/plan/this-host";
import { parseFacts } from "../../../provider/network/read/facts";
import { renderChange } from "../../../provider/network/render/script";
import { recordPart } from "./host-facts";

const forwarding: Item = { kind: "sysctl", key: "net.ipv6.conf.all.forwarding", value: "1" };
const acceptRa = (device: string): Item => ({ kind: "sysctl", key: `net.ipv6.conf.${device}.accept_ra`, value: "2" });

/** A host with a default route over eth0.100, from the source that `protocol` names. */
const host = (protocol: string, accept: number, recorded: Item[] = []): Facts =>
  parseFacts(
    [
      "@@ routing6",
      protocol && JSON.stringify([{ dst: "default", gateway: "fe80::1", dev: "eth0.100", protocol }]),
      "@@ sysctls",
      "/proc/sys/net/ipv6/conf/eth0/accept_ra:1",
      `/proc/sys/net/ipv6/conf/eth0.100/accept_ra:${accept}`,
      recordPart({ uid: "r1", owner: "o", network: "training", store: "s", items: recorded }),
    ].join("\n"),
  );
const keys = (items: Item[], facts: Facts): string[] => withAcceptRa(items, facts).map(itemKey);
const [listens, forwards] = [itemKey(acceptRa("eth0/100")), itemKey(forwarding)];

test.each<[string, string[], string[]]>([
  ["a route that the kernel has learnt", keys([forwarding], host("ra", 1)), [listens, forwards]],
  ["a route of an administrator's", keys([forwarding], host("static", 1)), [forwards]],
  ["a program that handles advertisements instead of the kernel", keys([forwarding], host("ra", 0)), [forwards]],
  ["a value that an administrator has set already", keys([forwarding], host("ra", 2)), [forwards]],
  ["a value that we have set earlier", keys([forwarding], host("ra", 2, [acceptRa("eth0/100")])), [listens, forwards]],
  [
    "a value that we have set, without a route from a router",
    keys([forwarding], host("", 2, [acceptRa("eth0/100")])),
    [listens, forwards],
  ],
  ["no forwarding of IPv6", keys([], host("ra", 1)), []],
])("%s", (_, found, expected) => {
  expect(found).toEqual(expected);
});

test("a dot in a device's name is no step on the path", () => {
  expect(renderChange([{ verb: "add", item: acceptRa("eth0/100") }], [])).toContain(
    "echo '2' >/proc/sys/net/ipv6/conf/eth0.100/accept_ra",
  );
});

test("a setting whose device is gone is neither restored at boot nor kept in the record", () => {
  const facts = host("", 2, [acceptRa("gone0")]);
  const record = { uid: "r1", owner: "o", network: "training", store: "s" };
  const steps = planSteps([{ record, items: [forwarding] }], facts);
  expect(steps.map(({ verb, item }) => `${verb} ${itemKey(item)}`)).toContain(`remove ${itemKey(acceptRa("gone0"))}`);
  for (const verb of ["add", "remove"] as const)
    expect(spawnSync("sh", ["-c", renderChange([{ verb, item: acceptRa("gone0") }], [])])).toMatchObject({
      status: 0,
    });
});
