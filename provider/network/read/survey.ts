import { addressBits, type Family, familyOf, formatCidr, parseRange, tryParseIp } from "../../addressing/ip";
import { parseLayout, runnerLayout, tunnelName } from "../../addressing/layout";
import { devicesWithAddress } from "../kinds/device";
import type { Facts, LinkFact } from "../model/facts";
import { type HostRecord, vxlanOverhead, wireguardOverhead } from "../model/items";
import type { Topology, TunnelName } from "../plan/tunnels";
import { isMeshDevice } from "../plan/tunnels/mesh";
import { idOfProbeRange } from "../plan/tunnels/probe-address";
import { parseDeviceName } from "../plan/tunnels/wireguard";

/**
 * Discovers the overlays of a host from its kernel alone, whichever program created them: the inverse of the planner. A tunnel with
 * the 254th address of a subnet belongs to a hub whose own address is the first of the range, and its name, its VNI and its
 * position in the range must give the same runner id. So a VXLAN device of another kind is not mistaken for one. A WireGuard device is a hub's
 * if its peers have probe addresses, and the subnets that follow from their ids.
 */
export interface DiscoveredNetwork {
  /** From our own record, where there is one. */
  networkName?: string;
  /** One layout a family, as in the inputs. */
  subnets: string[];
  devicePrefix: string;
  tunnel: TunnelName;
  /** With VXLAN. */
  vniBase?: number;
  vxlanPort?: number;
  /** With WireGuard. Hosts show only whether the generation is even or odd. */
  wireguardPort?: number;
  keyGeneration?: number;
  hubInterface: string;
  hubUnderlayIp: string;
  tunnels: DiscoveredTunnel[];
}

export interface DiscoveredTunnel {
  runnerId: number;
  device: string;
  /** The runner's address on the underlay. */
  remote: string;
  /** Of the runner, with WireGuard. */
  publicKey?: string;
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
  topology: Topology;
}

interface DeviceAddress {
  dev: string;
  point: bigint;
  prefix: number;
}

const HUB_OFFSET = 254n;

/** While the tunnel of a network changes, it has two: the one that its own record has comes first, and has the runners that have both. */
export function discoverNetworks(facts: Facts): DiscoveredNetwork[] {
  const found = new Map<string, DiscoveredNetwork>();
  for (const each of [...discoverWireguard(facts), ...discoverVxlan(facts)]) {
    const key = each.networkName === undefined ? JSON.stringify(each) : each.hubInterface;
    const other = found.get(key);
    const [main, second] = other && !isRecordedTunnel(other, facts) ? [each, other] : [other ?? each, each];
    const isNew = ({ runnerId }: DiscoveredTunnel): boolean => main.tunnels.every((one) => one.runnerId !== runnerId);
    found.set(key, { ...second, ...main, tunnels: [...main.tunnels, ...second.tunnels.filter(isNew)] });
  }
  for (const { tunnels } of found.values()) tunnels.sort((a, b) => a.runnerId - b.runnerId);
  return [...found.values()];
}

const isRecordedTunnel = ({ hubInterface, tunnel, keyGeneration }: DiscoveredNetwork, facts: Facts): boolean =>
  findRecordWithLink(facts, hubInterface)?.items.some(
    (item) => item.kind === "link" && item.wireguard && parseDeviceName(item.name)?.slot === keyGeneration,
  ) ===
  (tunnel === "wireguard");

function discoverVxlan(facts: Facts): DiscoveredNetwork[] {
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
      tunnel: "vxlan",
      vniBase,
      vxlanPort: vxlan.port,
      hubInterface: main.anchor,
      hubUnderlayIp: vxlan.local,
      tunnels: [],
    };
    network.tunnels.push({ runnerId: main.id, device, remote: vxlan.remote });
    found.set(key, network);
  }
  return [...found.values()];
}

function discoverWireguard(facts: Facts): DiscoveredNetwork[] {
  return [...facts.links].flatMap(([device, { wireguard }]) => {
    const name = parseDeviceName(device);
    if (!wireguard || !name) return [];
    const peers = [...wireguard.peers].flatMap(([publicKey, { allowedIps, endpoint = "" }]) => {
      const runnerId = allowedIps.flatMap((range) => idOfProbeRange(range) ?? []).find((id) => id > 0);
      const places = runnerId === undefined ? [] : allowedIps.flatMap((range) => locateSubnet(range, runnerId, facts));
      return runnerId === undefined || places.length === 0
        ? []
        : [{ places, tunnel: { runnerId, device, remote: hostOfEndpoint(endpoint), publicKey } }];
    });
    const [first] = peers;
    if (!first) return [];
    const { anchor } = first.places[0]!;
    return [
      {
        ...recordedName(facts, anchor),
        subnets: first.places.filter((each) => each.anchor === anchor).map(({ layout }) => layout),
        devicePrefix: name.prefix,
        tunnel: "wireguard" as const,
        wireguardPort: wireguard.port - name.slot,
        keyGeneration: name.slot,
        hubInterface: anchor,
        hubUnderlayIp: findLocal(device, facts.records) ?? "",
        tunnels: peers.map(({ tunnel }) => tunnel),
      },
    ];
  });
}

