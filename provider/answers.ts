import { z } from "zod";

/**
 * What commands print and the service answers, for JSON. The service validates and documents its answers with these schemas, and the client parses
 * them, so this file imports nothing that a browser does not have. `@interface` lists the properties of a type in the client's reference.
 */

const time = z.string().describe("RFC 3339, in UTC.");

/** Exact: a string past 2^53. */
const count = z.union([z.number(), z.string()]);
const whole = z.number().int();
const text = z.string().optional();
const next = z.string().optional().describe("Cursor of the next page; absent on the last one.");

const LEASE = {
  ip: z.string().describe("The address; in a pool of ports, the port."),
  ip6: text.describe("In a dual-stack network: the IPv6 address."),
  port: whole.optional(),
  pool: z.string().describe("`runner/NETWORK/RUNNER` or `pool/NAME`."),
  network: text,
  runner: text,
  state: z.enum(["offered", "reserved", "used", "quarantined", "ended"]),
  usedBy: text.describe("The container or virtual machine that uses it."),
  createdAt: time,
  createdBy: text.describe("User, or name of the access token."),
  expiresAt: time.optional(),
  tenant: text.describe("`ORGANIZATION/PROJECT`."),
  labels: z.record(z.string(), z.string()).optional(),
  owner: z.string(),
  leaseId: z.string(),
};
export const leaseAnswer = z.object(LEASE).meta({ id: "Lease", description: "A lease on an address or a port." });
/** @interface */
export type AddressLease = z.output<typeof leaseAnswer>;

export const leasePage = z
  .object({ reservations: z.array(leaseAnswer), next })
  .meta({ id: "LeasePage", description: "A page of leases, by pool and address." });
/** @interface */
export type LeasePage = z.output<typeof leasePage>;

// Reservations

export const reservationAnswer = z
  .object({
    ...LEASE,
    gateway: text.describe("Of the runner's subnet."),
    gateway6: text,
    token: z.string().describe("Lets its bearer use the reservation. Secret."),
    warnings: z.array(z.string()).optional(),
  })
  .meta({ id: "Reservation", description: "A reserved address, and the token to use it." });
/** @interface */
export type Reservation = z.output<typeof reservationAnswer>;

export const batchAnswer = z
  .object({ reservations: z.array(reservationAnswer) })
  .meta({ id: "ReservationBatch", description: "All addresses that were requested." });

export const reserveAnswer = z
  .union([reservationAnswer, batchAnswer])
  .describe("The reservation; with `count`, a list of reservations.");

export const validationAnswer = z
  .object({
    valid: z.literal(true).describe("An invalid token is an error."),
    checked: z.enum(["store", "signature"]).describe("`signature`: whether the lease is still held was not asked."),
    ...LEASE,
    state: LEASE.state.optional(),
    createdAt: time.optional(),
  })
  .meta({ id: "Validation", description: "The reservation of a valid token." });
/** @interface */
export type Validation = z.output<typeof validationAnswer>;

export const releaseAnswer = z
  .object({
    released: z.array(leaseAnswer).describe("Released, or no longer used."),
    kept: z.array(leaseAnswer).describe("Those of them that stacks hold: they stay reserved for the stack."),
  })
  .meta({ id: "Release", description: "The leases that were released." });
/** @interface */
export type Release = z.output<typeof releaseAnswer>;

// What is free, and the holders of addresses

const availabilityOfPool = z
  .object({
    pool: z.string(),
    network: text,
    runner: text,
    capacity: count,
    held: count,
    available: count,
    addresses: z
      .array(z.string())
      .describe("The first free ones, without those in quarantine; with both families, of the first subnet."),
  })
  .meta({ id: "Availability", description: "A pool and its first free addresses." });
/** @interface */
export type Availability = z.output<typeof availabilityOfPool>;

export const availabilityAnswer = z
  .object({ pools: z.array(availabilityOfPool), next })
  .describe("A page of pools, each with its first free addresses.");

const holdingAnswer = z
  .object({
    owner: z.string(),
    pool: z.string(),
    usedBy: text,
    since: time.optional().describe("Absent if the history no longer has it."),
    until: time,
    end: z.string().describe("How it ended."),
  })
  .meta({ id: "Holding", description: "A former holder of an address." });
