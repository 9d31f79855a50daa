import type { Family } from "../../addressing/ip";
import type { Facts } from "../model/facts";
import type { Item, Step } from "../model/items";

/**
 * What other programs route on a host that forwarded nothing before the overlay: if there is anything, forwarding stays on when the
 * last owner is removed. While there is an OVERLAY-REST, their packets pass only by rules of theirs in FORWARD; tunnels count without such rules.
 */
export const findOtherRouting = (family: Family, mine: Item[], facts: Facts): string[] => [
  ...findForwardRules(family, facts).map((rule) => `the rule '${rule}'`),
  ...findOtherTunnels(family, mine, facts).map((name) => `the tunnel ${name}`),
];

/** Rules that accept packets of certain devices or ranges, in FORWARD and the chains of others that it leads to. */
function findForwardRules(family: Family, { chains }: Facts): string[] {
  const reached = ["FORWARD"];
  for (const chain of reached)
    for (const rule of chains.get(`${family} filter ${chain}`) ?? []) {
      const target = /(?:^| )-[jg] (\S+)/.exec(rule)?.[1] ?? "";
      const isNext = chains.has(`${family} filter ${target}`) && !target.startsWith("OVERLAY-");
      if (isNext && !reached.includes(target)) reached.push(target);
    }
  return reached.flatMap((chain) =>
    (chains.get(`${family} filter ${chain}`) ?? [])
      .filter((rule) => /(^| )-j ACCEPT$/.test(rule) && /(^| )-[iosd] /.test(rule) && !isForReplies(rule))
      .map((rule) => `-A ${chain} ${rule}`),
  );
}

const isForReplies = (rule: string): boolean => / --(ct)?state (?!\S*NEW)/.test(rule);

const TUNNEL_TYPES = /^(vxlan|geneve|gre|gretap|ip6gre|ip6gretap|ipip|sit|ip6tnl|wireguard)$/;

function findOtherTunnels(family: Family, mine: Item[], { links, addresses, records }: Facts): string[] {
  const items = [...mine, ...records.flatMap((record) => record.items)];
  const ours = new Set(items.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  const hasAddress = (name: string): boolean =>
    [...addresses].some(
      (text) => text.endsWith(` ${name}`) && isRoutable(text) && text.includes(":") === (family === 6),
    );
  return [...links].flatMap(([name, { type, up }]) =>
    up && TUNNEL_TYPES.test(type) && !ours.has(name) && hasAddress(name) ? [name] : [],
  );
}

const isRoutable = (address: string): boolean => !/^(fe80:|169\.254\.)/.test(address);

/** Warnings about settings that are kept for others. */
export const keptWarnings = (steps: Step[]): string[] =>
  steps.flatMap(({ item, keptFor = [] }) => {
    if (item.kind !== "sysctl" || keptFor.length === 0) return [];
    const more = keptFor.length > 3 ? ` and ${keptFor.length - 3} more` : "";
    return [
      `${item.key} stays 1, although it was 0 before the overlay, because others route here: ${keptFor.slice(0, 3).join(", ")}${more}. Without the overlay no rule of ours drops what else is forwarded. If nothing is to be: \`sysctl -w ${item.key}=0\`.`,
    ];
  });
