import { z } from "zod";
import { exactNumber, overlaps, parseIp, tryParseIp } from "../addressing/ip";
import { isInterfaceName, runnerLayout, temporaryVni, withoutDockerRange } from "../addressing/layout";
import { hostId } from "../host/connection";
import type { ExistingLease, Json, PoolSpec, ValueRange } from "../ipam/types";
import type { Container } from "../network/model/facts";
import type { Link } from "../network/model/items";
import { effectiveMtu, type Network, planRunner, planTunnel } from "../network/plan/hub";
import { planProbe, renderPeerProbes, renderProbe } from "../network/plan/probes";
import { renderAnnounceHub } from "../network/plan/tunnel-change";
import { TUNNELS, tunnelOf } from "../network/plan/tunnels";
import { temporaryVxlan } from "../network/plan/tunnels/temporary-vxlan";
import { parseDeviceName } from "../network/plan/tunnels/wireguard";
import { containerOwner } from "../owner";
import { addressPool, networkPool } from "../pool-names";
import {
  defineResource,
  type InputError,
  parseSettings,
  type StoredSettings,
  type TunnelChange,
  type Underlays,
} from "../resource";
import { cidrBlock, connection, deviceName, hasSameTexts, ipAddress, labels, plainName, resourceName } from "./inputs";
import {
  dockerErrors,
  dockerFor,
  dockerNetworkName,
  dockerOverride,
  dockerRanges,
  keyFileOf,
  keyGeneration,
  layoutsOf,
  maxRunnersOf,
  meshEnds,
  mtuErrors,
  type NetworkSettings,
  networkSettings,
  portNames,
  storedNetwork,
  toNetwork,
  tunnelEndOf,
} from "./network-settings";

/** What resources with an address on a runner need: passed by reference, or read from the pool by the name `NETWORK/RUNNER`. */
export const runnerSettings = z
  .object({
    networkName: resourceName.describe("Name of the runner's network."),
    runnerName: resourceName.describe("Name of the runner."),
    subnets: z.array(cidrBlock).min(1).max(2).describe("The ranges of its workloads, one for each address family."),
    dockerNetwork: z
      .string()
      .refine(
        (name) => name === "" || dockerNetworkName.safeParse(name).success,
        "must be the name of a Docker network",
      )
      .describe("Name of the Docker network on the runner; empty when Docker is off."),
  })
  .meta({ id: "RunnerSettings" });

export type RunnerSettings = z.output<typeof runnerSettings>;

export const storedRunner: StoredSettings<typeof runnerSettings> = {
  schema: runnerSettings,
  poolOf: ({ networkName, runnerName }) => addressPool(networkName, runnerName),
};

/** A name of the lease that is used by `by`. Names are unique, so a user has one address on a network. */
export const userLeaseName = (network: string, by: string): string => `user/${network}/${by}`;

const inputs = z.strictObject({
  network: networkSettings.describe(
    "The network that it joins: an OverlayNetwork, or the name of one in another stack.",
  ),
  runnerName: resourceName.describe("Name of the runner, unique in the network. Default: the resource's name."),
  connection: connection.describe("How SSH reaches the runner."),
  hubConnection: connection.describe("How SSH reaches the hub. Default: the network's, where that is a resource."),
  underlayIp: ipAddress
    .optional()
    .describe("The runner's address on the underlay. Default: the one that it uses towards the hub."),
  runnerId: z
    .number()
    .int()
    .min(1)
    .optional()
    .describe(
      "The id to get. Default: the one that it had before, else the lowest free one, in the order of the program.",
    ),
  runnerDevice: deviceName
    .optional()
    .describe("Name of the tunnel device on the runner. Default: the same as on the hub."),
  mtu: z.number().int().min(576).max(65000).optional().describe("MTU for this runner alone. Default: the network's."),
  masquerade: z.boolean().optional().describe("For this runner alone. Default: the network's."),
  keyGeneration: keyGeneration
    .optional()
    .describe("Raise it by one to give this runner alone a new key. Default: the network's."),
  docker: dockerOverride.optional().describe("Docker on this runner. Default: the network's."),
  cordon: z
    .boolean()
    .default(false)
    .describe("New reservations on any runner of the network go to other runners. Those that it has stay."),
  adopt: z
    .boolean()
    .default(false)
    .describe("Adopt existing devices that match the desired state but are in no record."),
  labels,
});

