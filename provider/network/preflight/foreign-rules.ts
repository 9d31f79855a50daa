import { OverlayError } from "../../errors";
import { sameStack } from "../../owner";
import { ownedItems, unlistedOwners } from "../diff/ownership";
import { planSteps } from "../diff/steps";
import { toolOf } from "../kinds/firewall";
import type { Facts } from "../model/facts";
import { type Chain, type HostRecord, type Item, keyOf, lists } from "../model/items";
import type { Want } from "../model/steps";
import { pasteable } from "../render/shell";

/**
 * Rules of other programs in chains of ours, and rules of other programs elsewhere that jump to them. They are shown, and
 * stay as long as the chain does. A chain cannot be deleted while it has rules or is jumped to, so an owner whose removal
 * would delete it is refused.
 */
export interface ForeignRule {
  /** Ours. */
  chain: Chain;
  /** Where the rule stands: in our chain, or in another one that jumps to it. */
  in: string;
  rule: string;
}

/** `known`: what all owners on this host have, or shall have. */
function foreignRules(chain: Chain, known: Set<string>, { chains }: Facts): ForeignRule[] {
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

const chainsOf = (items: Item[]): Chain[] => items.filter((item) => item.kind === "chain");

const removal = ({ chain: { family, table }, in: at, rule }: ForeignRule): string =>
  pasteable(`${toolOf(family)} -t ${table} -D ${at} ${rule}`);

const ruleText = ({ chain: { family, table, chain }, in: at, rule }: ForeignRule): string =>
  at === chain
    ? `rule '${rule}' in ${chain} (IPv${family} ${table})`
    : `rule '${rule}' in ${at} (IPv${family} ${table}), which leads to ${chain}`;

/**
 * As drift. Of the owners of one stack that have the chain, one reports them. While a record of an owner is lost, its rules
 * cannot be told from those of other programs.
 */
export function foreignRuleTexts(want: Want, facts: Facts): string[] {
  if (unlistedOwners([want], facts).length > 0) return [];
  const known = knownRules([want, ...facts.records]);
  return chainsOf(want.items)
    .flatMap((chain) => foreignRules(chain, known, facts))
    .filter(({ chain }) => reporterOf(chain, want, facts) === want.record.uid)
    .map((found) => `foreign ${ruleText(found)}: remove it with \`${removal(found)}\``);
}

/** The network's own record before those of its runners. */
function reporterOf(chain: Chain, { record }: Want, { records }: Facts): string {
  const sharing = records.filter(
    (other) => (other.uid === record.uid || sameStack(other.owner, record.owner)) && lists(other, chain),
  );
  const hasAnchor = ({ items }: HostRecord) => items.some((item) => item.kind === "link" && item.type === "anchor");
  const [first] = sharing.sort(
    (a, b) => Number(hasAnchor(b)) - Number(hasAnchor(a)) || (a.uid < b.uid ? -1 : Number(a.uid > b.uid)),
  );
  return first?.uid ?? record.uid;
}

/** What stands in the way of these owners, by uid: foreign rules in, or jumps to, chains that would go with the last of them. */
export function blockedRemovals(wants: Want[], facts: Facts): Map<string, OverlayError> {
  const gone = planSteps(wants, facts).flatMap(({ verb, item }) =>
    verb === "remove" && item.kind === "chain" ? [item] : [],
  );
  const known = knownRules([...wants, ...wants.map((want) => ({ items: ownedItems(want, facts) })), ...facts.records]);
  const found = gone.flatMap((chain) => foreignRules(chain, known, facts));
  const blocked = wants.flatMap((want): [string, OverlayError][] => {
    const mine = { items: ownedItems(want, facts) };
    const keep = new Set(want.items.map(keyOf));
    const inTheWay = found.filter(({ chain }) => !keep.has(keyOf(chain)) && lists(mine, chain));
    return inTheWay.length > 0 ? [[want.record.uid, refusal(inTheWay)]] : [];
  });
  return new Map(blocked);
}

const refusal = (found: ForeignRule[]): OverlayError =>
  new OverlayError(
    "RULE_FOREIGN",
    `Rules of other programs are in chains of ours that are to be removed, or jump to them: ${found.map(ruleText).join("; ")}. Nothing was changed.`,
    `Remove them, and try again: ${found.map((each) => `\`${removal(each)}\``).join(", ")}.`,
  );
