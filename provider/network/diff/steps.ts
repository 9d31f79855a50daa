import { copiesOf, differences, isPresent, rank } from "../kinds";
import { canChange, formerPeer, isOurLink, otherPrefixes } from "../kinds/device";
import { forwardingBefore, positionOf } from "../kinds/firewall";
import { isOurs } from "../kinds/route";
import { placesFor, placesOf } from "../kinds/zone";
import type { Facts } from "../model/facts";
import { FORWARDING, type HostRecord, type Item, keyOf, type Link } from "../model/items";
import type { Step, Want } from "../model/steps";
import { takenOver } from "./adopt";
import { isMine, keptKeys, ownedItems, untouchedRecords } from "./ownership";

/**
 * want − have, for all the owners that have work on this host at once. Removes only what an owner has (`ownedItems`),
 * and of that only what no other record lists, now or after this work: a shared name or mark is not enough to call a
 * thing ours. What several owners share (chains, forwarding) is one step.
 */
export function planSteps(wants: Want[], facts: Facts): Step[] {
  const untouched = untouchedRecords(wants, facts);
  const mine = wants.flatMap((want) => ownedItems(want, facts));
  const keep = keptKeys(mine, wants, facts);
  const wanted = [...new Map(wants.flatMap(({ items }) => items.map((item) => [keyOf(item), item]))).values()];
  const fellows = untouched.filter(({ network }) => wants.some(({ record }) => record.network === network));
  const outdated = outdatedLinks(wanted, fellows, facts);
  const lost = new Set(outdated.map(({ name }) => name));
  return [
    ...goneItems(mine, keep, facts).map((item) => removal(item, facts)),
    ...outdated.map((item): Step => ({ verb: "remove", item })),
    ...putSteps(wanted, lost, takenOver(wants, facts), facts),
  ];
}

/** Docker switches forwarding on where it is off, and says so to nobody: where it runs, it needs it. */
const removal = (item: Item, facts: Facts): Step => ({
  verb: "remove",
  item,
  copies: copiesOf(item, facts),
  ...(item.kind === "sysctl" && facts.docker?.answers && { leave: true }),
  ...(item.kind === "sysctl" && wasForwardingOff(item.key, facts) && { former: "0" }),
  ...(item.kind === "zone" && { places: placesOf(item, facts) }),
});

const wasForwardingOff = (key: string, facts: Facts): boolean =>
  !facts.former.has(key) &&
  facts.sysctls.get(key) === "1" &&
  ([4, 6] as const).some((family) => FORWARDING[family] === key && forwardingBefore(key, family, facts) === "0");

/**
 * Links that must go before others can come: those that cannot be changed in place, and tunnels of our own network that
 * still have a VNI which by the network's present numbering is another runner's. Their owners' turn comes in the same up.
 */
function outdatedLinks(wanted: Item[], fellows: HostRecord[], facts: Facts): Link[] {
  const links = wanted.filter((item) => item.kind === "link");
  const recreated = links.filter((link) => facts.links.has(link.name) && !canChange(link, facts));
  const missing = links.filter((link) => link.vxlan && (!facts.links.has(link.name) || recreated.includes(link)));
  const inTheWay = fellows.flatMap(({ items }) =>
    items
      .filter((item) => item.kind === "link")
      .filter((item) => missing.some((link) => sameTunnel(link, item, facts))),
  );
  return [...recreated, ...inTheWay];
}

const sameTunnel = (link: Link, other: Link, facts: Facts): boolean => {
  const have = facts.links.get(other.name)?.vxlan;
  return link.name !== other.name && have?.vni === link.vxlan?.vni && have?.port === link.vxlan?.port;
};

function putSteps(wanted: Item[], lost: Set<string>, taken: Set<string>, facts: Facts): Step[] {
  const steps = differences(wanted, facts).map(({ item, missing }): Step => {
    const gone = missing || (item.kind === "link" && lost.has(item.name));
    const instead = otherPrefixes(item, facts);
    return {
      verb: gone ? "add" : "change",
      item,
      copies: copiesOf(item, facts),
      ...(instead.length > 0 && { instead }),
      ...(item.kind === "link" && formerPeer(item, facts) && { formerPeer: formerPeer(item, facts)! }),
      ...(item.kind === "jump" && { position: positionOf(item, facts) }),
      ...(item.kind === "zone" && { places: placesFor(item, facts) }),
    };
  });
  const planned = new Set(steps.map(({ item }) => keyOf(item)));
  const again = wanted.filter((item) => !planned.has(keyOf(item)) && (hangsOn(item, lost) || taken.has(keyOf(item))));
  const all = [...steps, ...again.map((item): Step => ({ verb: item.kind === "link" ? "change" : "add", item }))];
  return all.sort((a, b) => rank(a.item) - rank(b.item));
}

/** What goes away with a device: its addresses, the routes over it, and its ports' membership. */
const hangsOn = (item: Item, links: Set<string>): boolean =>
  ((item.kind === "address" || item.kind === "route") && item.dev !== undefined && links.has(item.dev)) ||
  (item.kind === "link" && item.master !== undefined && links.has(item.master));

/** The machine as it would look once these owners have left it; for plans that must not touch it. */
export function afterRemoval(steps: Step[], leaving: Want[], facts: Facts): Facts {
  const gone = new Set(steps.map(({ item }) => keyOf(item)));
  const links = new Set(steps.flatMap(({ item }) => (item.kind === "link" ? [item.name] : [])));
  const chains = new Map([...facts.chains].map(([name, rules]) => [name, [...rules]]));
  for (const { item } of steps) {
    if (item.kind === "chain") chains.delete(`${item.family} ${item.table} ${item.chain}`);
    if (item.kind !== "rule" && item.kind !== "jump") continue;
    const [from, rule] = item.kind === "rule" ? [item.chain, item.rule] : [item.from, `-j ${item.chain}`];
    const key = `${item.family} ${item.table} ${from}`;
    chains.set(
      key,
      (chains.get(key) ?? []).filter((each) => each !== rule),
    );
  }
  return {
    ...facts,
    chains,
    links: new Map([...facts.links].filter(([name]) => !links.has(name))),
    addresses: new Set([...facts.addresses].filter((text) => !links.has(text.split(" ")[1]!))),
    routes: facts.routes.filter(
      (r) =>
        !(r.dev !== undefined && links.has(r.dev)) &&
        !(isOurs(r) && gone.has(r.unreachable ? `unreachable ${r.dst}` : `route ${r.dst}`)),
    ),
    records: facts.records.filter((record) => !leaving.some((want) => isMine(record, want))),
  };
}

/** What of these items stands and is kept by nobody, in the order in which it is removed. */
export function goneItems(mine: Item[], keep: Set<string>, facts: Facts): Item[] {
  const gone = new Map(mine.filter((item) => !keep.has(keyOf(item))).map((item) => [keyOf(item), item]));
  const standing = [...gone.values()].filter((item) => {
    if (item.kind === "sysctl") return true; // what it was before is kept on the machine, and must go in any case
    return item.kind === "link" ? isOurLink(item, facts) : isPresent(item, facts);
  });
  const links = new Set(standing.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  return standing.filter((item) => item.kind === "link" || !hangsOn(item, links)).sort((a, b) => rank(b) - rank(a));
}