const computed = z.object({
  networkName: z.string().describe("Name of its network."),
  runnerId: z.number().describe("Its number in the network."),
  subnet: z.string().describe("The range of its workloads."),
  gateway: z.string().describe("Address of its bridge, the gateway of its workloads."),
  hubIp: z.string().describe("The hub's address in this subnet."),
  firstIp: z.string().describe("First address for workloads."),
  lastIp: z.string().describe("Last address for workloads; Docker's own range, if there is one, begins after it."),
  usableIps: z
    .union([z.number(), z.string()])
    .describe("How many addresses workloads can have, without Docker's own range; a string past 2^53."),
  vni: z.number().describe("Number of its tunnel."),
  hubDevice: z.string().describe("Tunnel device on the hub."),
  runnerDevice: z.string().describe("Tunnel device on the runner."),
  bridge: z.string().describe("Bridge on the runner."),
  dockerNetwork: z.string().describe("The Docker network for its containers; empty where Docker is off."),
  dockerRange: z
    .string()
    .optional()
    .describe("The range from which Docker picks addresses; none of them is in the pool."),
  dockerRange6: z.string().optional().describe("The same in IPv6, in a dual-stack network."),
  subnets: z.array(z.string()).describe("The ranges of its workloads, one for each address family of the network."),
  subnet6: z.string().optional().describe("IPv6 range in a dual-stack network."),
  gateway6: z.string().optional().describe("IPv6 gateway in a dual-stack network."),
  firstIp6: z.string().optional().describe("First IPv6 address for workloads."),
  lastIp6: z.string().optional().describe("Last IPv6 address for workloads."),
});

/** `temporary`: see tunnelChanges. */
type RunnerProps = z.output<typeof inputs> & z.output<typeof computed> & Pick<Network, "temporary">;

/** Inputs by which a runner differs from its network. They are stored with the pool of its addresses, so that it can be described by name. */
const overrides = z.object(inputs.pick({ runnerDevice: true, mtu: true, masquerade: true, docker: true }).shape);

type RunnerOverrides = z.output<typeof overrides>;

/** None for runners that were last changed by an earlier release. */
export function readOverrides({ data }: PoolSpec): RunnerOverrides {
  const parsed = z.object({ overrides }).safeParse(data);
  return parsed.success ? parsed.data.overrides : {};
}

/** Whether new reservations on any runner avoid the runner with this pool of addresses. */
export const isCordoned = ({ data }: PoolSpec): boolean =>
  z.object({ cordon: z.literal(true) }).safeParse(data).success;

/** The network with the values that this runner overrides. */
const networkFor = ({
  network,
  mtu,
  masquerade,
  keyGeneration,
  docker,
  temporary,
}: z.output<typeof inputs> & Pick<Network, "temporary">): Network => ({
  ...toNetwork({
    ...withKeys({ network, keyGeneration }),
    mtu: mtu ?? network.mtu,
    masquerade: masquerade ?? network.masquerade,
    docker: dockerFor(network, docker),
  }),
  hubMtu: network.mtu,
  ...(temporary && { temporary }),
});

/** The network with the keys of this runner. */
const withKeys = ({
  network,
  keyGeneration = network.keyGeneration,
}: Pick<z.output<typeof inputs>, "network" | "keyGeneration">): NetworkSettings => ({ ...network, keyGeneration });

/** As the runner had it with the tunnel that leads to this device on the hub. */
function withTunnel(props: RunnerProps, { name, vxlan, wireguard }: Link): RunnerProps {
  const { keyGeneration = props.network.keyGeneration, runnerId } = props;
  const slot = parseDeviceName(name)?.slot ?? 0;
  const former = vxlan
    ? { tunnel: "vxlan" as const, vniBase: vxlan.vni - runnerId, vxlanPort: vxlan.port, keyGeneration }
    : { tunnel: "wireguard" as const, wireguardPort: wireguard!.port - slot, keyGeneration: slot };
  const network = { ...props.network, ...former };
  const runnerDevice = vxlan && props.network.tunnel === "vxlan" ? props.runnerDevice : hubDeviceOf(network, runnerId);
  return { ...props, network, keyGeneration: network.keyGeneration, runnerDevice };
}

