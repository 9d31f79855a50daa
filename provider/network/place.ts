import { overlaps } from "../addressing/line";
import { rangeOf } from "../addressing/ranges";
import type { Facts } from "./facts";
import type { Jump, Rule } from "./items";

/** Where a jump of ours stands among others' rules. It must come first: an accept behind a reject does nothing. */

export const rulesOf = (
  facts: Facts,
  { family, table }: Pick<Rule | Jump, "family" | "table">,
  chain: string,
): string[] => facts.chains.get(`${family} ${table} ${chain}`) ?? [];

const DOCKER_USER = "DOCKER-USER";

/**
 * From 1; 0: it is not there. Rules that can decide nothing about our packets do not count. Docker puts its DOCKER-USER before
 * everything in FORWARD whenever it starts, and never touches what is in there: a jump that is first there, too, comes
 * first wherever it stands in FORWARD.
 */
export function placeOf(item: Jump, facts: Facts): number {
  const rules = rulesOf(facts, item, item.from);
  const jump = `-j ${item.chain}`;
  const at = rules.indexOf(jump);
  if (at < 0) return 0;
  const viaDocker = rules[0] === `-j ${DOCKER_USER}` && rulesOf(facts, item, DOCKER_USER)[0] === jump;
  const own = rulesOf(facts, item, item.chain);
  return viaDocker ? 1 : 1 + rules.slice(0, at).filter((rule) => canMeet(rule, own)).length;
}

/**
 * Docker's masquerading, for one, which it puts first: it is for its own ranges alone. A chain of ours that was emptied
 * may get any rule.
 */
function canMeet(rule: string, own: string[]): boolean {
  const source = sourceOf(rule);
  return !source || own.length === 0 || own.some((ours) => !sourceOf(ours) || overlaps(source, sourceOf(ours)!));
}

const sourceOf = (rule: string) => rangeOf(/^-s (\S+) /.exec(rule)?.[1] ?? "");