export type Holding = z.output<typeof holdingAnswer>;

export const addressAnswer = z
  .object({
    holders: z.array(leaseAnswer).describe("Those that hold it now; else its offer, or its last holder in quarantine."),
    before: z.array(holdingAnswer).describe("Earlier holders, latest first."),
  })
  .meta({ id: "Address", description: "The current and former holders of an address." });
/** @interface */
export type AddressStatus = z.output<typeof addressAnswer>;

// Pools

const ROOM = {
  capacity: count.describe("How many values it can give out."),
  allocated: count.describe("Held or offered."),
  available: count.describe("Neither held nor offered; those in quarantine are given out last."),
  offered: whole.describe("Leases offered by a preview."),
  reserved: whole,
  used: whole,
  quarantined: whole,
  utilization: z.number().describe("Percentage that is held or offered, with two decimals."),
};

export const totalsAnswer = z
  .object({ pools: whole, ...ROOM })
  .meta({ id: "PoolTotals", description: "Counts of all pools together." });
/** @interface */
export type PoolTotals = z.output<typeof totalsAnswer>;

const POOL = {
  pool: z.string(),
  kind: z.enum(["space", "address", "id", "port"]),
  type: text.describe("Of an IPPool."),
  range: z.string(),
  allocation: z.string(),
  tenant: text,
  ...ROOM,
};
const poolAnswer = z.object(POOL).meta({ id: "Pool", description: "A pool, and how full it is." });
export type PoolUsage = z.output<typeof poolAnswer>;

export const poolPage = z
  .object({ pools: z.array(poolAnswer), next })
  .meta({ id: "PoolPage", description: "A page of pools, by name." });
/** @interface */
export type PoolPage = z.output<typeof poolPage>;

const growth = z.object({
  growthLastHour: z
    .number()
    .describe(
      "Values that were given out, less those that were returned; absent if the caller sees only some changes.",
    ),
  growthLastDay: z.number(),
  exhaustedInSeconds: z.number().optional().describe("At the faster of both rates; absent when it does not grow."),
});
export type Growth = z.output<typeof growth>;

export const poolStatusAnswer = z
  .object({ ...POOL, ...growth.partial().shape })
  .meta({ id: "PoolStatus", description: "A pool, how full it is, and how fast it fills." });
/** @interface */
export type PoolStatus = z.output<typeof poolStatusAnswer>;

export const deletedPoolAnswer = z
  .object({ deleted: z.string().describe("The whole name of the pool.") })
  .describe("The pool was deleted.");

// History

export const changeAnswer = z
  .object({
    at: time,
    what: z.string().describe("`claimed`, `used`, `released`, `expired`, …"),
    value: z.string(),
    pool: z.string(),
    owner: z.string(),
    usedBy: text,
    by: text.describe("User, or name of the access token."),
    takenBy: text,
    formerOwner: text,
    tenant: text,
    leaseId: z.string(),
  })
  .meta({ id: "Change", description: "A change of a lease." });
/** @interface */
export type Change = z.output<typeof changeAnswer>;

/** A change in the stream of all changes. */
export const eventAnswer = z.object({ id: whole, ...changeAnswer.shape });
/** @interface */
export type NumberedChange = z.output<typeof eventAnswer>;

export const historyAnswer = z
  .object({ changes: z.array(changeAnswer) })
  .meta({ id: "History", description: "Changes, oldest first." });

// Runners