export const runnerSubnet = defineResource({
  type: "RunnerSubnet",
  description: "A host on an overlay network, with a subnet of its own behind a bridge and a tunnel to the hub.",
  example: `const runner = new overlay.RunnerSubnet("node1", {
  network, // in another stack: "training", with hubConnection
  connection: { host: "10.0.0.11", privateKey },
  cordon: false, // true: new reservations on any runner go to other runners
});`,
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    host: z.string().describe("The runner, as SSH reaches it."),
    port: z.number().optional().describe("Port of its SSH server, if `connection` names one."),
    user: z.string().optional().describe("User to log in as, if `connection` names one."),
    jumpHost: z.string().optional().describe("Jump host through which it is reached."),
    hubHost: z.string().describe("The hub, as SSH reaches it."),
    effectiveUnderlayIp: z.string().describe("Its address on the underlay."),
    effectiveMtu: z.number().describe("MTU for its workloads."),
    publicKey: z.string().optional().describe("Its public key, in a network with `tunnel: wireguard`."),
    lastSeen: z.string().describe("When it was last configured, RFC 3339."),
  }),
  nameInput: "runnerName",
  secrets: ["connection", "hubConnection"],
  shownParts: {
    connection: { host: "host", port: "port", user: "user", jumpHost: "jumpHost" },
    hubConnection: { host: "hubHost" },
  },
  inOrder: { by: "network", unless: "runnerId" },
  references: {
    network: {
      to: "OverlayNetwork",
      passes: Object.keys(networkSettings.shape),
      fills: { hubConnection: "hubConnection" },
      pool: networkPool,
      stored: storedNetwork,
    },
  },
  replaceOn: [
    "network.networkName",
    "network.subnets",
    "network.devicePrefix",
    "network.bridgeName",
    "runnerName",
    "runnerId",
  ],
  mayBeUnknown: ["connection", "hubConnection", "underlayIp", "mtu", "labels", "network.hubUnderlayIp", "network.mtu"],

  id: ({ network, runnerName }) => `${network.networkName}/${runnerName}`,
  result: ({ subnets }) => subnets.join(", "),
  request: ({ network, runnerName, runnerId, connection, labels }) => ({
    pool: networkPool(network.networkName),
    ...(runnerId !== undefined && { values: [{ first: BigInt(runnerId), last: BigInt(runnerId) }] }),
    names: [
      addressPool(network.networkName, runnerName),
      ...(connection
        ? [
            `host/${hostId(connection)}/link/${network.bridgeName}`,
            `host/${hostId(connection)}/devices/${network.devicePrefix}`,
            ...portNames(network, hostId(connection), true),
          ]
        : []),
    ],
    ...(labels && { labels }),
  }),
  childPool: (inputs, ranges) => addressPoolSpec(inputs.network, inputs.runnerName, Number(ranges[0]!.first), inputs),
  values: (inputs, ranges) => runnerValues(withKeys(inputs), inputs, Number(ranges[0]!.first)),
  rangesFromProps: ({ runnerId }) => [{ first: BigInt(runnerId), last: BigInt(runnerId) }],

  sourcePool: {
    isReplacedInRun: ({ network }, stored) =>
      !hasSameTexts(parseSettings(storedNetwork, stored).subnets, network.subnets),
  },
  host: {
    targets: ({ network, connection, hubConnection, underlayIp, keyGeneration }) => {
      const keyFile = keyFileOf(withKeys({ network, keyGeneration }));
      return [
        { role: "hub", connection: hubConnection, underlayIp: network.hubUnderlayIp, ...keyFile },
        { role: "runner", connection, underlayIp, toward: "hub", ...keyFile },
      ];
    },
    plan: (props, { hub, runner }, peers) => {
      const network = networkFor(props);
      const others = props.network.topology === "mesh" ? peers : undefined;
      return {
        hub: planTunnel(network, props.runnerId, hub!, runner!),
        runner: planRunner(network, props.runnerId, props.runnerDevice, hub!, runner!, others),
      };
    },
    mesh: {
      pool: ({ network }) => (network.topology === "mesh" ? networkPool(network.networkName) : undefined),
      ends: (props) => meshEnds(withKeys(props)),
      probe: (props, { hub, runner }, peers) =>
        renderPeerProbes(networkFor(props), effectiveMtu(networkFor(props), hub!, runner!), peers),
    },
    unaffectedBy: ["connection", "hubConnection", "labels", "adopt", "cordon", "network.verify"],
    persist: ({ network }) => network.persist,
    tunnelEnd: (props, { runner }) => tunnelEndOf(withKeys(props), runner!),
    tunnelChanges,
    report: (props, { hub, runner }) => ({
      effectiveUnderlayIp: runner!.underlayIp,
      effectiveMtu: effectiveMtu(networkFor(props), hub!, runner!),
      publicKey: runner!.publicKey, // also if it is gone
    }),
    containerLeases: (props, containers) =>
      containerLeases(addressPoolSpec(props.network, props.runnerName, props.runnerId, props), containers),
    probe: (props, { hub, runner }, neighbours, peers) => {
      const network = networkFor(props);
      const mtu = effectiveMtu(network, hub!, runner!);
      return props.network.verify ? planProbe(network, mtu, neighbours, peers) : undefined;
    },
  },
});

