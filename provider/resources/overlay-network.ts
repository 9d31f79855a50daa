import { z } from "zod";
import { exactNumber } from "../addressing/ip";
import type { Layout } from "../addressing/layout";
import { OverlayError } from "../errors";
import { hostId } from "../host/connection";
import { findSpec, listSpecs } from "../ipam/interface";
import type { RunPlan } from "../ipam/run-plan";
import type { Json } from "../ipam/types";
import { effectiveMtu, planHub, type Underlay } from "../network/plan/hub";
import { TUNNELS } from "../network/plan/tunnels";
import { readTunnelEnd } from "../network/plan/tunnels/tunnel-end";
import { shortName } from "../owner";
import { DEFAULT_SPACE, listNames, NETWORKS, networkPool } from "../pool-names";
import { defineResource, type InputError, parseSettings } from "../resource";
import { connection, labels } from "./inputs";
import {
  dockerErrors,
  dockerFor,
  keyFileOf,
  layoutsOf,
  maxRunnersOf,
  meshErrors,
  mtuErrors,
  type NetworkSettings,
  networkSettings,
  portNames,
  readHub,
  storedNetwork,
  toNetwork,
  tunnelEndOf,
} from "./network-settings";
import { isOnlyOffered } from "./placement";

/** OverlayNetwork: a range of addresses with a subnet for each runner, and a hub that routes between them. */

