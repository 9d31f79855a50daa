import { z } from "zod";
import { parseNumberRange } from "../addressing/ip";
import {
  canUseDocker,
  type DockerRange,
  dockerRange,
  type Layout,
  maxDockerShare,
  parseLayout,
  runnerLayout,
} from "../addressing/layout";
import type { PoolSpec } from "../ipam/types";
import { keyPath } from "../network/model/record";
import type { DockerPlan, Network, Underlay } from "../network/plan/hub";
import type { HostAccess, HostPort } from "../network/plan/isolation";
import { TOPOLOGIES, TUNNELS, type TunnelName } from "../network/plan/tunnels";
import type { TunnelChoice, TunnelEnd } from "../network/plan/tunnels/tunnel-end";
import { portOf, slotOf } from "../network/plan/tunnels/wireguard";
import { networkPool } from "../pool-names";
import type { InputError, StoredSettings } from "../resource";
import { deviceName, devicePrefix, hostIdText, ipAddress, layouts, resourceName } from "./inputs";

/**
 * The settings of a network that its runners need, too: passed by reference, or read from the pool by name. They include Docker on
 * runners and the access to hosts. Used in preview, so nothing here needs facts of hosts.
 */

// Docker on runners

const dockerEnabled = z
  .enum(["auto", "on", "off"])
  .meta({ id: "DockerEnabled" })
  .describe("`auto`: a Docker network where dockerd runs; `on`: dockerd must run; `off`: none.");
export const dockerNetworkName = resourceName.refine(
  (name) => !["bridge", "host", "none", "default"].includes(name),
  "must be none of the names that Docker keeps for itself (bridge, host, none, default)",
);
const dockerName = dockerNetworkName.describe("Name of the Docker network, as in `docker run --network`.");
const dockerShare = z
  .string()
  .refine((text) => /^1\/[1-9]\d{0,9}$/.test(text) && isPowerOfTwo(shareOf(text)), "must be a share: 1/2, 1/4, 1/8 …")
  .describe(
    "The share at the end of each runner's subnet from which Docker picks addresses by itself, `1/4`: the last quarter. The pool does not allocate from it unless Docker is off.",
  );

export const docker = z
  .strictObject({
    enabled: dockerEnabled.default("auto"),
    networkName: dockerName.default("pulumi-overlay"),
    range: dockerShare.default("1/4"),
  })
  .meta({ id: "Docker" });

/** For one runner. Defaults are the network's values. */
export const dockerOverride = z
  .strictObject({
    enabled: dockerEnabled.optional(),
    networkName: dockerName.optional(),
    range: dockerShare.optional(),
  })
  .meta({ id: "DockerOverride" });

export type Docker = z.output<typeof docker>;
export type DockerOverride = z.output<typeof dockerOverride>;

const isPowerOfTwo = (share: number): boolean => share > 1 && Number.isInteger(Math.log2(share));

const shareOf = (range: string): number => Number(range.slice("1/".length));

/** States of releases before this setting have none. */
export const dockerFor = (network: { docker?: Docker }, override: z.output<typeof dockerOverride> = {}): Docker => {
  const given = Object.entries(override).filter(([, value]) => value !== undefined);
  return docker.parse({ ...network.docker, ...Object.fromEntries(given) });
};

/** The Docker network of each runner; undefined: none. */
const dockerPlan = ({ enabled, networkName, range }: Docker, layouts: Layout[]): DockerPlan | undefined =>
  enabled === "off" || !canUseDocker(layouts)
    ? undefined
    : { name: networkName, required: enabled === "on", share: shareOf(range) };

/** The ranges of a runner's subnets from which Docker picks by itself, one for each family; none if it is off. */
export const dockerRanges = ({ enabled, range }: Docker, layouts: Layout[], runnerId: number): DockerRange[] =>
  enabled === "off" || !canUseDocker(layouts)
    ? []
    : layouts.map((layout) => dockerRange(layout, runnerLayout(layout, runnerId), shareOf(range)));

export function* dockerErrors({ enabled, range }: Docker, layouts: Layout[]): Generator<InputError> {
  if (enabled === "off") return;
  const largest = Math.min(...layouts.map(maxDockerShare));
  if (shareOf(range) > largest) {
    yield { property: "docker.range", reason: `must be at least 1/${largest} of a runner's subnet, not ${range}` };
  }
  if (enabled === "on" && !canUseDocker(layouts)) {
    yield {
      property: "docker.enabled",
      reason: "cannot be on: a Docker network needs IPv4, and at most 64 SUBNET_BITS in IPv6",
    };
  }
}

// Access of workloads to hosts

const HOST_PORTS = /^(tcp|udp|sctp)\/(\d{1,5}(?:-\d{1,5})?)$/;

