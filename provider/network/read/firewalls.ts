import type { Family } from "../../addressing/ip";
import type { BlockingChain, PacketMatch } from "../model/facts";

/** Firewalls of other programs that our own chains cannot overrule: see `BlockingChain`. */

/**
 * Without iptables' own chains, in which our jumps come first, and without firewalld's, for which there are zones. In tables of bridges every
 * hook sees the frames of workloads.
 */
export const FIREWALLS_SCRIPT = [
  "if read -r x 2>/dev/null </proc/net/ip_tables_names && command -v iptables-legacy-save >/dev/null; then echo '@@ legacy4'; iptables-legacy-save; fi",
  "if read -r x 2>/dev/null </proc/net/ip6_tables_names && command -v ip6tables-legacy-save >/dev/null; then echo '@@ legacy6'; ip6tables-legacy-save; fi",
  'if command -v nft >/dev/null; then echo \'@@ nft\'; nft list chains 2>/dev/null | awk \'$1 == "table" { t = $2 " " $3 } $1 == "chain" { c = $2 } (/ hook (forward|input) / || (t ~ /^bridge / && / hook /)) && !(t ~ /^ip6? (filter|mangle|nat|raw|security)$/ && c ~ /^[A-Z]+$/) && t != "inet firewalld" && !(t in seen) { seen[t]; print t }\' | while read -r family table; do nft list table "$family" "$table"; done; fi',
].join("\n");

/** `nft list table` of one or more tables. */
export function parseNftChains(body: string): BlockingChain[] {
  return body.split(/^(?=table )/m).flatMap((text) => {
    const [, family = "", table = ""] = /^table (\S+) (\S+) \{/.exec(text) ?? [];
    const families = { ip: [4], ip6: [6], inet: [4, 6], bridge: [4, 6] }[family] as Family[] | undefined;
    const accepts = text.split("\n").filter((line) => /\baccept\b/.test(line) && !/\bhook\b/.test(line));
    return text.split("\n\tchain ").flatMap((block): BlockingChain[] => {
      const [, chain] = /^(\S+) \{\n/.exec(block) ?? [];
      const [rules = ""] = block.split("\n\t}");
      const [, hook, policy] = /type filter hook (\w+) [^;]*;(?: policy (\w+);)?/.exec(rules) ?? [];
      if (!families || !chain || !hook) return [];
      return findDrops(rules, policy).map((drop) => ({
        tool: "nft",
        where: `${family} ${table} ${chain}`,
        hook: hook === "input" && family !== "bridge" ? "input" : "forward",
        families,
        ...drop,
        ...(family === "bridge" && { isOfBridges: true }),
        accepts,
      }));
    });
  });
}

/** What drops all packets of a chain, or else the rules that drop those of devices and ranges. */
function findDrops(rules: string, policy: string | undefined): Pick<BlockingChain, "why" | "match">[] {
  if (policy === "drop") return [{ why: "policy drop" }];
  const lines = rules.split("\n").map((line) => line.replace(/\bcounter packets \d+ bytes \d+ /, "").trim());
  const drops = lines.flatMap((line) => {
    const match = parseNftDrop(line);
    return match ? [{ line, match }] : [];
  });
  const all = drops.find(({ match }) => Object.keys(match).length === 0);
  return all ? [{ why: all.line }] : drops.map(({ line, match }) => ({ why: `rule '${line}'`, match }));
}

const NFT_MATCHES: Record<string, keyof PacketMatch> = {
  iifname: "in",
  oifname: "out",
  iif: "in",
  oif: "out",
  ibrname: "in",
  obrname: "out",
  saddr: "source",
  daddr: "destination",
};

/** undefined: the line does not drop, or has other conditions. */
function parseNftDrop(line: string): PacketMatch | undefined {
  const [, conditions, verdict] = /^(.*?)\b(drop|reject)\b(?: with .*)?(?: comment ".*")?$/.exec(line) ?? [];
  if (conditions === undefined || verdict === undefined) return undefined;
  const match: PacketMatch = {};
  const rest = conditions.replace(
    /\b(?:meta |ip6? )?(iifname|oifname|iif|oif|ibrname|obrname|saddr|daddr) "?([\w.:/@*-]+)"? /g,
    (_, key: string, value: string) => {
      match[NFT_MATCHES[key]!] = value.replace(/\*$/, "+");
      return "";
    },
  );
  return rest.replace(/\b(counter|ether type ip6?) /g, "").trim() === "" ? match : undefined;
}

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
