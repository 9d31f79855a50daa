import { z } from "zod";
import { exactNumber } from "../addressing/ip";
import { type Layout, parseLayout } from "../addressing/layout";
import { OverlayError } from "../errors";
import { machineKey } from "../host/connection";
import { effectiveMtu, type Network, planHub } from "../network/plan/hub";
import type { Json, PoolSpec } from "../pool/types";
import { DEFAULT_SPACE, NETWORKS, networkPool } from "../pool-names";
import { defineResource, type InputError, parseSettings, type StoredSettings } from "../resource";
import { docker, dockerErrors, dockerFor, dockerPlan } from "./docker";
import { hostAccess, parseHostAccess } from "./host-access";
import { address, connection, deviceName, devicePrefix, labels, layouts, machineName, resourceName } from "./inputs";

/** The settings of a network that its runners need, too; passed by reference, or read from the pool by name. */
export const networkSettings = z
  .strictObject({
    networkName: resourceName.describe("Name of the network, unique in the store. Default: the resource's name."),
    subnets: layouts
      .default("10.128.0.0/12/6/14")
      .describe(
        "How the range is cut, `BASE/PREFIX/NODE_BITS/SUBNET_BITS`: the bits add up to 32, or to 128 for IPv6. A pair of one IPv4 and one IPv6 layout makes a dual-stack network.",
      ),
    hubUnderlayIp: address
      .optional()
      .describe("The hub's address on the network below. Default: the one at which SSH reaches it."),
    vniBase: z
      .number()
      .int()
      .min(0)
      .max(2 ** 24 - 2)
      .default(100)
      .describe("VNI of runner i is vniBase + i."),
    vxlanPort: z.number().int().min(1).max(65535).default(4789).describe("UDP port of the tunnels."),
    mtu: z
      .union([z.literal("auto"), z.number().int().min(576).max(65000)])
      .default("auto")
      .describe("MTU inside the overlay. `auto`: that of the network below minus 50, or 70 over IPv6."),
    masquerade: z
      .boolean()
      .default(true)
      .describe("Hide overlay addresses behind the runner's for traffic that leaves the overlay."),
    devicePrefix: devicePrefix
      .default("vxkr")
      .describe("Tunnel devices are named by this and the runner's id in base 36."),
    bridgeName: deviceName.default("kohaku-overlay").describe("Bridge on each runner, the gateway of its subnet."),
    persist: z
      .boolean()
      .default(true)
      .describe("Machines put their part of the overlay back by themselves after a boot (a systemd unit)."),
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
  const parsed = z.object({ hub: machineName }).safeParse(data);
  return parsed.success ? parsed.data.hub : undefined;
}

export const layoutsOf = (subnets: NetworkSettings["subnets"]): Layout[] =>
  (typeof subnets === "string" ? [subnets] : subnets).map(parseLayout);

export function toNetwork({ docker, hostAccess, ...settings }: NetworkSettings, hubInterface = ""): Network {
  const layouts = layoutsOf(settings.subnets);
  const plan = dockerPlan(dockerFor({ docker }), layouts);
  const access = parseHostAccess(hostAccess);
  return { ...settings, layouts, hubInterface, hostAccess: access, ...(plan && { docker: plan }) };
}

export const maxRunnersOf = (layouts: Layout[]): number => Math.min(...layouts.map((l) => l.maxRunners));

const inputs = networkSettings.extend({
  hubConnection: connection.describe("How SSH reaches the hub."),
  hubInterface: deviceName.default("kohaku-host").describe("Device on the hub that carries its own overlay address."),
  adopt: z.boolean().default(false).describe("Take over devices that already are as wanted but are in no record."),
  onExhausted: z
    .enum(["fail", "reclaimInactive"])
    .meta({ id: "OnExhausted" })
    .default("fail")
    .describe("When all runner ids are taken: fail, or take the one that was not seen for the longest time."),
  inactiveAfter: z
    .number()
    .int()
    .min(60)
    .default(604800)
    .describe("Seconds without a sign of life after which a runner id may be reclaimed."),
  labels,
});

const computed = z.object({
  cidr: z.string().describe("The whole range of the overlay."),
  hubIp: z.string().describe("The hub's own overlay address."),
  maxRunners: z.number().describe("How many runners it has room for."),
  ipsPerRunner: z
    .union([z.number(), z.string()])
    .describe("Addresses for workloads on each runner; a string past 2^53."),
  runnerPrefix: z.number().describe("Prefix length of a runner's subnet."),
  cidr6: z.string().optional().describe("The IPv6 range of a dual-stack network."),
  hubIp6: z.string().optional().describe("The hub's IPv6 overlay address in a dual-stack network."),
});

export const overlayNetwork = defineResource({
  type: "OverlayNetwork",
  description:
    "A VXLAN overlay: a range of addresses, cut into one subnet per runner, with a hub that routes between them.",
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    effectiveUnderlayIp: z.string().describe("The hub's address on the network below."),
    effectiveMtu: z.number().describe("MTU of the tunnels, as far as the hub decides it."),
  }),
  nameInput: "networkName",
  secrets: ["hubConnection"],
  replaceOn: ["networkName", "subnets", "devicePrefix", "bridgeName", "hubInterface"],
  mayBeUnknown: ["hubConnection", "hubUnderlayIp", "mtu", "labels"],

  id: ({ networkName }) => networkName,
  request: (inputs) => {
    const { networkName, hubConnection, labels } = inputs;
    const layouts = layoutsOf(inputs.subnets);
    const host = hubConnection && `host/${machineKey(hubConnection)}`;
    return {
      pool: DEFAULT_SPACE,
      want: layouts.map(({ extent }) => extent),
      names: [
        networkPool(networkName),
        ...(host ? [`${host}/devices/${inputs.devicePrefix}`, `${host}/link/${inputs.hubInterface}`] : []),
      ],
      ...(labels && { labels }),
    };
  },
  opens: (inputs) => ({
    name: networkPool(inputs.networkName),
    kind: "id",
    extents: [{ first: 1n, last: BigInt(maxRunnersOf(layoutsOf(inputs.subnets))) }],
    allocation: "lowest",
    ...(inputs.onExhausted === "reclaimInactive" && { reclaimAfter: inputs.inactiveAfter }),
    data: {
      settings: pickSettings(inputs) as unknown as Json,
      hub: inputs.hubConnection ? machineKey(inputs.hubConnection) : null,
    },
  }),
  values: ({ subnets }) => {
    const layouts = layoutsOf(subnets);
    const [first, second] = layouts as [Layout, Layout?];
    return {
      cidr: first.cidr,
      hubIp: first.hubIp,
      maxRunners: maxRunnersOf(layouts),
      ipsPerRunner: exactNumber(first.ipsPerRunner),
      runnerPrefix: first.runnerPrefix,
      ...(second && { cidr6: second.cidr, hubIp6: second.hubIp }),
    };
  },
  extentsFromProps: ({ subnets }) => layoutsOf(subnets).map(({ extent }) => extent),
  validate: async (props, { pool, replacedPool }) => {
    const mine = { first: props.vniBase + 1, last: props.vniBase + props.maxRunners };
    const others = (await pool.pools(NETWORKS)).filter(({ name }) => name !== replacedPool);
    for (const other of others) {
      const [hub, settings] = [readHub(other), parseSettings(storedNetwork, other)];
      const theirs = settings.vniBase + maxRunnersOf(layoutsOf(settings.subnets));
      if (
        settings.networkName === props.networkName ||
        !hub ||
        !props.hubConnection ||
        hub !== machineKey(props.hubConnection)
      )
        continue;
      if (settings.vxlanPort !== props.vxlanPort || mine.first > theirs || settings.vniBase + 1 > mine.last) continue;
      throw new OverlayError(
        "NETWORK_EXISTS",
        `Networks ${props.networkName} (VNI ${mine.first} to ${mine.last}) and ${settings.networkName} (VNI ${settings.vniBase + 1} to ${theirs}) would meet on hub ${hub}, UDP port ${props.vxlanPort}.`,
        "Give one of them another vniBase or vxlanPort.",
      );
    }
  },

  host: {
    targets: ({ hubConnection, hubUnderlayIp }) => [
      { role: "hub", connection: hubConnection, underlayIp: hubUnderlayIp },
    ],
    plan: (props) => ({ hub: planHub(toNetwork(pickSettings(props), props.hubInterface)) }),
    unaffectedBy: ["hubConnection", "labels", "adopt", "onExhausted", "inactiveAfter", "verify", "docker"],
    persist: ({ persist }) => persist,
    report: (props, { hub }) => ({ effectiveUnderlayIp: hub!.underlayIp, effectiveMtu: effectiveMtu(props, hub!) }),
  },
});

