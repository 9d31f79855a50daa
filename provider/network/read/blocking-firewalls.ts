import { type Family, parseRange } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import type { BlockingChain } from "../model/facts";
import type { Item } from "../model/items";
import { quoteCommand } from "../render/shell";

/** Without iptables' own chains, in which our jumps come first, and without firewalld's, for which there are zones. */
export const BLOCKING_FIREWALLS_SCRIPT = [
  "if read -r x 2>/dev/null </proc/net/ip_tables_names && command -v iptables-legacy-save >/dev/null; then echo '@@ legacy4'; iptables-legacy-save; fi",
  "if read -r x 2>/dev/null </proc/net/ip6_tables_names && command -v ip6tables-legacy-save >/dev/null; then echo '@@ legacy6'; ip6tables-legacy-save; fi",
  'if command -v nft >/dev/null; then echo \'@@ nft\'; nft list chains 2>/dev/null | awk \'$1 == "table" { t = $2 " " $3 } $1 == "chain" { c = $2 } / hook (forward|input) / && !(t ~ /^ip6? filter$/ && c ~ /^[A-Z]+$/) && t != "inet firewalld" && !(t in seen) { seen[t]; print t }\' | while read -r family table; do nft list table "$family" "$table"; done; fi',
].join("\n");

/** `nft list table` of one or more tables. */
export function parseNftChains(body: string): BlockingChain[] {
  return body.split(/^(?=table )/m).flatMap((text) => {
    const [, family = "", table = ""] = /^table (\S+) (\S+) \{/.exec(text) ?? [];
    const families = { ip: [4], ip6: [6], inet: [4, 6] }[family] as Family[] | undefined;
    const accepts = text.split("\n").filter((line) => /\baccept\b/.test(line) && !/\bhook\b/.test(line));
    return text.split("\n\tchain ").flatMap((block): BlockingChain[] => {
      const [, chain] = /^(\S+) \{\n/.exec(block) ?? [];
      const [rules = ""] = block.split("\n\t}");
      const [, hook, policy] = /type filter hook (forward|input) [^;]*;(?: policy (\w+);)?/.exec(rules) ?? [];
      const why = policy === "drop" ? "policy drop" : finalDrop(rules);
      if (!families || !chain || !hook || !why) return [];
      return [
        {
          tool: "nft",
          where: `${family} ${table} ${chain}`,
          hook: hook as BlockingChain["hook"],
          families,
          why,
          accepts,
        },
      ];
    });
  });
}

/** A rule that drops or rejects all packets. */
const finalDrop = (rules: string): string | undefined =>
  /^\s*((?:drop|reject)\b.*?)\s*$/m.exec(rules.replace(/^\s*counter packets \d+ bytes \d+ /gm, ""))?.[1];

/** The text of iptables-legacy-save. */
export function parseLegacyChains(family: Family, body: string): BlockingChain[] {
  const [, table = ""] = `\n${body}`.split("\n*filter\n");
  const [filter = ""] = table.split("\nCOMMIT");
  const accepts = filter.split("\n").filter((line) => line.endsWith("-j ACCEPT"));
  return (["FORWARD", "INPUT"] as const).flatMap((chain): BlockingChain[] => {
    const policy = new RegExp(`^:${chain} DROP`, "m").test(filter) ? "policy DROP" : undefined;
    const why = policy ?? new RegExp(`^-A ${chain} (-j (?:DROP|REJECT).*)$`, "m").exec(filter)?.[1];
    const tool = family === 4 ? "iptables-legacy" : "ip6tables-legacy";
    return why
      ? [{ tool, where: chain, hook: chain === "FORWARD" ? "forward" : "input", families: [family], why, accepts }]
      : [];
  });
}

/** Packets that a hook must not drop. */
interface Traffic {
  hook: BlockingChain["hook"];
  family: Family;
  what: string;
  passes(accepting: string): boolean;
  remedy(barrier: BlockingChain): string[];
}

/** Throws if packets of this plan would be dropped. */
export function refuseBlockingChains(items: Item[], barriers: BlockingChain[]): void {
  for (const traffic of items.flatMap(requiredTraffic)) {
    const barrier = barriers.find(
      ({ hook, families, accepts }) =>
        hook === traffic.hook && families.includes(traffic.family) && !accepts.some(traffic.passes),
    );
    if (!barrier) continue;
    throw new OverlayError(
      "FIREWALL_BLOCKED",
      `${barrier.tool} ${barrier.where} (${barrier.why}) would drop ${traffic.what}; what is accepted elsewhere does not overrule it. Nothing was changed.`,
      `Let it pass there, for now with \`${traffic.remedy(barrier).map(quoteCommand).join("; ")}\` and in that firewall's own configuration.`,
    );
  }
}

function requiredTraffic(item: Item): Traffic[] {
  if (item.kind === "route" && item.table === undefined) {
    const { family, dst } = item;
    const remedy = ({ tool, where }: BlockingChain): string[] =>
      tool === "nft"
        ? ["saddr", "daddr"].map((end) => `nft insert rule ${where} ${nftFamily(family)} ${end} ${dst} accept`)
        : ["-s", "-d"].map((end) => `${tool} -I ${where} ${end} ${dst} -j ACCEPT`);
    return [{ hook: "forward", family, what: `the overlay's packets (${dst})`, passes: acceptsRange(dst), remedy }];
  }
  if (item.kind !== "link" || !item.vxlan) return [];
  const { remote, port } = item.vxlan;
  const family = remote.includes(":") ? 6 : 4;
  const remedy = ({ tool, where }: BlockingChain): string[] => [
    tool === "nft"
      ? `nft insert rule ${where} ${nftFamily(family)} saddr ${remote} udp dport ${port} accept`
      : `${tool} -I ${where} -s ${remote} -p udp --dport ${port} -j ACCEPT`,
  ];
  const passes = (line: string): boolean =>
    new RegExp(`dport\\b.*\\b${port}\\b`).test(line) || acceptsRange(remote)(line);
  return [{ hook: "input", family, what: `VXLAN from ${remote} (UDP port ${port})`, passes, remedy }];
}

const nftFamily = (family: Family): string => (family === 4 ? "ip" : "ip6");

/** Whether a line names the range, or one that it lies in. */
function acceptsRange(text: string): (line: string) => boolean {
  const inner = parseRange(text)!;
  return (line) =>
    line.split(/[\s,{}"]+/).some((word) => {
      const outer = /[.:]/.test(word) ? parseRange(word) : undefined;
      return outer !== undefined && outer.first <= inner.first && inner.last <= outer.last;
    });
}
