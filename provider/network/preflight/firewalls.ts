import { type Family, parseRange, subnetOf } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import { matchesDevice } from "../kinds/firewall";
import type { BlockingChain, Facts } from "../model/facts";
import type { Item, Link } from "../model/items";
import { quoteCommand } from "../render/shell";

/** Firewalls of other programs that our accepts do not overrule: see `BlockingChain`. */

/** Packets that a hook must not drop. */
interface Traffic {
  hook: BlockingChain["hook"];
  family: Family;
  what: string;
  /** The addresses of one end: a rule that drops some of them only is left to its administrator. */
  range: string;
  /** `range` is a part of the overlay's: the host has the whole in the plan of another resource, or in another item. */
  isPart?: true;
  passes(accepting: string): boolean;
  remedy(chain: BlockingChain): string[];
}

interface Blocked {
  chain: BlockingChain;
  traffic: Traffic;
}

function findBlocked(items: Item[], chains: BlockingChain[], withParts: boolean): Blocked[] {
  const devices = items.flatMap((item) => (item.kind === "link" ? [item.name] : []));
  const all = items.flatMap((item) => requiredTraffic(item, items)).filter(({ isPart }) => withParts || !isPart);
  return chains.flatMap((chain) => {
    const traffic = all.find((each) => isBlockedBy(each, chain, devices));
    return traffic ? [{ chain, traffic }] : [];
  });
}

function isBlockedBy(
  traffic: Traffic,
  { hook, families, match, accepts, isOfBridges }: BlockingChain,
  devices: string[],
) {
  if (hook !== traffic.hook || !families.includes(traffic.family) || accepts.some(traffic.passes)) return false;
  if (isOfBridges && !devices.some((device) => accepts.length === 0 || !accepts.some((line) => line.includes(device))))
    return false;
  if (!match) return true;
  const { source, destination, ...ends } = match;
  return (
    [source, destination].every((range) => range === undefined || acceptsRange(traffic.range)(range)) &&
    Object.values(ends).every((pattern) => devices.some((device) => matchesDevice(pattern, device)))
  );
}

/** Throws if all packets of this plan would be dropped. */
export function refuseBlockingChains(items: Item[], chains: BlockingChain[]): void {
  const [blocked] = findBlocked(
    items,
    chains.filter(({ match }) => match === undefined),
    false,
  );
  if (!blocked) return;
  const { tool, where, why } = blocked.chain;
  throw new OverlayError(
    "FIREWALL_BLOCKED",
    `${tool} ${where} (${why}) would drop ${blocked.traffic.what}; what is accepted elsewhere does not overrule it. Nothing was changed.`,
    `Let it pass there, for now with \`${remedyText(blocked)}\` and in that firewall's own configuration.`,
  );
}

const remedyText = ({ chain, traffic }: Blocked): string => traffic.remedy(chain).map(quoteCommand).join("; ");

/** As drift. */
export const describeBlockingChains = ({ items }: { items: Item[] }, { blockingChains }: Facts): string[] =>
  findBlocked(items, blockingChains, true).map((blocked) => {
    const { tool, where, why } = blocked.chain;
    return `foreign ${tool} ${where} (${why}) drops ${blocked.traffic.what}; it is never changed by us: let them pass with \`${remedyText(blocked)}\``;
  });

const requiredTraffic = (item: Item, items: Item[]): Traffic[] => {
  if (item.kind === "route" && item.table === undefined) return [forwarded(item.family, item.dst)];
  if (item.kind === "address")
    return isOnDevice(item.dev, items)
      ? [{ ...forwarded(item.address.includes(":") ? 6 : 4, subnetOf(item.address)), isPart: true }]
      : [];
  return item.kind === "link" && item.vxlan ? [tunnelled(item.vxlan)] : [];
};

const isOnDevice = (name: string, items: Item[]): boolean =>
  items.some((item) => item.kind === "link" && item.name === name && item.type !== "anchor");

function forwarded(family: Family, range: string): Traffic {
  const remedy = ({ tool, where, isOfBridges }: BlockingChain): string[] => {
    if (isOfBridges) return [`nft insert rule ${where} accept`];
    return tool === "nft"
      ? ["saddr", "daddr"].map((end) => `nft insert rule ${where} ${nftFamily(family)} ${end} ${range} accept`)
      : ["-s", "-d"].map((end) => `${tool} -I ${where} ${end} ${range} -j ACCEPT`);
  };
  return {
    hook: "forward",
    family,
    what: `the overlay's packets (${range})`,
    range,
    passes: acceptsRange(range),
    remedy,
  };
}

function tunnelled({ remote, port }: NonNullable<Link["vxlan"]>): Traffic {
  const family = remote.includes(":") ? 6 : 4;
  const remedy = ({ tool, where }: BlockingChain): string[] => [
    tool === "nft"
      ? `nft insert rule ${where} ${nftFamily(family)} saddr ${remote} udp dport ${port} accept`
      : `${tool} -I ${where} -s ${remote} -p udp --dport ${port} -j ACCEPT`,
  ];
  const passes = (line: string): boolean =>
    new RegExp(`dport\\b.*\\b${port}\\b`).test(line) || acceptsRange(remote)(line);
  return { hook: "input", family, what: `VXLAN from ${remote} (UDP port ${port})`, range: remote, passes, remedy };
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
