import { addressBits, type Family, familyOf, formatCidr, tryParseIp } from "../../addressing/ip";
import { tunnelName } from "../../addressing/layout";
import { devicesWithAddress } from "../kinds/device";
import type { Facts } from "../model/facts";
import { vxlanOverhead } from "../model/items";

/**
 * Discovers the overlays of a host from its kernel alone, whichever program created them: the inverse of the planner. A tunnel with
 * the 254th address of a subnet belongs to a hub whose own address is the first of the range, and its name, its VNI and its
 * position in the range must give the same runner id. So a VXLAN device of another kind is not mistaken for one.
 */
export interface DiscoveredNetwork {
  /** From our own record, where there is one. */
  networkName?: string;
  /** One layout a family, as in the inputs. */
  subnets: string[];
  devicePrefix: string;
  vniBase: number;
  vxlanPort: number;
  hubInterface: string;
  hubUnderlayIp: string;
  tunnels: DiscoveredTunnel[];
}

export interface DiscoveredTunnel {
  runnerId: number;
  device: string;
  /** The runner's address on the underlay. */
  remote: string;
}

export interface DiscoveredRunner {
  runnerId: number;
  runnerDevice: string;
  bridgeName: string;
  mtu: number;
  /** Whether that is the underlay's MTU less the overhead. */
  isAutoMtu: boolean;
  masquerade: boolean;
  underlayIp: string;
}

interface DeviceAddress {
  dev: string;
  point: bigint;
  prefix: number;
}

const HUB_OFFSET = 254n;

export function discoverNetworks(facts: Facts): DiscoveredNetwork[] {
  const found = new Map<string, DiscoveredNetwork>();
  for (const [device, { vxlan, master }] of facts.links) {
    if (!vxlan || master !== undefined) continue;
    const places = addressesOf(facts, device).flatMap((at) => locateTunnel(device, at, facts));
    const [main] = places;
    if (!main || vxlan.vni < main.id) continue;
    const vniBase = vxlan.vni - main.id;
    const key = [main.prefix, main.anchor, vniBase, vxlan.port].join(" ");
    const network = found.get(key) ?? {
      ...recordedName(facts, main.anchor),
      subnets: places.filter(({ id, anchor }) => id === main.id && anchor === main.anchor).map(({ layout }) => layout),
      devicePrefix: main.prefix,
      vniBase,
      vxlanPort: vxlan.port,
      hubInterface: main.anchor,
      hubUnderlayIp: vxlan.local,
      tunnels: [],
    };
    network.tunnels.push({ runnerId: main.id, device, remote: vxlan.remote });
    found.set(key, network);
  }
  for (const { tunnels } of found.values()) tunnels.sort((a, b) => a.runnerId - b.runnerId);
  return [...found.values()];
}

const recordedName = (facts: Facts, anchor: string): { networkName?: string } => {
  const record = facts.records.find(({ items }) => items.some((item) => item.kind === "link" && item.name === anchor));
  return record ? { networkName: record.network } : {};
};

interface TunnelPlacement {
  prefix: string;
  id: number;
  anchor: string;
  layout: string;
}

/** The position of a tunnel with this name and address in a range, if the host has that range's first address, too. */
function locateTunnel(device: string, at: DeviceAddress, facts: Facts): TunnelPlacement[] {
  const family = familyOf(at.point);
  const bits = addressBits(family) - at.prefix;
  const first = (at.point >> BigInt(bits)) << BigInt(bits);
  if (at.point - first !== HUB_OFFSET) return [];
  for (const { prefix, id } of possibleNames(device)) {
    const base = first - BigInt(id) * (1n << BigInt(bits));
    const anchor = allAddresses(facts).find(({ dev, point }) => point === base + 1n && isAnchor(facts, dev));
    const whole = anchor && rangePrefix(base, family, anchor, facts);
    if (whole !== undefined && whole < at.prefix)
      return [{ prefix, id, anchor: anchor!.dev, layout: `${formatCidr(base, whole)}/${at.prefix - whole}/${bits}` }];
  }
  return [];
}

/** The possible splits of a device's name into a prefix and an id; the address shows which one is right. */
function possibleNames(device: string): { prefix: string; id: number }[] {
  const digits = [1, 2, 3, 4].filter((count) => count < device.length);
  return digits
    .map((count) => ({ prefix: device.slice(0, -count), id: Number.parseInt(device.slice(-count), 36) }))
    .filter(({ prefix, id }) => id >= 1 && tunnelName(prefix, id) === device);
}

const isAnchor = (facts: Facts, dev: string): boolean => /^(dummy|bridge)$/.test(facts.links.get(dev)?.type ?? "");

/** The prefix length of the range: from a route to it, or from the hub's own address. */
function rangePrefix(base: bigint, family: Family, anchor: DeviceAddress, facts: Facts): number | undefined {
  if (anchor.prefix < addressBits(family)) return anchor.prefix;
  const prefixes = facts.routes
    .map(({ dst }) => dst.split("/"))
    .filter(([address, prefix]) => prefix !== undefined && tryParseIp(address!) === base)
    .map(([, prefix]) => Number(prefix));
  return prefixes.length > 0 ? Math.min(...prefixes) : undefined;
}

const allAddresses = (facts: Facts): DeviceAddress[] =>
  [...facts.addresses].flatMap((text) => {
    const [, address, prefix, dev] = /^(.*)\/(\d+) (.*)$/.exec(text) ?? [];
    const point = address && tryParseIp(address);
    return point ? [{ dev: dev!, point, prefix: Number(prefix) }] : [];
  });

const addressesOf = (facts: Facts, device: string): DeviceAddress[] =>
  allAddresses(facts).filter(({ dev }) => dev === device);

/** The runner's end, on a host of this network. */
export function discoverRunner(
  facts: Facts,
  { vniBase, vxlanPort, tunnels, subnets }: DiscoveredNetwork,
): DiscoveredRunner | undefined {
  for (const [runnerDevice, { vxlan, master }] of facts.links) {
    const bridge = master === undefined ? undefined : facts.links.get(master);
    const tunnel = tunnels.find(({ runnerId }) => runnerId + vniBase === vxlan?.vni);
    if (!vxlan || !bridge || !tunnel || vxlan.port !== vxlanPort) continue;
    const below = facts.links.get(devicesWithAddress(vxlan.local, facts)[0] ?? "");
    return {
      runnerId: tunnel.runnerId,
      runnerDevice,
      bridgeName: master!,
      mtu: bridge.mtu,
      isAutoMtu: below !== undefined && bridge.mtu === below.mtu - vxlanOverhead(vxlan.local),
      masquerade: hasMasquerade(facts, subnets[0]!),
      underlayIp: vxlan.local,
    };
  }
  return undefined;
}

/** A rule of ours or of KohakuRiver's: both exclude the whole range. */
function hasMasquerade(facts: Facts, layout: string): boolean {
  const range = layout.split("/").slice(0, 2).join("/");
  return [...facts.chains]
    .filter(([chain]) => chain.includes(" nat "))
    .some(([, rules]) => rules.some((rule) => rule.includes(`! -d ${range} `) && rule.endsWith("-j MASQUERADE")));
}
