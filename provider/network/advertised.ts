import type { Facts } from "./facts";
import { FORWARDING } from "./hub";
import { type Item, keyOf, type Sysctl } from "./items";

/**
 * A machine that forwards IPv6 listens to no router, unless told to: the moment it begins, the kernel drops the default
 * routes that it has learnt from advertisements. So before that, the devices which it has learnt them on are told to. Where a
 * program does the kernel's listening, such as systemd-networkd, the kernel's own is off, and stays so.
 */
const LISTENS = "1";
const LISTENS_AND_FORWARDS = "2";

/** A dot in a device's name is a slash there, as sysctl writes it. */
const listeningKey = (device: string): string => `net.ipv6.conf.${device.replaceAll(".", "/")}.accept_ra`;

/** What we may have told devices, for a removal without a record. Only what has a former value kept is put back. */
export const listenersOn = ({ sysctls }: Facts): Sysctl[] =>
  [...sysctls]
    .filter(([key, value]) => key.endsWith(".accept_ra") && value === LISTENS_AND_FORWARDS)
    .map(([key, value]) => ({ kind: "sysctl", key, value }));

/** Once it is on record it stays, also while the router is silent. */
export function listening(items: Item[], facts: Facts): Item[] {
  if (!items.some((item) => item.kind === "sysctl" && item.key === FORWARDING[6])) return items;
  const recorded = new Set(facts.records.flatMap((record) => record.items.map(keyOf)));
  const taught = new Set(
    facts.routes
      .filter(({ family, dst, protocol }) => family === 6 && dst === "default" && protocol === "ra")
      .map(({ dev = "" }) => listeningKey(dev)),
  );
  const told = [...facts.sysctls]
    .map(([key, value]) => ({ item: { kind: "sysctl", key, value: LISTENS_AND_FORWARDS } satisfies Sysctl, value }))
    .filter(({ item, value }) => recorded.has(keyOf(item)) || (taught.has(item.key) && value === LISTENS))
    .filter(({ item }) => item.key.endsWith(".accept_ra"));
  return [...told.map(({ item }) => item), ...items];
}
