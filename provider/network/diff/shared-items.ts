import { FAMILIES, subnetOf, tryParseIp } from "../../addressing/ip";
import { GUARD, INPUT, OUT, observedRules, PRE, REST } from "../kinds/firewall";
import type { Facts } from "../model/facts";
import { type FirewallRule, type Item, unhandledKind } from "../model/items";

/**
 * Which items of an owner other owners can have, too. Records show it; these functions decide for owners whose records are
 * lost, by what an item names: devices, peers, subnets and forwarded ports have one owner, ranges and networks have several.
 */

/** Whether a rule names a device, a subnet, a peer or a forwarded port that only this plan has. */
export function isOwnRule({ rule }: FirewallRule, plan: Item[]): boolean {
  const devices = ownDevices(plan);
  const subnets = plan
    .filter((item) => item.kind === "address")
    .flatMap(({ dev, address }) => (devices.has(dev) ? [subnetOf(address)] : []));
  const peers = plan.flatMap((item) => {
    if (item.kind === "vxpeer") return [item.remote];
    return item.kind === "link" && item.vxlan?.remote ? [item.vxlan.remote] : [];
  });
  const named = operandsOf(rule);
  return (
    [...devices, ...subnets].some((name) => named.has(name)) ||
    peers.some((peer) => named.has(peer)) ||
    FORWARDED_PORT.test(rule)
  );
}

/**
 * Whether owners without a record can need an item of an owner that is removed. `plan`: all items of that owner; `others`: the networks
 * of owners without a record, undefined if a file does not show it.
 */
export function canOthersNeed(
  item: Item,
  plan: Item[],
  network: string,
  others: (string | undefined)[],
  facts: Facts,
): boolean {
  switch (item.kind) {
    case "rule": {
      const vxlan = parseVxlanRule(item);
      if (vxlan) return others.length > 0 && findOtherTunnels(plan, vxlan, facts).length > 0;
      return !isOwnRule(item, plan) && others.some((other) => canShareRule(item, network, other));
    }
    case "address":
      return !ownDevices(plan).has(item.dev) && others.some((other) => other === undefined || other === network);
    case "policy":
      return others.some(canBeStatic);
    case "route":
    case "sysctl":
    case "key":
    case "link":
    case "wgpeer":
    case "vxpeer":
    case "neighbour":
    case "docker":
    case "chain":
    case "jump":
    case "zone":
    case "file":
    case "service":
      return false;
    default:
      return unhandledKind(item);
  }
}

/** The network of a static address is the address itself. */
const isStatic = (network: string): boolean => tryParseIp(network) !== undefined;
const canBeStatic = (network: string | undefined): boolean => network === undefined || isStatic(network);

/** Whether an owner of network `other` can have this rule, which is not an owner's alone. */
function canShareRule({ chain, rule }: FirewallRule, network: string, other: string | undefined): boolean {
  if (other === undefined || other === network || (chain === REST.chain && rule === "-j DROP")) return true;
  if (isStatic(network) || isStatic(other))
    return isStatic(network) && isStatic(other) && !operandsOf(rule).has(network);
  return !NAMES_RANGE_OR_DEVICE.test(rule);
}

const NAMES_RANGE_OR_DEVICE = /(^| )-[sdio] /;
/** Of a static address: its forwards, their masquerading, and the marks of their replies. */
const FORWARDED_PORT = / --(sport|ctorigdstport) | -j DNAT /;

const ownDevices = (plan: Item[]): Set<string> =>
  new Set(plan.filter((item) => item.kind === "link").flatMap(({ name, shared }) => (shared ? [] : [name])));

/** The words of a rule; a single address also without its prefix. */
const operandsOf = (rule: string): Set<string> =>
  new Set(rule.split(" ").flatMap((word) => [word, word.replace(/\/(32|128)$/, "")]));

const TUNNEL_CHAINS = [INPUT, PRE, GUARD, OUT];

/** The port of a rule about tunnels, and the peer that it names: see plan/tunnels/vxlan.ts and plan/tunnel-port.ts. */
function parseVxlanRule({ chain, rule }: FirewallRule): { remote?: string; port: number } | undefined {
  const accept = /^(?:-s (\S+)\/\d+ )?-p udp -m udp --dport (\d+) -j (?:ACCEPT|DROP)$/;
  const guard = /^(?:-[io] (?:\S+) )?()-p udp -m udp --dport (\d+) (?:-m addrtype .*|-m owner .*)?-j (?:RETURN|DROP)$/;
  const [, remote, port] = (chain === INPUT.chain ? accept : guard).exec(rule) ?? [];
  if (port === undefined || !TUNNEL_CHAINS.some((each) => each.chain === chain)) return undefined;
  return { ...(remote && { remote }), port: Number(port) };
}

/**
 * Rules about VXLAN in our chains, for a removal without a record: those of other programs' peers, and those that stayed
 * for owners whose records are lost, are in no other plan.
 */
export const findTunnelRules = (network: string, facts: Facts): FirewallRule[] =>
  isStatic(network)
    ? []
    : FAMILIES.flatMap((family) =>
        TUNNEL_CHAINS.flatMap(({ table, chain }) => {
          const place = { family, table, chain };
          const rules = observedRules(facts, place, chain).map(
            (rule): FirewallRule => ({ kind: "rule", ...place, rule }),
          );
          return rules.filter((rule) => parseVxlanRule(rule) !== undefined);
        }),
      );

/** Tunnels on the host that are not in the plan, on this port and to this peer. */
function findOtherTunnels(
  plan: Item[],
  { remote, port }: { remote?: string; port: number },
  { links }: Facts,
): string[] {
  const own = ownDevices(plan);
  return [...links].flatMap(([name, { vxlan, wireguard, fdb = [] }]) => {
    const hasPeer = vxlan?.remote === remote || fdb.some(({ destination }) => destination === `dst ${remote}`);
    const isOnPort = (vxlan ?? wireguard)?.port === port && (remote === undefined || hasPeer);
    return isOnPort && !own.has(name) ? [name] : [];
  });
}
