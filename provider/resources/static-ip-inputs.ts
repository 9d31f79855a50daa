import { z } from "zod";
import { address, cidr, connection, deviceName, labels, layoutOrCidr, printable, resourceName, tenant } from "./inputs";
import { poolSettings } from "./ip-pool";

/** Inputs and computed values of a StaticIP. */

const port = z.number().int().min(1).max(65535);

const forward = z
  .strictObject({
    protocol: z.enum(["tcp", "udp", "sctp"]).meta({ id: "Protocol" }).default("tcp").describe("Transport protocol."),
    port: port.describe("Port of the static address."),
    to: address.describe("Where it leads: an address, such as the `ip` of an IPReservation."),
    toPort: port.optional().describe("Port there. Default: the same."),
    name: printable.max(63).optional().describe("A word for people, such as `https`."),
  })
  .meta({ id: "Forward" });

/** The host that carries it: a network's hub, or one of its runners. */
const attachment = z
  .object({
    networkName: resourceName.describe("Name of the network."),
    runnerName: resourceName.optional().describe("Name of the runner; none: the network's hub."),
    subnets: z
      .union([layoutOrCidr, z.array(layoutOrCidr).min(1).max(2)])
      .describe("Layouts of the network, or the ranges of the runner's workloads."),
    bridgeName: deviceName.optional().describe("Bridge on the network's runners."),
  })
  .meta({ id: "Attachment" });

const runner = z
  .object({
    networkName: resourceName.describe("Name of the runner's network."),
    runnerName: resourceName.describe("Name of the runner."),
    subnets: z.array(cidr).min(1).max(2).describe("The ranges of its workloads."),
  })
  .meta({ id: "ReturnRunner" });

export const inputs = z.strictObject({
  pool: poolSettings.describe("Where the address comes from: an IPPool, or the name of one in another stack."),
  tenant: tenant
    .optional()
    .describe("Whose it is; a tenant's pool serves that tenant only. Default: the provider's setting `tenant`."),
  staticIpName: resourceName.describe("Stands in `names` where there is no sharing key. Default: the resource's name."),
  ip: address.optional().describe("The address to get. Default: the pool picks."),
  attach: attachment.describe(
    "The machine that carries it: an OverlayNetwork (its hub) or a RunnerSubnet; from another stack by name, `NETWORK` or `NETWORK/RUNNER`. A change moves it.",
  ),
  connection: connection.describe("How SSH reaches that machine. Default: as `attach` says, where that is a resource."),
  sharingKey: printable
    .min(1)
    .max(253)
    .optional()
    .describe(
      "Resources of one tenant with the same key share one address, each with ports of its own. None: the address is exclusive.",
    ),
  onConflict: z
    .enum(["fail", "take"])
    .meta({ id: "OnConflict" })
    .default("fail")
    .describe(
      "Where the address or a port is held by another resource of the same tenant, in any stack: fail, or take it away. Resources without a tenant count as one tenant.",
    ),
  onPortConflict: z
    .enum(["fail", "anotherAddress"])
    .meta({ id: "OnPortConflict" })
    .default("fail")
    .describe(
      "Where another resource with the same sharing key has a port of `forwards`: fail, or get another address of the pool under that key. A later resource gets the lowest address of the key where its ports are free.",
    ),
  forwards: z.array(forward).default([]).describe("What the address passes on, port by port."),
  preserveClientIp: z
    .boolean()
    .default(false)
    .describe(
      "Show workloads the addresses of clients outside, instead of the carrier's. On a hub it needs `runners`.",
    ),
  runners: z
    .array(runner)
    .default([])
    .describe(
      "With preserveClientIp on a hub: the runners that the forwards lead to, which send replies back to the hub.",
    ),
  runnerConnections: z
    .array(connection)
    .default([])
    .describe("How SSH reaches `runners`, in their order. Default: as they say, where they are resources."),
  persist: z
    .boolean()
    .default(true)
    .describe("The machines put it back by themselves after a boot, with a systemd unit."),
  labels,
});

export type Inputs = z.output<typeof inputs>;

export const computed = z.object({
  ip: z.string().describe("The address."),
  names: z
    .array(z.string())
    .optional()
    .describe("A name for each forward, `KEY-PROTOCOL-PORT`, the same in every deployment."),
});

export type StaticProps = Inputs & z.output<typeof computed>;
