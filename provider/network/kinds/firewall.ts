import { type Family, familyOfIp, overlaps, widthOf } from "../../addressing/ip";
import { rangeOf } from "../../addressing/ranges";
import type { Facts } from "../model/facts";
import { type Item, type Jump, lists, type Rule } from "../model/items";
import type { Step } from "../model/steps";
import type { Lines } from "./kind";

/**
 * Our chains in iptables and ip6tables, each with one jump to it. Drops stand in tables that come before `filter` where they
 * must hold whatever other programs accept there:
 *
 *   raw PREROUTING → OVERLAY-PRE       sources that a device cannot have
 *   mangle FORWARD → OVERLAY-GUARD     what is routed into or out of the overlay without a right to
 *   filter INPUT   → OVERLAY-IN        VXLAN from peers, what workloads may reach on the host itself
 *   filter FORWARD → OVERLAY-FWD       what the overlay needs to pass; nothing is dropped here
 *   filter FORWARD → OVERLAY-REST      behind all other rules: see local-rules.ts
 *
 * In a chain, rules that let pass (ACCEPT, RETURN) stand before those that do not: records of several owners share a chain,
 * and come in any order. So the former are inserted at the top and the latter appended.
 */
export interface ChainPlace {
  table: Rule["table"];
  chain: string;
  from: Jump["from"][];
  /** Its jump goes to the end, behind the rules of others. */
  atEnd?: true;
}

export const PRE: ChainPlace = { table: "raw", chain: "OVERLAY-PRE", from: ["PREROUTING"] };
export const GUARD: ChainPlace = { table: "mangle", chain: "OVERLAY-GUARD", from: ["FORWARD"] };
export const INPUT: ChainPlace = { table: "filter", chain: "OVERLAY-IN", from: ["INPUT"] };
export const FORWARD: ChainPlace = { table: "filter", chain: "OVERLAY-FWD", from: ["FORWARD"] };
export const REST: ChainPlace = { table: "filter", chain: "OVERLAY-REST", from: ["FORWARD"], atEnd: true };
export const NAT: ChainPlace = { table: "nat", chain: "OVERLAY-NAT", from: ["POSTROUTING"] };
export const DNAT: ChainPlace = { table: "nat", chain: "OVERLAY-DNAT", from: ["PREROUTING", "OUTPUT"] };
export const RETURN_PATH: ChainPlace = { table: "raw", chain: "OVERLAY-BACK", from: ["PREROUTING", "OUTPUT"] };

/** Rules in one of our chains, with the chain and the jumps to it; nothing where there are no rules. */
export function rulesIn({ table, chain, from, atEnd }: ChainPlace, family: Family, rules: (string | Rule)[]): Item[] {
  if (rules.length === 0) return [];
  const place = { family, table, chain };
  return [
    { kind: "chain", ...place },
    ...rules.map((rule): Rule => (typeof rule === "string" ? { kind: "rule", ...place, rule } : rule)),
    ...from.map((each): Item => ({ kind: "jump", ...place, from: each, ...(atEnd && { atEnd }) })),
  ];
}

/** Whether a rule lets packets pass, and so stands before those that do not. */
export const letsPass = (rule: string): boolean => /(^| )-j (ACCEPT|RETURN)$/.test(rule);

/** Whether a rule ends a packet's way. */
export const stops = (rule: string): boolean => /(^| )-j (DROP|REJECT)( |$)/.test(rule);

/** The kernel's own ping, in iptables-save's form. */
export const ECHO_REQUEST: Record<Family, string> = {
  4: "-p icmp -m icmp --icmp-type 8",
  6: "-p ipv6-icmp -m icmp6 --icmpv6-type 128",
};

export const acceptPeer = (remote: string, port: number): string =>
  `-s ${remote}/${widthOf(familyOfIp(remote))} -p udp -m udp --dport ${port} -j ACCEPT`;

/** All networks of a host with this port share it; it goes with the last. */
export const dropVxlan = (port: number): string => `-p udp -m udp --dport ${port} -j DROP`;

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

export const TABLES = ["raw", "mangle", "filter", "nat"] as const;

export const toolOf = (family: Family): string => (family === 4 ? "iptables" : "ip6tables");

export type FirewallItem = Extract<Item, { table: string }>;

export function firewallLines({ family, table }: FirewallItem, firewall: Lines["firewall"]): string[] {
  const key = `${family} ${table}`;
  if (!firewall.has(key)) firewall.set(key, []);
  return firewall.get(key)!;
}

export function renderFirewall(verb: Step["verb"], item: FirewallItem, copies: number, position = 1): string[] {
  if (item.kind === "chain") {
    return verb === "remove" ? [`-F ${item.chain}`, `-X ${item.chain}`] : [`:${item.chain} - [0:0]`];
  }
  const [chain, rule] = item.kind === "rule" ? [item.chain, item.rule] : [item.from, `-j ${item.chain}`];
  const remove = verb === "add" ? [] : Array<string>(copies).fill(`-D ${chain} ${rule}`);
  if (verb === "remove") return remove;
  const atEnd = item.kind === "rule" ? !letsPass(item.rule) : item.atEnd;
  return [...remove, atEnd ? `-A ${chain} ${rule}` : `-I ${chain} ${position} ${rule}`];
}
