import { addressBits, type Family, familyOfIp, overlaps, parseRange } from "../../addressing/ip";
import type { Facts } from "../model/facts";
import {
  type Chain,
  type FirewallItem,
  type FirewallRule,
  hasItem,
  type Item,
  isFirewallItem,
  type Jump,
  mismatch,
  oppositeStep,
  type Step,
} from "../model/items";
import type { ItemKind, ScriptParts, StepOf } from "./kind";

/**
 * Our chains in iptables and ip6tables, each with one jump to it. Drops are in tables before `filter` if
 * they must be effective whatever other programs accept there:
 *
 *   raw PREROUTING → OVERLAY-SRC       sources that a peer of a mesh cannot have; what returns from it goes on to OVERLAY-PRE
 *   raw PREROUTING → OVERLAY-PRE       sources that a device cannot have
 *   raw OUTPUT     → OVERLAY-OUT       what the host itself must not send
 *   mangle FORWARD → OVERLAY-GUARD     what is routed into or out of the overlay without a right to
 *   filter INPUT   → OVERLAY-IN        VXLAN from peers, what workloads may reach on the host itself
 *   filter FORWARD → OVERLAY-FWD       what the overlay needs to pass; nothing is dropped here
 *   filter FORWARD → OVERLAY-REST      after all other rules: see plan/this-host.ts
 *
 * In a chain, rules that pass packets (ACCEPT, RETURN) precede those that do not. Several owners share a chain, and add their rules
 * in any order, so the former are inserted at the top and the latter appended.
 */
export interface OverlayChain {
  table: FirewallRule["table"];
  chain: string;
  from: Jump["from"][];
  /** Its jump is appended after the rules of other programs. */
  atEnd?: true;
}

export const PRE: OverlayChain = { table: "raw", chain: "OVERLAY-PRE", from: ["PREROUTING"] };
export const SOURCES: OverlayChain = { table: "raw", chain: "OVERLAY-SRC", from: ["PREROUTING"] };
export const OUT: OverlayChain = { table: "raw", chain: "OVERLAY-OUT", from: ["OUTPUT"] };
export const GUARD: OverlayChain = { table: "mangle", chain: "OVERLAY-GUARD", from: ["FORWARD"] };
export const INPUT: OverlayChain = { table: "filter", chain: "OVERLAY-IN", from: ["INPUT"] };
export const FORWARD: OverlayChain = { table: "filter", chain: "OVERLAY-FWD", from: ["FORWARD"] };
export const REST: OverlayChain = { table: "filter", chain: "OVERLAY-REST", from: ["FORWARD"], atEnd: true };
export const NAT: OverlayChain = { table: "nat", chain: "OVERLAY-NAT", from: ["POSTROUTING"] };
export const DNAT: OverlayChain = { table: "nat", chain: "OVERLAY-DNAT", from: ["PREROUTING", "OUTPUT"] };
export const RETURN_PATH: OverlayChain = { table: "raw", chain: "OVERLAY-BACK", from: ["PREROUTING", "OUTPUT"] };

const INSPECT_COMMANDS = ["iptables-save | grep OVERLAY-", "ip6tables-save | grep OVERLAY-"];

export const chainKind: ItemKind<Chain> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["rules4", "rules6"], after: ["rules4", "rules6"] },
  readBack: ({ family }) => ({ isIpv6: family === 6 }),
  disappearsWith: () => undefined,
  compare: (item, facts) => (facts.chains.has(chainKey(item, item.chain)) ? [] : undefined),
  render({ verb, item }, parts) {
    const { chain } = item;
    tableLines(verb, item, parts).push(...(verb === "remove" ? [`-F ${chain}`, `-X ${chain}`] : [`:${chain} - [0:0]`]));
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert: (step) => [oppositeStep(step)],
  removeFrom: ({ chains }, item) => void chains.delete(chainKey(item, item.chain)),
  inspectCommands: INSPECT_COMMANDS,
};

export const ruleKind: ItemKind<FirewallRule> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: { transient: undefined, flows: undefined },
  readFrom: { before: ["rules4", "rules6"], after: ["rules4", "rules6"] },
  readBack: ({ family }) => ({ isIpv6: family === 6 }),
  disappearsWith: () => undefined,
  compare(item, facts) {
    const copies = countCopies(item, facts);
    if (copies === 0) return undefined;
    const misplaced = isAfterDrop(item, facts) ? ["it comes after a rule that drops"] : [];
    return [...misplaced, ...mismatch("number of copies", copies, 1)];
  },
  render: renderRule,
  bootSteps: (item) => (item.transient ? [] : [{ verb: "add", item }]),
  invert: (step) => [oppositeStep(step)],
  removeFrom: removeRule,
  inspectCommands: INSPECT_COMMANDS,
};