/** Parses `tcp/22` or `udp/6000-6100`; undefined: invalid. */
function parseHostPorts(text: string): HostPort | undefined {
  const [, protocol, range = ""] = HOST_PORTS.exec(text) ?? [];
  const numbers = protocol === undefined ? undefined : parseNumberRange(range);
  if (!numbers || numbers.first < 1n || numbers.last > 65535n) return undefined;
  return { protocol: protocol as HostPort["protocol"], first: Number(numbers.first), last: Number(numbers.last) };
}

const formatHostPorts = ({ protocol, first, last }: HostPort): string =>
  `${protocol}/${first === last ? first : `${first}-${last}`}`;

/** Normalized, so that equivalent texts are no change. */
export const hostAccess = z.union(
  [
    z.enum(["ping", "all"]),
    z
      .array(
        z.string().refine((text) => parseHostPorts(text) !== undefined, {
          message: "must be PROTOCOL/PORT or PROTOCOL/FIRST-LAST, with tcp, udp or sctp and ports from 1 to 65535",
          abort: true,
        }),
      )
      .transform((texts) => [...new Set(texts.map((text) => formatHostPorts(parseHostPorts(text)!)))].sort()),
  ],
  "must be ping, all, or a list of ports such as tcp/22",
);

/** States of releases before this setting have none. */
const parseHostAccess = (given: z.output<typeof hostAccess> | undefined = "ping"): HostAccess =>
  typeof given === "string" ? given : given.map((text) => parseHostPorts(text)!);

// The network

export const tunnel = z.enum(Object.keys(TUNNELS) as [TunnelName, ...TunnelName[]]).meta({ id: "Tunnel" });

export const topology = z.enum(TOPOLOGIES).meta({ id: "Topology" });

export const keyGeneration = z.number().int().min(0).max(1_000_000);

export const networkSettings = z
  .strictObject({
    networkName: resourceName.describe("Name of the network, unique in the store. Default: the resource's name."),
    subnets: layouts
      .default("10.128.0.0/12/6/14")
      .describe(
        "The range and how it is divided into subnets, `BASE/PREFIX/NODE_BITS/SUBNET_BITS`: the bits add up to 32, or to 128 for IPv6. A pair of one IPv4 and one IPv6 layout makes a dual-stack network.",
      ),
    hubUnderlayIp: ipAddress
      .optional()
      .describe("The hub's address on the underlay. Default: the one at which SSH reaches it."),
    tunnel: tunnel
      .default("vxlan")
      .describe(
        "How packets pass between hub and runners: `vxlan`, which anyone on the way can read, or `wireguard`, which is encrypted and needs `wg` on the hosts. A change loses no packets: each runner has both until data has passed by the new one.",
      ),
    topology: topology
      .default("hub")
      .describe(
        "`hub`: packets between runners pass the hub. `mesh`: runners send to each other directly, each with all others as peers, and the hub carries what has no direct route. A change loses no packets.",
      ),
    wireguardPort: z
      .number()
      .int()
      .min(1)
      .max(65534)
      .default(51820)
      .describe(
        "UDP port of hub and runners with `tunnel: wireguard`, and the next one for odd values of `keyGeneration`; with `topology: mesh` runners also use the two after them. Networks that share a host need different ones. After a change each runner is without its tunnel until it has changed, too.",
      ),
    keyGeneration: keyGeneration
      .default(0)
      .describe(
        "Raise it by one to give hub and runners new keys with `tunnel: wireguard`. No packets are lost: each runner has both keys until data has passed with the new ones. Not with `topology: mesh`.",
      ),
    hubInterface: deviceName.default("overlay-hub").describe("Device on the hub that carries its own overlay address."),
    vniBase: z
      .number()
      .int()
      .min(0)
      .max(2 ** 24 - 2)
      .default(100)
      .describe(
        "VNI of runner i is vniBase + i. A change loses no packets, unless the new VNIs overlap with the old ones: a temporary tunnel carries them meanwhile.",
      ),
    vxlanPort: z
      .number()
      .int()
      .min(1)
      .max(65535)
      .default(4789)
      .describe(
        "UDP port of the tunnels, and the next one between runners with `topology: mesh`. A change loses no packets: a temporary tunnel carries them meanwhile. Both ports must be open.",
      ),
    mtu: z
      .union([z.literal("auto"), z.number().int().min(576).max(65000)])
      .default("auto")
      .describe(
        "MTU inside the overlay. `auto`: that of the underlay minus 50, or 70 over IPv6; with `tunnel: wireguard` 60, or 80.",
      ),
    masquerade: z
      .boolean()
      .default(true)
      .describe("Masquerade traffic that leaves the overlay with the runner's address."),
    devicePrefix: devicePrefix
      .default("ovl")
      .describe("Tunnel devices are named by this and the runner's id in base 36."),
    bridgeName: deviceName.default("overlay-br").describe("Bridge on each runner, the gateway of its subnet."),
    persist: z
      .boolean()
      .default(true)
      .describe("Hosts restore their part of the overlay after a boot, with a systemd unit."),
    docker: docker.prefault({}).describe("Docker on the runners."),
    hostAccess: hostAccess
      .default("ping")
      .describe(
        "What workloads may reach on the hub and the runners themselves: `ping`, `all`, or pings and these ports, such as `tcp/22` or `udp/6000-6100`.",
      ),
    verify: z.boolean().default(true).describe("After a change, ping the hub from the runner, with full-size packets."),
  })
  .meta({ id: "NetworkSettings" });

