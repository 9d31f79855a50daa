import { addressBits, type Family, familyOfIp, overlaps } from "../../addressing/ip";
import { parseRange } from "../../addressing/ranges";
import type { Facts } from "../model/facts";
import { type FirewallRule, hasItem, type Item, type Jump } from "../model/items";
import type { Step } from "../model/steps";
import type { ScriptParts } from "./kind";

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
export interface OverlayChain {
  table: FirewallRule["table"];
  chain: string;
  from: Jump["from"][];
  /** Its jump goes to the end, behind the rules of others. */
  atEnd?: true;
}

export const PRE: OverlayChain = { table: "raw", chain: "OVERLAY-PRE", from: ["PREROUTING"] };
export const GUARD: OverlayChain = { table: "mangle", chain: "OVERLAY-GUARD", from: ["FORWARD"] };
export const INPUT: OverlayChain = { table: "filter", chain: "OVERLAY-IN", from: ["INPUT"] };
export const FORWARD: OverlayChain = { table: "filter", chain: "OVERLAY-FWD", from: ["FORWARD"] };
export const REST: OverlayChain = { table: "filter", chain: "OVERLAY-REST", from: ["FORWARD"], atEnd: true };
export const NAT: OverlayChain = { table: "nat", chain: "OVERLAY-NAT", from: ["POSTROUTING"] };
export const DNAT: OverlayChain = { table: "nat", chain: "OVERLAY-DNAT", from: ["PREROUTING", "OUTPUT"] };
export const RETURN_PATH: OverlayChain = { table: "raw", chain: "OVERLAY-BACK", from: ["PREROUTING", "OUTPUT"] };

/** Rules in one of our chains, with the chain and the jumps to it; nothing where there are no rules. */
export function planChainRules(
  { table, chain, from, atEnd }: OverlayChain,
  family: Family,
  rules: (string | FirewallRule)[],
): Item[] {
  if (rules.length === 0) return [];
  const place = { family, table, chain };
  return [
    { kind: "chain", ...place },
    ...rules.map((rule): FirewallRule => (typeof rule === "string" ? { kind: "rule", ...place, rule } : rule)),
    ...from.map((each): Item => ({ kind: "jump", ...place, from: each, ...(atEnd && { atEnd }) })),
  ];
}

/** Whether a rule lets packets pass, and so stands before those that do not. */
export const isPassRule = (rule: string): boolean => /(^| )-j (ACCEPT|RETURN)$/.test(rule);

/** Whether a rule ends a packet's way. */
export const isDropRule = (rule: string): boolean => /(^| )-j (DROP|REJECT)( |$)/.test(rule);

/** The kernel's own ping, in iptables-save's form. */
export const ECHO_REQUEST: Record<Family, string> = {
  4: "-p icmp -m icmp --icmp-type 8",
  6: "-p ipv6-icmp -m icmp6 --icmpv6-type 128",
};

export const acceptPeerRule = (remote: string, port: number): string =>
  `-s ${remote}/${addressBits(familyOfIp(remote))} -p udp -m udp --dport ${port} -j ACCEPT`;

/** All networks of a host with this port share it; it goes with the last. */
export const dropVxlanRule = (port: number): string => `-p udp -m udp --dport ${port} -j DROP`;

/** Where our jumps and rules stand: an accept behind a reject does nothing, and neither does a drop behind an accept. */

export const observedRules = (
  facts: Facts,
  { family, table }: Pick<FirewallRule | Jump, "family" | "table">,
  chain: string,
): string[] => facts.chains.get(`${family} ${table} ${chain}`) ?? [];

/** The forwarding setting before our first change. OVERLAY-REST is there only where it was 0; that tells where the kept value is lost. */
export function formerForwarding(key: string, family: Family, facts: Facts): string | undefined {
  const isClosed = observedRules(facts, { family, table: REST.table }, REST.chain).length > 0;
  return facts.savedSysctls.get(key) ?? (isClosed ? "0" : facts.sysctls.get(key));
}

/** Docker calls it before everything else, and administrators put into it what must hold for all that is forwarded. */
const DOCKER_USER = "-j DOCKER-USER";

const DOCKER_JUMP = /(^| )-j DOCKER/;

const isForwardJump = ({ table, from, chain }: Jump): boolean =>
  table === FORWARD.table && chain === FORWARD.chain && from === FORWARD.from[0];

/** Where a jump belongs, from 1: at the top, but what we accept must not overrule DOCKER-USER. */
export function desiredJumpPosition(item: Jump, facts: Facts): number {
  const others = observedRules(facts, item, item.from).filter((rule) => rule !== `-j ${item.chain}`);
  return isForwardJump(item) ? others.lastIndexOf(DOCKER_USER) + 2 : 1;
}

/**
 * Where a jump stands, from 1 and not counting rules that can decide nothing about our packets; 0: it is not there. Docker puts
 * its own rules before everything in FORWARD whenever it starts. They do not count, since OVERLAY-FWD only accepts, and may be
 * overruled by them; no more do other rules that accept, nor drops before chains that only drop. Before DOCKER-USER the jump is in the wrong place: -1.
 */
export function observedJumpPosition(item: Jump, facts: Facts): number {
  const rules = observedRules(facts, item, item.from);
  const at = rules.indexOf(`-j ${item.chain}`);
  if (at < 0) return 0;
  if (item.atEnd) return 1;
  const start = isForwardJump(item) ? rules.lastIndexOf(DOCKER_USER) + 1 : 0;
  if (at < start) return -1;
  const onlyDrops = [PRE, GUARD].some(({ chain }) => chain === item.chain);
  const counts = (rule: string): boolean =>
    !rule.startsWith("-j OVERLAY-") &&
    !(onlyDrops && isDropRule(rule)) &&
    !(isForwardJump(item) && (isPassRule(rule) || DOCKER_JUMP.test(rule)));
  const own = observedRules(facts, item, item.chain);
  return 1 + rules.slice(start, at).filter((rule) => counts(rule) && canMatchSamePackets(rule, own)).length;
}

/**
 * Docker's masquerading, for one, which it puts first: it is for its own ranges alone. A chain of ours that was emptied
 * may get any rule.
 */
function canMatchSamePackets(rule: string, own: string[]): boolean {
  const source = sourceRange(rule);
  return !source || own.length === 0 || own.some((ours) => !sourceRange(ours) || overlaps(source, sourceRange(ours)!));
}

const sourceRange = (rule: string) => parseRange(/^-s (\S+) /.exec(rule)?.[1] ?? "");

/** Whether a rule of ours that lets pass stands behind one of ours that does not, in the same chain. Foreign rules are reported by themselves. */
export function isAfterDrop(item: FirewallRule, facts: Facts): boolean {
  if (!isPassRule(item.rule)) return false;
  const rules = observedRules(facts, item, item.chain);
  const before = rules.slice(0, rules.indexOf(item.rule)).filter(isDropRule);
  return before.some((rule) => facts.records.some((record) => hasItem(record, { ...item, rule })));
}

export const TABLES = ["raw", "mangle", "filter", "nat"] as const;

export const iptablesTool = (family: Family): string => (family === 4 ? "iptables" : "ip6tables");

export type FirewallItem = Extract<Item, { table: string }>;

export function tableLines({ family, table }: FirewallItem, firewall: ScriptParts["firewall"]): string[] {
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
  const atEnd = item.kind === "rule" ? !isPassRule(item.rule) : item.atEnd;
  return [...remove, atEnd ? `-A ${chain} ${rule}` : `-I ${chain} ${position} ${rule}`];
}