export const jumpKind: ItemKind<Jump> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: { atEnd: undefined },
  readFrom: { before: ["rules4", "rules6"], after: ["rules4", "rules6"] },
  readBack: ({ family }) => ({ isIpv6: family === 6 }),
  disappearsWith: () => undefined,
  compare(item, facts) {
    const position = observedJumpPosition(item, facts);
    if (position === 0) return undefined;
    if (position < 0) return ["position is before DOCKER-USER, should be after it"];
    return [...mismatch("position", position, 1), ...mismatch("number of copies", countCopies(item, facts), 1)];
  },
  render: renderRule,
  bootSteps: (item) => [{ verb: "add", item }],
  invert: (step) => (step.verb === "change" ? [] : [oppositeStep(step)]), // one that was moved to the top stays there
  removeFrom: removeRule,
  inspectCommands: INSPECT_COMMANDS,
};

export type RuleOrJump = FirewallRule | Jump;

/** As in `Facts.chains`. */
const chainKey = ({ family, table }: Pick<RuleOrJump, "family" | "table">, chain: string): string =>
  `${family} ${table} ${chain}`;

export function parseChainKey(key: string): Pick<Chain, "family" | "table" | "chain"> {
  const [family, table, chain] = key.split(" ") as [string, Chain["table"], string];
  return { family: family === "4" ? 4 : 6, table, chain };
}

/** The chain that a rule or jump is in, and its text there. */
const ruleIn = (item: RuleOrJump): [chain: string, rule: string] =>
  item.kind === "rule" ? [item.chain, item.rule] : [item.from, `-j ${item.chain}`];

/** A rule or jump can be present several times, and is removed as often. */
export function countCopies(item: Item, facts: Facts): number {
  if (item.kind !== "rule" && item.kind !== "jump") return 1;
  const [chain, text] = ruleIn(item);
  return observedRules(facts, item, chain).filter((rule) => rule === text).length;
}

/** Those of these chains, rules and jumps that a host lacks, each once. On a hub there are thousands. */
export function findMissingRules(items: Item[], { chains, ip6tables }: Facts): FirewallItem[] {
  const observed = new Set([...chains].flatMap(([key, rules]) => [key, ...rules.map((rule) => `${key} ${rule}`)]));
  const missing = new Map<string, FirewallItem>();
  for (const item of items) {
    if (!isFirewallItem(item) || (item.kind === "rule" && item.transient) || (item.family === 6 && !ip6tables))
      continue;
    const [chain, rule] = item.kind === "chain" ? [item.chain] : ruleIn(item);
    const key = `${chainKey(item, chain)}${rule === undefined ? "" : ` ${rule}`}`;
    if (!observed.has(key)) missing.set(`${item.kind} ${key}`, item);
  }
  return [...missing.values()];
}

function renderRule({ verb, item, copies = 1, position = 1 }: StepOf<RuleOrJump>, parts: ScriptParts): void {
  const [chain, rule] = ruleIn(item);
  const lines = tableLines(verb, item, parts);
  if (verb !== "add") lines.push(...Array<string>(copies).fill(`-D ${chain} ${rule}`));
  if (verb === "remove") return;
  const atEnd = item.kind === "rule" ? !isPassRule(item.rule) : item.atEnd;
  lines.push(atEnd ? `-A ${chain} ${rule}` : `-I ${chain} ${position} ${rule}`);
}

function removeRule(facts: Facts, item: RuleOrJump): void {
  const [chain, text] = ruleIn(item);
  const rules = observedRules(facts, item, chain).filter((rule) => rule !== text);
  facts.chains.set(chainKey(item, chain), rules);
}

function tableLines(verb: Step["verb"], { family, table }: FirewallItem, parts: ScriptParts): string[] {
  const tables = verb === "remove" ? parts.removedRules : parts.firewall;
  const key = `${family} ${table}`;
  if (!tables.has(key)) tables.set(key, []);
  return tables.get(key)!;
}

/** Rules in one of our chains, with the chain and the jumps to it; nothing if there are no rules. */
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

/** Whether a rule passes packets, and so precedes those that do not. */
export const isPassRule = (rule: string): boolean => /(^| )-j (ACCEPT|RETURN)$/.test(rule);

/** Whether a rule drops or rejects packets. */
const isDropRule = (rule: string): boolean => /(^| )-j (DROP|REJECT)( |$)/.test(rule);

/** The kernel's own ping, in iptables-save's form. */
export const ECHO_REQUEST: Record<Family, string> = {
  4: "-p icmp -m icmp --icmp-type 8",
  6: "-p ipv6-icmp -m icmp6 --icmpv6-type 128",
};

export const ICMP_REDIRECT: Record<Family, string> = {
  4: "-p icmp -m icmp --icmp-type 5",
  6: "-p ipv6-icmp -m icmp6 --icmpv6-type 137",
};