/** The settings that a network's runners need, without its connection. */
function pickSettings(inputs: NetworkSettings): NetworkSettings {
  const entries = Object.keys(networkSettings.shape).map((key) => [key, inputs[key as keyof NetworkSettings]]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined)) as NetworkSettings;
}

export function* mtuErrors(mtu: number | "auto" | undefined, layouts: Layout[]): Generator<InputError> {
  if (typeof mtu !== "number" || mtu >= 1280 || layouts.every(({ family }) => family === 4)) return;
  yield { property: "mtu", reason: `MTU_TOO_SMALL: IPv6 needs at least 1280, not ${mtu}.` };
}

function* crossFieldErrors(value: z.output<typeof inputs>): Generator<InputError> {
  const layouts = layoutsOf(value.subnets);
  if (layouts.length === 2 && (layouts[0]!.family !== 4 || layouts[1]!.family !== 6)) {
    yield {
      property: "subnets",
      reason: "SUBNET_FORMAT: A pair is one IPv4 layout and one IPv6 layout. Give them in this order.",
    };
  }
  const lastVni = value.vniBase + maxRunnersOf(layouts);
  if (lastVni >= 2 ** 24) {
    const most = 2 ** 24 - 1 - maxRunnersOf(layouts);
    const reason = `must be at most ${most}: the VNI of the last runner would be ${lastVni}, and VNIs end at ${2 ** 24 - 1}`;
    yield { property: "vniBase", reason };
  }
  yield* mtuErrors(value.mtu, layouts);
  yield* dockerErrors(dockerFor(value), layouts);
}