const inputs = networkSettings.extend({
  hubConnection: connection.describe(
    "How SSH reaches the hub. Another host moves the hub: packets between runners are lost for about 250 ms.",
  ),
  adopt: z
    .boolean()
    .default(false)
    .describe("Adopt existing devices that match the desired state but are in no record."),
  onExhausted: z
    .enum(["fail", "reclaimInactive"])
    .meta({ id: "OnExhausted" })
    .default("fail")
    .describe("When all runner ids are taken: fail, or reclaim the one with the oldest `lastSeen`."),
  inactiveAfter: z
    .number()
    .int()
    .min(60)
    .default(604800)
    .describe("Seconds without an up, refresh or heartbeat after which a runner id may be reclaimed."),
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
  description: "An overlay: a range of addresses with one subnet per runner, and a hub that routes between them.",
  example: `const privateKey = new pulumi.Config().requireSecret("privateKey");
const network = new overlay.OverlayNetwork("training", {
  subnets: "10.128.0.0/12/6/14", // 63 runners with 16,380 addresses each
  hubConnection: { host: "10.0.0.5", privateKey },
});
const encrypted = new overlay.OverlayNetwork("encrypted", {
  subnets: "10.64.0.0/12/6/14",
  tunnel: "wireguard",
  topology: "mesh", // runners send to each other directly
  wireguardPort: 51900, // UDP; runners also use the next two
  keyGeneration: 0, // raise it by one for new keys
  hubConnection: { host: "10.0.0.6", privateKey },
});`,
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    host: z.string().describe("The hub, as SSH reaches it."),
    port: z.number().optional().describe("Port of its SSH server, if `hubConnection` names one."),
    user: z.string().optional().describe("User to log in as, if `hubConnection` names one."),
    jumpHost: z.string().optional().describe("Jump host through which it is reached."),
    effectiveUnderlayIp: z.string().describe("The hub's address on the underlay."),
    effectiveMtu: z.number().describe("MTU of the tunnels, as far as the hub decides it."),
    hubPublicKey: z.string().optional().describe("The hub's public key, with `tunnel: wireguard`."),
  }),
  nameInput: "networkName",
  secrets: ["hubConnection"],
  shownParts: { hubConnection: { host: "host", port: "port", user: "user", jumpHost: "jumpHost" } },
  replaceOn: ["networkName", "subnets", "devicePrefix", "bridgeName", "hubInterface"],
  mayBeUnknown: ["hubConnection", "hubUnderlayIp", "mtu", "labels"],

  id: ({ networkName }) => networkName,
  result: ({ cidr, cidr6 }) => [cidr, cidr6].filter(Boolean).join(", "),
  request: (inputs) => {
    const { networkName, hubConnection, labels } = inputs;
    const layouts = layoutsOf(inputs.subnets);
    const host = hubConnection && `host/${hostId(hubConnection)}`;
    return {
      pool: DEFAULT_SPACE,
      values: layouts.map(({ range }) => range),
      names: [
        networkPool(networkName),
        ...(host ? [`${host}/devices/${inputs.devicePrefix}`, `${host}/link/${inputs.hubInterface}`] : []),
        ...(hubConnection ? portNames(inputs, hostId(hubConnection)) : []),
      ],
      ...(labels && { labels }),
    };
  },
  childPool: (inputs) => ({
    name: networkPool(inputs.networkName),
    kind: "id",
    ranges: [{ first: 1n, last: BigInt(maxRunnersOf(layoutsOf(inputs.subnets))) }],
    allocation: "lowest",
    ...(inputs.onExhausted === "reclaimInactive" && { reclaimAfter: inputs.inactiveAfter }),
    data: {
      settings: pickSettings(inputs) as unknown as Json,
      hub: inputs.hubConnection ? hostId(inputs.hubConnection) : null,
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
  rangesFromProps: ({ subnets }) => layoutsOf(subnets).map(({ range }) => range),
  validate: async (props, { pool, replacedPool }) => {
    const mine = { first: props.vniBase + 1, last: props.vniBase + props.maxRunners };
    await refuseKeyInUse(props, pool);
    const others = (await listSpecs(pool.ipam, { prefix: NETWORKS })).filter(({ name }) => name !== replacedPool);
    for (const other of others) {
      if (isOnlyOffered(await pool.ipam.find({ name: other.name }), pool)) continue;
      const [hub, settings] = [readHub(other), parseSettings(storedNetwork, other)];
      const theirs = settings.vniBase + maxRunnersOf(layoutsOf(settings.subnets));
      if (
        settings.networkName === props.networkName ||
        !hub ||
        !props.hubConnection ||
        hub !== hostId(props.hubConnection)
      )
        continue;
      if (settings.tunnel !== "vxlan" || props.tunnel !== "vxlan") continue;
      if (settings.vxlanPort !== props.vxlanPort || mine.first > theirs || settings.vniBase + 1 > mine.last) continue;
      throw new OverlayError(
        "NETWORK_EXISTS",
        `Networks ${props.networkName} (VNI ${mine.first} to ${mine.last}) and ${settings.networkName} (VNI ${settings.vniBase + 1} to ${theirs}) would both use hub ${hub}, UDP port ${props.vxlanPort}.`,
        "Give one of them another vniBase or vxlanPort.",
      );
    }
  },

  host: {
    targets: ({ hubConnection, hubUnderlayIp, ...settings }) => [
      { role: "hub", connection: hubConnection, underlayIp: hubUnderlayIp, ...keyFileOf(settings) },
    ],
    checkUnderlays: (props, { hub }) => refuseLargeMtu(props, hub!),
    plan: (props, { hub }) => ({ hub: planHub(toNetwork(pickSettings(props)), hub!) }),
    unaffectedBy: ["hubConnection", "labels", "adopt", "onExhausted", "inactiveAfter", "verify", "docker", "topology"],
    persist: ({ persist }) => persist,
    tunnelEnd: (props, { hub }) => tunnelEndOf(props, hub!),
    report: (props, { hub }) => ({
      effectiveUnderlayIp: hub!.underlayIp,
      effectiveMtu: effectiveMtu(toNetwork(pickSettings(props)), hub!),
      hubPublicKey: hub!.publicKey, // also if it is gone
    }),
  },
});

/** With VXLAN only runners have devices whose MTU a host can refuse: the hub would be changed before the first of them is refused. */
function refuseLargeMtu({ mtu, tunnel, networkName }: NetworkSettings, { underlayIp, underlayMtu }: Underlay): void {
  const overhead = TUNNELS[tunnel].overhead(underlayIp);
  if (mtu === "auto" || mtu + overhead <= underlayMtu) return;
  throw new OverlayError(
    "MTU_TOO_LARGE",
    `Network ${networkName} would have an MTU of ${mtu}. With the ${overhead} bytes of ${tunnel} that exceeds the ${underlayMtu} of the hub's device with ${underlayIp}. Nothing was changed.`,
    `Set mtu to ${underlayMtu - overhead} or less, or to auto.`,
  );
}

/** A key is made in the place of the one before the last. No runner may still use that. */
async function refuseKeyInUse(props: NetworkSettings, pool: RunPlan): Promise<void> {
  const { tunnel, keyGeneration: next } = props;
  if (tunnel !== "wireguard" || !(await findSpec(pool.ipam, networkPool(props.networkName)))) return;
  const leases = await pool.ipam.leases(networkPool(props.networkName));
  const others = leases.filter((lease) => (readTunnelEnd(lease)?.keyGeneration ?? next) !== next);
  const behind = others.filter((lease) => readTunnelEnd(lease)!.keyGeneration! % 2 === next % 2);
  if (behind.length === 0) return;
  const { keyGeneration: its } = readTunnelEnd(behind[0]!)!;
  throw new OverlayError(
    "INPUT_INVALID",
    `Runners of network ${props.networkName} have keyGeneration ${its}: ${listNames(behind.map(({ owner }) => shortName(owner)))}. Generation ${next} can only follow ${next - 1}. Nothing was changed.`,
    `Set keyGeneration to ${its! + 1}, and run up for these runners first.`,
  ).about("keyGeneration");
}

/** The settings that a network's runners need, without its connection. */
function pickSettings(inputs: NetworkSettings): NetworkSettings {
  const entries = Object.keys(networkSettings.shape).map((key) => [key, inputs[key as keyof NetworkSettings]]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined)) as NetworkSettings;
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
  yield* meshErrors(value);
  yield* dockerErrors(dockerFor(value), layouts);
}
