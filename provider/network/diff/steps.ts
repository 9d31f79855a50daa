import { creationRank, diffItems, disappearsWith, factsWithout, isPresent } from "../kinds";
import { canChangeInPlace, findOtherPrefixes, formerPeer, isOurLink } from "../kinds/device";
import { countCopies, desiredJumpPosition, formerForwarding } from "../kinds/firewall";
import { desiredZones, observedZones } from "../kinds/zone";
import type { Facts } from "../model/facts";
import {
  type DesiredState,
  FORWARDING,
  type HostRecord,
  type Item,
  itemKey,
  type Link,
  type Step,
} from "../model/items";
import { findAdoptedLinks, findKeptKeys, findOwnedItems, isOwnRecord, recordsOfOthers } from "./ownership";

/**
 * The steps from the observed to the desired state, for all owners with a request at once. Removes only what an owner has
 * (`findOwnedItems`), and of that only what no other record lists, now or after this change: a name or protocol number alone does not
 * prove that an object is ours. An item that several owners share (chains, forwarding) is one step.
 */
export function planSteps(desiredStates: DesiredState[], facts: Facts): Step[] {
  const untouched = recordsOfOthers(desiredStates, facts);
  const mine = desiredStates.flatMap((desired) => findOwnedItems(desired, facts));
  const keep = findKeptKeys(mine, desiredStates, facts);
  const desiredItems = [
    ...new Map(desiredStates.flatMap(({ items }) => items.map((item) => [itemKey(item), item]))).values(),
  ];
  const fellows = untouched.filter(({ network }) => desiredStates.some(({ record }) => record.network === network));
  const outdated = findOutdatedLinks(desiredItems, fellows, facts);
  const lost = new Set(outdated.map(({ name }) => name));
  return [
    ...findItemsToRemove(mine, keep, facts).map((item) => removeStep(item, facts)),
    ...outdated.map((item): Step => ({ verb: "remove", item })),
    ...planPutSteps(desiredItems, lost, findAdoptedLinks(desiredStates, facts), facts),
  ];
}

/** Docker enables forwarding without a trace, and needs it: where Docker runs, forwarding stays on. */
const removeStep = (item: Item, facts: Facts): Step => ({
  verb: "remove",
  item,
  copies: countCopies(item, facts),
  ...(item.kind === "sysctl" && facts.docker?.isRunning && { keepsValue: true }),
  ...(item.kind === "sysctl" && wasForwardingOff(item.key, facts) && { formerValue: "0" }),
  ...(item.kind === "zone" && { zones: observedZones(item, facts) }),
});

const wasForwardingOff = (key: string, facts: Facts): boolean =>
  !facts.savedSysctls.has(key) &&
  facts.sysctls.get(key) === "1" &&
  ([4, 6] as const).some((family) => FORWARDING[family] === key && formerForwarding(key, family, facts) === "0");

/**
 * Links that must be removed before others can be created: those that cannot be changed in place, and tunnels of our own network that
 * still have a VNI which the network's present numbering gives to another runner. Their owners change in the same up.
 */
function findOutdatedLinks(desiredItems: Item[], fellows: HostRecord[], facts: Facts): Link[] {
  const links = desiredItems.filter((item) => item.kind === "link");
  const recreated = links.filter((link) => facts.links.has(link.name) && !canChangeInPlace(link, facts));
  const missing = links.filter((link) => link.vxlan && (!facts.links.has(link.name) || recreated.includes(link)));
  const inTheWay = fellows.flatMap(({ items }) =>
    items
      .filter((item) => item.kind === "link")
      .filter((item) => missing.some((link) => hasSameVni(link, item, facts))),
  );
  return [...recreated, ...inTheWay];
}

const hasSameVni = (link: Link, other: Link, facts: Facts): boolean => {
  const observed = facts.links.get(other.name)?.vxlan;
  return link.name !== other.name && observed?.vni === link.vxlan?.vni && observed?.port === link.vxlan?.port;
};

function planPutSteps(desiredItems: Item[], lost: Set<string>, taken: Set<string>, facts: Facts): Step[] {
  const steps = diffItems(desiredItems, facts).map(({ item, missing }): Step => {
    const gone = missing || (item.kind === "link" && lost.has(item.name));
    const otherPrefixes = findOtherPrefixes(item, facts);
    return {
      verb: gone ? "add" : "change",
      item,
      copies: countCopies(item, facts),
      ...(otherPrefixes.length > 0 && { otherPrefixes }),
      ...(item.kind === "link" && formerPeer(item, facts) && { formerPeer: formerPeer(item, facts)! }),
      ...(item.kind === "jump" && { position: desiredJumpPosition(item, facts) }),
      ...(item.kind === "zone" && { zones: desiredZones(item, facts) }),
    };
  });
  const planned = new Set(steps.map(({ item }) => itemKey(item)));
  const again = desiredItems.filter(
    (item) => !planned.has(itemKey(item)) && (disappearsWith(item, lost) || taken.has(itemKey(item))),
  );
  const all = [...steps, ...again.map((item): Step => ({ verb: item.kind === "link" ? "change" : "add", item }))];
  return all.sort((a, b) => creationRank(a.item) - creationRank(b.item));
}

/** The facts of the host after these steps removed all that these owners have there; for dry runs. */
export function factsAfterRemoval(steps: Step[], removed: DesiredState[], facts: Facts): Facts {
  const after = factsWithout(
    steps.map(({ item }) => item),
    facts,
  );
  return { ...after, records: facts.records.filter((record) => !removed.some((state) => isOwnRecord(record, state))) };
}

/** Those of these items that are present and that no owner keeps, in the order of removal. */
export function findItemsToRemove(mine: Item[], keep: Set<string>, facts: Facts): Item[] {
  const gone = new Map(mine.filter((item) => !keep.has(itemKey(item))).map((item) => [itemKey(item), item]));
  const standing = [...gone.values()].filter((item) => {
    if (item.kind === "sysctl") return true; // its saved value must be removed in any case
    return item.kind === "link" ? isOurLink(item, facts) : isPresent(item, facts);
  });
  const links = new Set(standing.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  return standing
    .filter((item) => item.kind === "link" || !disappearsWith(item, links))
    .sort((a, b) => creationRank(b) - creationRank(a));
}
