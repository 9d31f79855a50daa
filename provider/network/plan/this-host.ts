import { withAdoptedMacs } from "../diff/adopt";
import { isOwnRecord } from "../diff/ownership";
import { findTunnelRules } from "../diff/shared-items";
import { appliesToHost } from "../kinds";
import type { Facts } from "../model/facts";
import { type DesiredState, FORWARDING, type Item, itemKey, type Sysctl } from "../model/items";
import { scriptPath } from "../model/record";
import { isBootScriptOf, withBootItems } from "./boot";
import { withLocalRules } from "./local-rules";

/** The desired state of this host: the items that apply to it, adopted devices with their MACs, and what restores all at boot. */
export function adaptToHost<W extends DesiredState>(desired: W, facts: Facts): W {
  if (desired.items.length > 0) return { ...desired, items: itemsForHost(desired, facts) };
  if (!desired.plannedItems) return desired;
  // Adopted devices have other MACs. Without a record only the owner's boot script shows them.
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
 * A host that forwards IPv6 ignores router advertisements, unless accept_ra is 2: when forwarding is enabled, the kernel drops the default
 * routes that it has learned from them. So accept_ra is set to 2 first on the devices with such routes. If a
 * program handles advertisements, such as systemd-networkd, accept_ra is 0, and stays so.
 */
const ACCEPT_RA = "1";

const ACCEPT_RA_WHEN_FORWARDING = "2";

/** A dot in a device's name is a slash there, as sysctl writes it. */
const acceptRaKey = (device: string): string => `net.ipv6.conf.${device.replaceAll(".", "/")}.accept_ra`;

/** Settings that we may have changed, for a removal without a record. Only those with a saved value are restored. */
export const acceptRaSettings = ({ sysctls }: Facts): Sysctl[] =>
  [...sysctls]
    .filter(([key, value]) => key.endsWith(".accept_ra") && value === ACCEPT_RA_WHEN_FORWARDING)
    .map(([key, value]) => ({ kind: "sysctl", key, value }));

/** Once it is on record it stays, also while there are no advertisements. */
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
