import { OverlayError } from "../../errors";
import { isSameStack } from "../../owner";
import { findOwnedItems, unlistedOwners } from "../diff/ownership";
import { planSteps } from "../diff/steps";
import { iptablesTool, parseChainKey } from "../kinds/firewall";
import type { Facts } from "../model/facts";
import { type Chain, type DesiredState, type HostRecord, hasItem, type Item, itemKey } from "../model/items";
import { quoteCommand } from "../render/shell";

/**
 * Rules of other programs in chains of ours, and rules of other programs elsewhere that jump to them. They are shown, and
 * stay as long as the chain does. A chain cannot be deleted while it has rules or is jumped to, so an owner whose removal
 * would delete it is refused.
 */

interface ForeignRule {
  /** Ours. */
  chain: Chain;
  /** The chain of the rule: our chain, or another one that jumps to it. */
  in: string;
  rule: string;
}

/** `known`: the rules of all owners on this host, observed or desired. */
function findForeignRules(chain: Chain, known: Set<string>, { chains }: Facts): ForeignRule[] {
  const { family, table, chain: name } = chain;
  const start = `${family} ${table} `;
  const leadsHere = new RegExp(` -[jg] ${name}$`);
  return [...chains].flatMap(([key, rules]) => {
    if (!key.startsWith(start)) return [];
    const at = key.slice(start.length);
    const candidates = at === name ? rules : rules.filter((rule) => leadsHere.test(` ${rule}`));
    return [...new Set(candidates)]
      .filter((rule) => !known.has(`${key} ${rule}`))
      .map((rule) => ({ chain, in: at, rule }));
  });
}

/** Rules and jumps as `4 filter OVERLAY-FWD -s 10.128.0.0/12 -j ACCEPT`. */
const knownRules = (owners: { items: Item[] }[]): Set<string> =>
  new Set(
    owners.flatMap(({ items }) =>
      items.flatMap((item) => {
        if (item.kind === "rule") return [`${item.family} ${item.table} ${item.chain} ${item.rule}`];
        return item.kind === "jump" ? [`${item.family} ${item.table} ${item.from} -j ${item.chain}`] : [];
      }),
    ),
  );

/** Whether our chains have rules that no record and none of these states lists. */
export function hasUnlistedRules(states: DesiredState[], facts: Facts): boolean {
  const known = knownRules([
    ...states,
    ...states.map(({ plannedItems = [] }) => ({ items: plannedItems })),
    ...facts.records,
  ]);
  return [...facts.chains].some(
    ([key, rules]) => isOwnChain(parseChainKey(key)) && rules.some((rule) => !known.has(`${key} ${rule}`)),
  );
}

const isOwnChain = ({ chain }: Pick<Chain, "chain">): boolean => chain.startsWith("OVERLAY-");

const chainsOf = (items: Item[]): Chain[] => items.filter((item) => item.kind === "chain");

const deleteCommand = ({ chain: { family, table }, in: at, rule }: ForeignRule): string =>
  quoteCommand(`${iptablesTool(family)} -t ${table} -D ${at} ${rule}`);

const describeRule = ({ chain: { family, table, chain }, in: at, rule }: ForeignRule): string =>
  at === chain
    ? `rule '${rule}' in ${chain} (IPv${family} ${table})`
    : `rule '${rule}' in ${at} (IPv${family} ${table}), which jumps to ${chain}`;

/**
 * As drift. Of the owners of one stack that have the chain, one reports them. While a record of an owner is lost, its rules
 * cannot be distinguished from those of other programs.
 */
export function describeForeignRules(desired: DesiredState, facts: Facts): string[] {
  if (unlistedOwners([desired], facts).length > 0) return [];
  const known = knownRules([desired, ...facts.records]);
  return chainsOf(desired.items)
    .flatMap((chain) => findForeignRules(chain, known, facts))
    .filter(({ chain }) => reporterOf(desired, facts, (record) => hasItem(record, chain)) === desired.record.uid)
    .map((found) => `foreign ${describeRule(found)}: remove it with \`${deleteCommand(found)}\``);
}

/** The network's own record before those of its runners. */
function reporterOf(
  { record }: DesiredState,
  { records }: Facts,
  isConcerned: (record: HostRecord) => boolean = () => true,
): string {
  const sharing = records.filter(
    (other) => (other.uid === record.uid || isSameStack(other.owner, record.owner)) && isConcerned(other),
  );
  const hasAnchor = ({ items }: HostRecord) => items.some((item) => item.kind === "link" && item.type === "anchor");
  const [first] = sharing.sort(
    (a, b) => Number(hasAnchor(b)) - Number(hasAnchor(a)) || (a.uid < b.uid ? -1 : Number(a.uid > b.uid)),
  );
  return first?.uid ?? record.uid;
}

/** Chains with names of ours that no owner has, such as one that was removed and that another program has created again. */
export function describeStrayChains(desired: DesiredState, facts: Facts): string[] {
  if (unlistedOwners([desired], facts).length > 0 || reporterOf(desired, facts) !== desired.record.uid) return [];
  const known = new Set(chainsOf([desired, ...facts.records].flatMap(({ items }) => items)).map(itemKey));
  const present = [...facts.chains.keys()].flatMap((key): Chain[] => {
    const parsed = parseChainKey(key);
    return isOwnChain(parsed) ? [{ kind: "chain", ...parsed }] : [];
  });
  return present
    .filter((item) => !known.has(itemKey(item)))
    .map((item) => {
      const jumps = findForeignRules(item, new Set(), facts).filter((found) => found.in !== item.chain);
      const tool = `${iptablesTool(item.family)} -t ${item.table}`;
      const commands = [...jumps.map(deleteCommand), `${tool} -F ${item.chain}`, `${tool} -X ${item.chain}`];
      return `foreign ${itemKey(item)}, which no resource has: remove it with \`${commands.join("; ")}\``;
    });
}

/** What prevents the removal of these owners, by uid: foreign rules in, or jumps to, chains that would be removed with the last of them. */
export function findBlockedRemovals(desiredStates: DesiredState[], facts: Facts): Map<string, OverlayError> {
  const gone = planSteps(desiredStates, facts).flatMap(({ verb, item }) =>
    verb === "remove" && item.kind === "chain" ? [item] : [],
  );
  const known = knownRules([
    ...desiredStates,
    ...desiredStates.map((desired) => ({ items: findOwnedItems(desired, facts) })),
    ...facts.records,
  ]);
  const found = gone.flatMap((chain) => findForeignRules(chain, known, facts));
  const blocked = desiredStates.flatMap((desired): [string, OverlayError][] => {
    const mine = { items: findOwnedItems(desired, facts) };
    const keep = new Set(desired.items.map(itemKey));
    const inTheWay = found.filter(({ chain }) => !keep.has(itemKey(chain)) && hasItem(mine, chain));
    return inTheWay.length > 0 ? [[desired.record.uid, foreignRuleError(inTheWay)]] : [];
  });
  return new Map(blocked);
}

const foreignRuleError = (found: ForeignRule[]): OverlayError =>
  new OverlayError(
    "RULE_FOREIGN",
    `Rules of other programs are in chains of ours that are to be removed, or jump to them: ${found.map(describeRule).join("; ")}. Nothing was changed.`,
    `Remove them, and try again: ${found.map((each) => `\`${deleteCommand(each)}\``).join(", ")}.`,
  );