/** Packets from sockets of users other than root. The opposite, `! --uid-owner 0`, would match what has no socket, too. */
export const USERS = "-m owner --uid-owner 1-4294967294";

/** Of packets of users that enter a tunnel: one bit, high up, where none of the known users of marks has its own. */
export const TUNNEL_USER_MARK = "0x20000000/0x20000000";

/** Marks packets of users that enter a tunnel by this device: see plan/tunnel-port.ts. */
export const markUsersRule = (device: string): string =>
  `-o ${device} ${USERS} -j MARK --set-xmark ${TUNNEL_USER_MARK}`;

export const acceptPeerRule = (remote: string, port: number): string =>
  `-s ${remote}/${addressBits(familyOfIp(remote))} -p udp -m udp --dport ${port} -j ACCEPT`;

/** All networks of a host with this port share it; it is removed with the last. */
export const dropVxlanRule = (port: number): string => `-p udp -m udp --dport ${port} -j DROP`;

/** The rules of a chain. Their order matters: an accept after a reject has no effect, nor has a drop after an accept. */
export const observedRules = (
  facts: Facts,
  { family, table }: Pick<FirewallRule | Jump, "family" | "table">,
  chain: string,
): string[] => facts.chains.get(chainKey({ family, table }, chain)) ?? [];

/** Docker jumps to it first; administrators put rules into it that must apply to all forwarded packets. */
const DOCKER_USER = "-j DOCKER-USER";

const DOCKER_JUMP = /(^| )-j DOCKER/;

const isForwardJump = ({ table, from, chain }: Jump): boolean =>
  table === FORWARD.table && chain === FORWARD.chain && from === FORWARD.from[0];

/** The position of a jump, from 1: at the top, but what we accept must not override DOCKER-USER. */
export function desiredJumpPosition(item: Jump, facts: Facts): number {
  const others = observedRules(facts, item, item.from).filter((rule) => rule !== `-j ${item.chain}`);
  return isForwardJump(item) ? others.lastIndexOf(DOCKER_USER) + 2 : 1;
}

/**
 * The position of a jump, from 1, without rules that cannot affect our packets; 0: it is absent; -1: it precedes DOCKER-USER, which is
 * wrong. Docker inserts its rules at the top of FORWARD whenever it starts. They do not count, because OVERLAY-FWD only accepts, and they may
 * override it. Other rules that accept do not count there either, nor drops before chains that only drop.
 */
function observedJumpPosition(item: Jump, facts: Facts): number {
  const rules = observedRules(facts, item, item.from);
  const at = rules.indexOf(`-j ${item.chain}`);
  if (at < 0) return 0;
  if (item.atEnd) return 1;
  const start = isForwardJump(item) ? rules.lastIndexOf(DOCKER_USER) + 1 : 0;
  if (at < start) return -1;
  const onlyDrops = [PRE, SOURCES, OUT, GUARD].some(({ chain }) => chain === item.chain);
  const counts = (rule: string): boolean =>
    !rule.startsWith("-j OVERLAY-") &&
    !(onlyDrops && isDropRule(rule)) &&
    !(isForwardJump(item) && (isPassRule(rule) || DOCKER_JUMP.test(rule)));
  const own = observedRules(facts, item, item.chain);
  return 1 + rules.slice(start, at).filter((rule) => counts(rule) && canMatchSamePackets(rule, own)).length;
}

/**
 * Docker's masquerading rules, for example, match only Docker's own ranges. A chain of ours that was flushed
 * may get any rule.
 */
function canMatchSamePackets(rule: string, own: string[]): boolean {
  const source = sourceRange(rule);
  return !source || own.length === 0 || own.some((ours) => !sourceRange(ours) || overlaps(source, sourceRange(ours)!));
}

const sourceRange = (rule: string) => parseRange(/^-s (\S+) /.exec(rule)?.[1] ?? "");

/** Whether a rule of ours that passes packets follows one of ours that drops them, in the same chain. Foreign rules are reported separately. */
function isAfterDrop(item: FirewallRule, facts: Facts): boolean {
  if (!isPassRule(item.rule)) return false;
  const rules = observedRules(facts, item, item.chain);
  const before = rules.slice(0, rules.indexOf(item.rule)).filter(isDropRule);
  return before.some((rule) => facts.records.some((record) => hasItem(record, { ...item, rule })));
}

/** A trailing + in a rule matches any name with this prefix. */
export const matchesDevice = (pattern: string, device: string): boolean =>
  pattern.endsWith("+") ? device.startsWith(pattern.slice(0, -1)) : device === pattern;

export const TABLES = ["raw", "mangle", "filter", "nat"] as const;

export const iptablesTool = (family: Family): string => (family === 4 ? "iptables" : "ip6tables");
