import type { Family } from "../addressing/line";
import type { Item, Jump, Rule } from "./items";

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