const hostOfEndpoint = (endpoint: string): string => endpoint.replace(/:\d+$/, "").replace(/^\[|\]$/g, "");

/** The address of a WireGuard device on the underlay is in no fact: the kernel takes any. */
const findLocal = (device: string, records: HostRecord[]): string | undefined =>
  records
    .flatMap(({ items }) => items)
    .flatMap((item) => (item.kind === "link" && item.name === device ? (item.wireguard?.local ?? []) : []))[0];

const findRecordWithLink = (facts: Facts, name: string): HostRecord | undefined =>
  facts.records.find(({ items }) => items.some((item) => item.kind === "link" && item.name === name));

const recordedName = (facts: Facts, anchor: string): { networkName?: string } => {
  const record = findRecordWithLink(facts, anchor);
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
  const bits = BigInt(addressBits(familyOf(at.point)) - at.prefix);
  const first = (at.point >> bits) << bits;
  if (at.point - first !== HUB_OFFSET) return [];
  const places = possibleNames(device).flatMap((name) =>
    locateSubnet(formatCidr(first, at.prefix), name.id, facts).map((place) => ({ ...name, ...place })),
  );
  return places.slice(0, 1);
}

/** The range in which this is the subnet of the runner with this id, and the device with its first address. */
function locateSubnet(subnet: string, id: number, facts: Facts): Pick<TunnelPlacement, "anchor" | "layout">[] {
  const { first } = parseRange(subnet)!;
  const prefix = Number(subnet.split("/")[1]);
  const family = familyOf(first);
  const bits = addressBits(family) - prefix;
  const base = first - BigInt(id) * (1n << BigInt(bits));
  const anchor = allAddresses(facts).find(({ dev, point }) => point === base + 1n && isAnchor(facts, dev));
  const whole = anchor && rangePrefix(base, family, anchor, facts);
  return whole === undefined || whole >= prefix
    ? []
    : [{ anchor: anchor!.dev, layout: `${formatCidr(base, whole)}/${prefix - whole}/${bits}` }];
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
export function discoverRunner(facts: Facts, network: DiscoveredNetwork): DiscoveredRunner | undefined {
  for (const [runnerDevice, link] of facts.links) {
    const tunnel = network.tunnels.find((each) => isOtherEnd(link, each, network));
    const bridgeName = tunnel && (link.wireguard ? findBridge(facts, network, tunnel.runnerId) : link.master);
    const bridge = bridgeName === undefined ? undefined : facts.links.get(bridgeName);
    const underlayIp = link.vxlan?.local ?? findLocal(runnerDevice, facts.records);
    if (!tunnel || !bridge || underlayIp === undefined) continue;
    const below = facts.links.get(devicesWithAddress(underlayIp, facts)[0] ?? "");
    const overhead = link.wireguard ? wireguardOverhead(underlayIp) : vxlanOverhead(underlayIp);
    return {
      runnerId: tunnel.runnerId,
      runnerDevice,
      bridgeName: bridgeName!,
      mtu: bridge.mtu,
      isAutoMtu: below !== undefined && bridge.mtu === below.mtu - overhead,
      masquerade: hasMasquerade(facts, network.subnets[0]!),
      underlayIp,
      topology: [...facts.links.keys()].some((name) => name.startsWith(network.devicePrefix) && isMeshDevice(name))
        ? "mesh"
        : "hub",
    };
  }
  return undefined;
}

const isOtherEnd = (
  { vxlan, wireguard }: LinkFact,
  { runnerId, publicKey }: DiscoveredTunnel,
  { vniBase = Number.NaN, vxlanPort }: DiscoveredNetwork,
): boolean =>
  publicKey === undefined
    ? vxlan?.vni === runnerId + vniBase && vxlan.port === vxlanPort
    : wireguard?.publicKey === publicKey;

/** The bridge with the gateway of the runner's subnet. */
const findBridge = (facts: Facts, { subnets }: DiscoveredNetwork, runnerId: number): string | undefined => {
  const layout = parseLayout(subnets[0]!);
  const { gateway } = runnerLayout(layout, runnerId);
  const [dev] = devicesWithAddress(gateway, facts).filter((name) => facts.links.get(name)?.type === "bridge");
  return dev;
};

/** A rule of ours or of KohakuRiver's: both exclude the whole range. */
function hasMasquerade(facts: Facts, layout: string): boolean {
  const range = layout.split("/").slice(0, 2).join("/");
  return [...facts.chains]
    .filter(([chain]) => chain.includes(" nat "))
    .some(([, rules]) => rules.some((rule) => rule.includes(`! -d ${range} `) && rule.endsWith("-j MASQUERADE")));
}