const hubDeviceOf = (network: NetworkSettings, runnerId: number): string =>
  TUNNELS[network.tunnel].hubDevice(network, runnerId);

/** Two ends of VXLAN have one device name, so a temporary tunnel is between them. */
function tunnelChanges(props: RunnerProps, recorded: Link[], underlays: Underlays): TunnelChange<RunnerProps>[] {
  const network = networkFor(props);
  const planned = planTunnel(network, props.runnerId, underlays.hub!, underlays.runner!);
  const others = recorded.filter((link) => !planned.some((item) => item.kind === "link" && isSameTunnel(item, link)));
  const temporaryName = temporaryVxlan.hubDevice(network, props.runnerId);
  const [left] = others.filter(({ name }) => name === temporaryName);
  const [former] = others.filter((link) => link !== left);
  const change = (from: RunnerProps, to: RunnerProps) => [planTunnelChange(from, to, underlays)];
  if (!left && !(former?.vxlan && network.tunnel === "vxlan" && isInterfaceName(temporaryName)))
    return former ? change(withTunnel(props, former), props) : [];
  const { vni = temporaryVni(network.networkName, props.runnerId), port = network.vxlanPort } = left?.vxlan ?? {};
  const between = { ...props, temporary: { vni, port } };
  return [...(former ? change(withTunnel(props, former), between) : []), ...change(between, props)];
}

const isSameTunnel = (one: Link, other: Link): boolean =>
  one.name === other.name && one.vxlan?.vni === other.vxlan?.vni && one.vxlan?.port === other.vxlan?.port;

/** It joins the mesh again once its tunnel has changed. */
const withoutMesh = (props: RunnerProps): RunnerProps => ({ ...props, network: { ...props.network, topology: "hub" } });

function planTunnelChange(
  former: RunnerProps,
  target: RunnerProps,
  { hub, runner }: Underlays,
): TunnelChange<RunnerProps> {
  const network = networkFor(target);
  const both = [networkFor(former), network];
  const mtu = Math.min(...both.map((each) => effectiveMtu(each, hub!, runner!)));
  const transitions = both.map((each) => tunnelOf(each).planTransition(each, target.runnerId, hub!, runner!));
  const announce = renderAnnounceHub(network, target.runnerId);
  return {
    former: withoutMesh(former),
    target: withoutMesh(target),
    transition: { hub: transitions.flatMap((each) => each.hub), runner: transitions.flatMap((each) => each.runner) },
    probe: renderProbe(network, mtu),
    ...(announce !== undefined && { announce }),
  };
}

/** The computed values of a runner with this id. */
export function runnerValues(
  network: NetworkSettings,
  { docker: override, runnerDevice }: RunnerOverrides,
  runnerId: number,
): z.output<typeof computed> {
  const layouts = layoutsOf(network.subnets);
  const docker = dockerFor(network, override);
  const ranges = dockerRanges(docker, layouts, runnerId);
  const [main, second] = layouts.map((layout, i) => withoutDockerRange(runnerLayout(layout, runnerId), ranges[i]));
  const usable = main!.usable.reduce((sum, { first, last }) => sum + last - first + 1n, 0n);
  const hubDevice = hubDeviceOf(network, runnerId);
  return {
    networkName: network.networkName,
    runnerId,
    subnet: main!.subnet,
    gateway: main!.gateway,
    hubIp: main!.hubIp,
    firstIp: main!.firstIp,
    lastIp: main!.lastIp,
    usableIps: exactNumber(usable),
    vni: network.vniBase + runnerId,
    hubDevice,
    runnerDevice: runnerDevice ?? hubDevice,
    bridge: network.bridgeName,
    dockerNetwork: ranges[0] ? docker.networkName : "",
    ...(ranges[0] && { dockerRange: ranges[0].cidr }),
    ...(ranges[1] && { dockerRange6: ranges[1].cidr }),
    subnets: [main!.subnet, ...(second ? [second.subnet] : [])],
    ...(second && {
      subnet6: second.subnet,
      gateway6: second.gateway,
      firstIp6: second.firstIp,
      lastIp6: second.lastIp,
    }),
  };
}