export type NetworkSettings = z.output<typeof networkSettings>;

export const storedNetwork: StoredSettings<typeof networkSettings> = {
  schema: networkSettings,
  poolOf: ({ networkName }) => networkPool(networkName),
};

/** The host of the hub, as stored with the network's pool; undefined: not known yet. */
export function readHub({ data }: PoolSpec): string | undefined {
  const parsed = z.object({ hub: hostIdText }).safeParse(data);
  return parsed.success ? parsed.data.hub : undefined;
}

export const layoutsOf = (subnets: string | string[]): Layout[] => [subnets].flat().map(parseLayout);

export function toNetwork({ docker, hostAccess, ...settings }: NetworkSettings): Network {
  const layouts = layoutsOf(settings.subnets);
  const plan = dockerPlan(dockerFor({ docker }), layouts);
  const access = parseHostAccess(hostAccess);
  return { ...settings, layouts, hostAccess: access, ...(plan && { docker: plan }) };
}

/** Hosts of a network with WireGuard have a key, and a UDP port that no other network on the host can have. */
export const keyFileOf = (network: TunnelSettings & Pick<NetworkSettings, "networkName">): { keyFile?: string } =>
  network.tunnel === "wireguard" ? { keyFile: keyPath(network.networkName, slotOf(network)) } : {};

/** Networks on one host can share a port of VXLAN. `isRunner`: the hub has no port of the mesh. */
export const portNames = (
  { tunnel, topology, wireguardPort }: NetworkSettings,
  host: string,
  isRunner = false,
): string[] =>
  (tunnel === "wireguard" ? [0, 1, ...(topology === "mesh" && isRunner ? [2, 3] : [])] : []).map(
    (offset) => `host/${host}/udp/${wireguardPort + offset}`,
  );

/** Probes of direct routes are IPv6 packets, and the port of the mesh follows from that of the tunnel. */
export function* meshErrors({ topology, tunnel, mtu, ...ports }: NetworkSettings): Generator<InputError> {
  if (topology !== "mesh") return;
  const [property, further] = tunnel === "vxlan" ? (["vxlanPort", 1] as const) : (["wireguardPort", 3] as const);
  if (ports[property] + further > 65535)
    yield {
      property,
      reason: `must be at most ${65535 - further} with topology mesh, which uses the next ${further === 1 ? "port" : "three"}, too`,
    };
  if (typeof mtu === "number" && mtu < 1280)
    yield { property: "mtu", reason: "must be at least 1280 with topology mesh" };
}

type TunnelSettings = Pick<NetworkSettings, "tunnel"> & { keyGeneration?: number; vniBase?: number };

/** What the devices of a mesh have from the settings. */
export const meshEnds = ({ tunnel, keyGeneration, vniBase, vxlanPort, wireguardPort }: NetworkSettings) =>
  tunnel === "vxlan" ? { tunnel, vniBase, vxlanPort } : { tunnel, keyGeneration, wireguardPort };

/** What makes a tunnel another one, beside which it can stand. */
export const tunnelChoice = ({ tunnel, keyGeneration = 0, vniBase }: TunnelSettings): TunnelChoice =>
  tunnel === "wireguard" ? { tunnel, keyGeneration } : { tunnel, ...(vniBase !== undefined && { vniBase }) };

export const tunnelEndOf = (network: NetworkSettings, { underlayIp, publicKey }: Underlay): TunnelEnd => ({
  ...tunnelChoice(network),
  underlayIp,
  ...(network.tunnel === "wireguard"
    ? { port: portOf(network), ...(publicKey && { publicKey }) }
    : { port: network.vxlanPort }),
});

export const maxRunnersOf = (layouts: Layout[]): number => Math.min(...layouts.map((l) => l.maxRunners));

export function* mtuErrors(mtu: number | "auto" | undefined, layouts: Layout[]): Generator<InputError> {
  if (typeof mtu !== "number" || mtu >= 1280 || layouts.every(({ family }) => family === 4)) return;
  yield { property: "mtu", reason: `MTU_TOO_SMALL: IPv6 needs at least 1280, not ${mtu}.` };
}