const CONFIG = {
  networkName: z.string(),
  runnerName: z.string(),
  runnerId: whole,
  subnet: z.string(),
  gateway: z.string(),
  hubIp: z.string().describe("The hub in this subnet."),
  firstIp: z.string(),
  lastIp: z.string(),
  usableIps: count.describe("Without the range from which Docker picks by itself."),
  tunnel: text.describe("`vxlan`, or `wireguard`: that needs keys of hub and runner, too, which only an up exchanges."),
  vni: whole,
  vxlanPort: whole,
  mtu: z
    .union([whole, z.literal("auto")])
    .describe("`auto`: that of the underlay, less 50 over IPv4 and 70 over IPv6; with WireGuard 60 and 80."),
  masquerade: z.boolean(),
  hub: text.describe("The host of the hub, as SSH reaches it."),
  hubUnderlayIp: text.describe("Where tunnels end; default the address of `hub`."),
  hubDevice: z.string(),
  runnerDevice: z.string(),
  bridge: z.string(),
  bridgeMac: z.string(),
  runnerMac: z.string(),
  dockerNetwork: z.string(),
  dockerRange: text,
  dockerRange6: text,
  subnets: z.array(z.string()),
  subnet6: text,
  gateway6: text,
  firstIp6: text,
  lastIp6: text,
  routes: z.array(z.object({ to: z.string(), via: z.string() })),
  lastSeen: time,
};
export const configAnswer = z
  .object(CONFIG)
  .meta({ id: "RunnerConfig", description: "The configuration of a runner." });
/** @interface */
export type RunnerConfig = z.output<typeof configAnswer>;

export const infoAnswer = z
  .object({ ...CONFIG, capacity: count, held: count, available: count })
  .meta({ id: "RunnerInfo", description: "The configuration of a runner, and how full its subnet is." });
/** @interface */
export type RunnerInfo = z.output<typeof infoAnswer>;

const HEARTBEAT = { network: z.string(), runner: z.string(), runnerId: whole, lastSeen: time };
export const heartbeatAnswer = z
  .object(HEARTBEAT)
  .meta({ id: "Heartbeat", description: "The heartbeat was recorded." });
/** @interface */
export type Heartbeat = z.output<typeof heartbeatAnswer>;

export const reportAnswer = z
  .object({
    ...HEARTBEAT,
    used: z.array(leaseAnswer).describe("Used since this report."),
    unchanged: whole.describe("How many were known."),
    unmanaged: z
      .array(z.object({ name: z.string(), ip: z.string() }))
      .describe("In the range from which Docker picks by itself: they have no lease."),
    gone: z.array(leaseAnswer).describe("In use by what is not in a complete report."),
    released: z.array(leaseAnswer).describe("Those of them that were released."),
    conflicts: z
      .array(
        z.object({
          name: z.string(),
          ip: z.string(),
          code: z.string(),
          reason: z.string(),
          holder: text.describe("The container or owner that has the address according to the store."),
        }),
      )
      .describe("Contradictions between report and store, which stays as it is."),
  })
  .meta({ id: "RunnerReport", description: "The workloads of a runner, compared with its leases." });
/** @interface */
export type RunnerReport = z.output<typeof reportAnswer>;

// Webhooks

const webhookAnswer = z
  .object({
    id: z.string(),
    url: z.string(),
    tenant: text.describe("`ORGANIZATION/PROJECT`."),
    network: text,
    pool: text,
    createdAt: time,
    createdBy: text,
    state: z.enum(["active", "failing", "suspended"]).describe("`suspended`: not tried again before it is resumed."),
    delivered: whole.describe("The newest event that the receiver has accepted, or that is not for it."),
    pending: whole.describe("Events after that one, also those that are not for it."),
    failures: whole.optional().describe("Failures in a row."),
    failingSince: time.optional(),
    retryAt: time.optional(),
    error: text.describe("Why the last delivery failed."),
  })
  .meta({ id: "Webhook", description: "A receiver of events, and the state of its deliveries." });
/** @interface */
export type WebhookInfo = z.output<typeof webhookAnswer>;

export const createdWebhookAnswer = z
  .object({ id: z.string(), url: z.string(), secret: z.string().describe("Signs deliveries. It is not shown again.") })
  .meta({ id: "CreatedWebhook", description: "The webhook, with the secret that signs its deliveries." });
/** @interface */
export type CreatedWebhook = z.output<typeof createdWebhookAnswer>;

export const webhooksAnswer = z.object({ webhooks: z.array(webhookAnswer) }).describe("All webhooks.");
export const webhookIdAnswer = z.object({ id: z.string() }).describe("The id of the webhook.");

// Whether the process is running, and whether it can serve

export const healthAnswer = z.object({ status: z.literal("ok") }).describe("The process is running.");
export const readinessAnswer = z.object({ status: z.literal("ready") }).describe("The store answers.");
