import { z } from "zod";
import { count, leaseAnswer, time } from "./lease";

/** Configuration, heartbeat and report of a runner. */

const configFields = {
  networkName: z.string(),
  runnerName: z.string(),
  runnerId: z.number().int(),
  subnet: z.string(),
  gateway: z.string(),
  hubIp: z.string().describe("The hub in this subnet."),
  firstIp: z.string(),
  lastIp: z.string(),
  usableIps: count.describe("Without the range from which Docker picks by itself."),
  vni: z.number().int(),
  vxlanPort: z.number().int(),
  mtu: z
    .union([z.number().int(), z.literal("auto")])
    .describe("`auto`: that of the network below, less 50 over IPv4 and 70 over IPv6."),
  masquerade: z.boolean(),
  hub: z.string().optional().describe("The host of the hub, as SSH reaches it."),
  hubUnderlayIp: z.string().optional().describe("Where tunnels end; default the address of `hub`."),
  hubDevice: z.string(),
  runnerDevice: z.string(),
  bridge: z.string(),
  bridgeMac: z.string(),
  runnerMac: z.string(),
  dockerNetwork: z.string(),
  dockerRange: z.string().optional(),
  dockerRange6: z.string().optional(),
  subnets: z.array(z.string()),
  subnet6: z.string().optional(),
  gateway6: z.string().optional(),
  firstIp6: z.string().optional(),
  lastIp6: z.string().optional(),
  routes: z.array(z.object({ to: z.string(), via: z.string() })),
  lastSeen: time,
};

export const configAnswer = z
  .object(configFields)
  .meta({ id: "RunnerConfig", description: "The configuration of a runner." });

export const infoAnswer = z
  .object({ ...configFields, capacity: count, held: count, available: count })
  .meta({ id: "RunnerInfo", description: "The configuration of a runner, and how full its subnet is." });

const heartbeatFields = {
  network: z.string(),
  runner: z.string(),
  runnerId: z.number().int(),
  lastSeen: time,
};

export const reportAnswer = z
  .object({
    ...heartbeatFields,
    used: z.array(leaseAnswer).describe("Used since this report."),
    unchanged: z.number().int().describe("How many were known."),
    unmanaged: z
      .array(z.object({ name: z.string(), ip: z.string() }))
      .describe("In the range from which Docker picks by itself: they have no lease."),
    gone: z.array(leaseAnswer).describe("In use by what is not in a complete report."),
    released: z.array(leaseAnswer),
    conflicts: z
      .array(
        z.object({
          name: z.string(),
          ip: z.string(),
          code: z.string(),
          reason: z.string(),
          holder: z.string().optional().describe("The container or owner that has the address according to the store."),
        }),
      )
      .describe("Contradictions between report and store, which stays as it is."),
  })
  .meta({ id: "RunnerReport", description: "The workloads of a runner, compared with its leases." });

export const heartbeatAnswer = z
  .object(heartbeatFields)
  .meta({ id: "Heartbeat", description: "The heartbeat was recorded." });
