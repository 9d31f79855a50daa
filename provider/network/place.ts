import { type Family, overlaps } from "../addressing/line";
import { rangeOf } from "../addressing/ranges";
import { FORWARD, GUARD, letsPass, PRE, REST, stops } from "./chains";
import type { Facts } from "./facts";
import { type Jump, lists, type Rule } from "./items";

/** Where our jumps and rules stand: an accept behind a reject does nothing, and neither does a drop behind an accept. */

export const rulesOf = (
  facts: Facts,
  { family, table }: Pick<Rule | Jump, "family" | "table">,
  chain: string,
): string[] => facts.chains.get(`${family} ${table} ${chain}`) ?? [];

/** The forwarding setting before our first change. OVERLAY-REST is there only where it was 0; that tells where the kept value is lost. */
export function forwardingBefore(key: string, family: Family, facts: Facts): string | undefined {
  const isClosed = rulesOf(facts, { family, table: REST.table }, REST.chain).length > 0;
  return facts.former.get(key) ?? (isClosed ? "0" : facts.sysctls.get(key));
}

/** Docker calls it before everything else, and administrators put into it what must hold for all that is forwarded. */
const DOCKER_USER = "-j DOCKER-USER";
const DOCKERS = /(^| )-j DOCKER/;

const isForward = ({ table, from, chain }: Jump): boolean =>
  table === FORWARD.table && chain === FORWARD.chain && from === FORWARD.from[0];

/** Where a jump belongs, from 1: at the top, but what we accept must not overrule DOCKER-USER. */
export function positionOf(item: Jump, facts: Facts): number {
  const others = rulesOf(facts, item, item.from).filter((rule) => rule !== `-j ${item.chain}`);
  return isForward(item) ? others.lastIndexOf(DOCKER_USER) + 2 : 1;
}

/**
 * Where a jump stands, from 1 and not counting rules that can decide nothing about our packets; 0: it is not there. Docker puts
 * its own rules before everything in FORWARD whenever it starts. They do not count, since OVERLAY-FWD only accepts, and may be
 * overruled by them; no more do other rules that accept, nor drops before chains that only drop. Before DOCKER-USER the jump is in the wrong place: -1.
 */
export function placeOf(item: Jump, facts: Facts): number {
  const rules = rulesOf(facts, item, item.from);
  const at = rules.indexOf(`-j ${item.chain}`);
  if (at < 0) return 0;
  if (item.atEnd) return 1;
  const start = isForward(item) ? rules.lastIndexOf(DOCKER_USER) + 1 : 0;
  if (at < start) return -1;
  const onlyDrops = [PRE, GUARD].some(({ chain }) => chain === item.chain);
  const counts = (rule: string): boolean =>
    !rule.startsWith("-j OVERLAY-") &&
    !(onlyDrops && stops(rule)) &&
    !(isForward(item) && (letsPass(rule) || DOCKERS.test(rule)));
  const own = rulesOf(facts, item, item.chain);
  return 1 + rules.slice(start, at).filter((rule) => counts(rule) && canMeet(rule, own)).length;
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

/** Whether a rule of ours that lets pass stands behind one of ours that does not, in the same chain. Foreign rules are reported by themselves. */
export function isBehindStop(item: Rule, facts: Facts): boolean {
  if (!letsPass(item.rule)) return false;
  const rules = rulesOf(facts, item, item.chain);
  const before = rules.slice(0, rules.indexOf(item.rule)).filter(stops);
  return before.some((rule) => facts.records.some((record) => lists(record, { ...item, rule })));
}