function* crossFieldErrors({
  network,
  runnerId,
  runnerDevice,
  connection,
  hubConnection,
  mtu,
  docker,
  keyGeneration = network.keyGeneration,
}: z.output<typeof inputs>): Generator<InputError> {
  if (network.topology === "mesh" && keyGeneration !== network.keyGeneration) {
    yield {
      property: "keyGeneration",
      reason: `must be that of the network (${network.keyGeneration}) with topology mesh`,
    };
  }
  if (network.tunnel === "wireguard" && runnerDevice !== undefined && runnerDevice !== hubDeviceOf(network, 1)) {
    yield {
      property: "runnerDevice",
      reason: `cannot be chosen with tunnel wireguard: it is ${hubDeviceOf(network, 1)}`,
    };
  }
  const last = maxRunnersOf(layoutsOf(network.subnets));
  if (runnerId !== undefined && runnerId > last) {
    yield { property: "runnerId", reason: `must be 1 to ${last} in network ${network.networkName}` };
  }
  yield* mtuErrors(mtu, layoutsOf(network.subnets));
  yield* dockerErrors(dockerFor(network, docker), layoutsOf(network.subnets));
  if (hostId(connection) === hostId(hubConnection)) {
    const what = "the network's hub; a runner must be another host";
    yield { property: "connection.host", reason: `is ${connection.host}, ${what}`, plainReason: `is ${what}` };
  }
}

/** The pool of a runner's addresses. The range from which Docker picks by itself is reserved in it. */
export function addressPoolSpec(
  network: NetworkSettings,
  runnerName: string,
  runnerId: number,
  { cordon, ...given }: RunnerOverrides & { cordon?: boolean | undefined } = {},
): PoolSpec {
  const docker = dockerFor(network, given.docker);
  const overrides = storableOverrides(given, hubDeviceOf(network, runnerId));
  const cut = layoutsOf(network.subnets);
  const layouts = cut.map((layout) => runnerLayout(layout, runnerId));
  const ranges = dockerRanges(docker, cut, runnerId);
  const settings: RunnerSettings = {
    networkName: network.networkName,
    runnerName,
    subnets: layouts.map(({ subnet }) => subnet),
    dockerNetwork: ranges.length > 0 ? docker.networkName : "",
  };
  return {
    name: addressPool(network.networkName, runnerName),
    kind: "address",
    ranges: layouts.flatMap(({ usable }) => usable),
    ...(ranges.length > 0 && { reserved: ranges.map(({ range }) => range) }),
    allocation: "hashed",
    data: { settings, ...(Object.keys(overrides).length > 0 && { overrides }), ...(cordon && { cordon }) },
  };
}

/** Without those that are not given. The state of a runner always has a device: the default one is no override. */
function storableOverrides(
  { runnerDevice, mtu, masquerade, docker }: RunnerOverrides,
  defaultDevice: string,
): Record<string, Json> {
  const device = runnerDevice === defaultDevice ? {} : { runnerDevice };
  return JSON.parse(JSON.stringify({ ...device, mtu, masquerade, docker })) as Record<string, Json>;
}

/** Leases for the addresses of containers outside the range from which Docker picks by itself. */
export function containerLeases(addresses: PoolSpec, containers: Container[]): ExistingLease[] {
  const [, network, runner] = addresses.name.split("/") as [string, string, string];
  const isOurs = (address: ValueRange): boolean =>
    addresses.ranges.some((range) => overlaps(range, address)) &&
    !addresses.reserved?.some((range) => overlaps(range, address));
  return containers.flatMap(({ name, addresses: has }) => {
    if (!plainName.safeParse(name).success) return [];
    const values = has
      .filter((text) => tryParseIp(text) !== undefined)
      .map(parseIp)
      .map((point) => ({ first: point, last: point }))
      .filter(isOurs);
    const owner = containerOwner(network, runner, name);
    return values.length > 0 ? [{ pool: addresses.name, owner, type: "IPReservation", values, usedBy: name }] : [];
  });
}
