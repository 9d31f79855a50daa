import { withAdoptedMacs } from "../diff/adopt";
import { isOwnRecord } from "../diff/ownership";
import { findTunnelRules } from "../diff/shared-items";
import { appliesToHost } from "../kinds";
import type { Facts } from "../model/facts";
import { FORWARDING, type Item, itemKey, type Sysctl } from "../model/items";
import { scriptPath } from "../model/paths";
import type { DesiredState } from "../model/steps";
import { isBootScriptOf, withBootItems } from "./boot";
import { withLocalRules } from "./local-rules";

/** What is wanted of this very machine: what fits it, devices as they were found, and what brings it all back. */
export function adaptToHost<W extends DesiredState>(desired: W, facts: Facts): W {
  if (desired.items.length > 0) return { ...desired, items: itemsForHost(desired, facts) };
  if (!desired.plannedItems) return desired;
  // Devices that were taken over have MACs of their own. Without a record only the owner's script shows that they were.
  const adopt = desired.adopt === true && facts.files.has(scriptPath(desired.record));
  const planned = itemsForHost({ ...desired, items: desired.plannedItems, adopt, persist: true }, facts);
  const isListed = facts.records.some((record) => isOwnRecord(record, desired));
  const tunnelRules = isListed ? [] : findTunnelRules(desired.record.network, facts);
  const all = [...planned, ...acceptRaSettings(facts), ...tunnelRules].map((item): [string, Item] => [
    itemKey(item),
    item,
  ]);
  return { ...desired, plannedItems: [...new Map(all).values()] };
}

function itemsForHost(desired: DesiredState, facts: Facts): Item[] {
  const items = withAcceptRa(
    withLocalRules(
      desired.items.filter((item) => appliesToHost(item, facts)),
      facts,
      facts.records.filter((record) => isOwnRecord(record, desired)).flatMap(({ items }) => items),
      desired.record.network,
    ),
    facts,
  );
  const isListed = facts.records.some(({ uid }) => uid === desired.record.uid);
  const adopted = isListed ? undefined : withAdoptedMacs({ ...desired, items, adopt: true }, facts);
  const fitting =
    adopted && isBootScriptOf(desired, adopted.items, facts) ? adopted : withAdoptedMacs({ ...desired, items }, facts);
  return withBootItems(fitting, facts);
}

/**
 * A machine that forwards IPv6 listens to no router, unless told to: the moment it begins, the kernel drops the default
 * routes that it has learnt from advertisements. So before that, the devices which it has learnt them on are told to. Where a
 * program does the kernel's listening, such as systemd-networkd, the kernel's own is off, and stays so.
 */
const ACCEPT_RA = "1";

const ACCEPT_RA_WHEN_FORWARDING = "2";

/** A dot in a device's name is a slash there, as sysctl writes it. */
const acceptRaKey = (device: string): string => `net.ipv6.conf.${device.replaceAll(".", "/")}.accept_ra`;

/** What we may have told devices, for a removal without a record. Only what has a former value kept is put back. */
export const acceptRaSettings = ({ sysctls }: Facts): Sysctl[] =>
  [...sysctls]
    .filter(([key, value]) => key.endsWith(".accept_ra") && value === ACCEPT_RA_WHEN_FORWARDING)
    .map(([key, value]) => ({ kind: "sysctl", key, value }));

/** Once it is on record it stays, also while the router is silent. */
export function withAcceptRa(items: Item[], facts: Facts): Item[] {
  if (!items.some((item) => item.kind === "sysctl" && item.key === FORWARDING[6])) return items;
  const recorded = new Set(facts.records.flatMap((record) => record.items.map(itemKey)));
  const taught = new Set(
    facts.routes
      .filter(({ family, dst, protocol }) => family === 6 && dst === "default" && protocol === "ra")
      .map(({ dev = "" }) => acceptRaKey(dev)),
  );
  const told = [...facts.sysctls]
    .map(([key, value]) => ({
      item: { kind: "sysctl", key, value: ACCEPT_RA_WHEN_FORWARDING } satisfies Sysctl,
      value,
    }))
    .filter(({ item, value }) => recorded.has(itemKey(item)) || (taught.has(item.key) && value === ACCEPT_RA))
    .filter(({ item }) => item.key.endsWith(".accept_ra"));
  return [...told.map(({ item }) => item), ...items];
}
