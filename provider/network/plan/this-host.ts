import { withKeptMacs } from "../diff/adopt";
import { isMine } from "../diff/ownership";
import { tunnelRulesOn } from "../diff/shared-items";
import { fits } from "../kinds";
import type { Facts } from "../model/facts";
import { FORWARDING, type Item, keyOf, type Sysctl } from "../model/items";
import { scriptPath } from "../model/paths";
import type { Want } from "../model/steps";
import { isScriptOf, lasting } from "./boot";
import { withLocalRules } from "./local-rules";

/** What is wanted of this very machine: what fits it, devices as they were found, and what brings it all back. */
export function onThisHost<W extends Want>(want: W, facts: Facts): W {
  if (want.items.length > 0) return { ...want, items: itemsOn(want, facts) };
  if (!want.planned) return want;
  // Devices that were taken over have MACs of their own. Without a record only the owner's script shows that they were.
  const adopt = want.adopt === true && facts.files.has(scriptPath(want.record));
  const planned = itemsOn({ ...want, items: want.planned, adopt, persist: true }, facts);
  const isListed = facts.records.some((record) => isMine(record, want));
  const tunnelRules = isListed ? [] : tunnelRulesOn(want.record.network, facts);
  const all = [...planned, ...listenersOn(facts), ...tunnelRules].map((item): [string, Item] => [keyOf(item), item]);
  return { ...want, planned: [...new Map(all).values()] };
}

function itemsOn(want: Want, facts: Facts): Item[] {
  const items = listening(
    withLocalRules(
      want.items.filter((item) => fits(item, facts)),
      facts,
      facts.records.filter((record) => isMine(record, want)).flatMap(({ items }) => items),
      want.record.network,
    ),
    facts,
  );
  const isListed = facts.records.some(({ uid }) => uid === want.record.uid);
  const adopted = isListed ? undefined : withKeptMacs({ ...want, items, adopt: true }, facts);
  const fitting = adopted && isScriptOf(want, adopted.items, facts) ? adopted : withKeptMacs({ ...want, items }, facts);
  return lasting(fitting, facts);
}

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
