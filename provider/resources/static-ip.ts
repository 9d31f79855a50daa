import { z } from "zod";
import { type Family, familyOf, familyRange, formatIp, isIpInRange, parseIp, parseRange } from "../addressing/ip";
import { dnsLabel } from "../addressing/layout";
import { OverlayError } from "../errors";
import type { RunPlan } from "../ipam/run-plan";
import { isCommitted, type Lease } from "../ipam/types";
import { planCarrier, planReturn, type StaticAddress } from "../network/plan/static-ip";
import { isSameStack } from "../owner";
import { networkPool, poolNamed, runnerPool } from "../pool-names";
import { type CoHolderContext, defineResource, type InputError, type TargetHost } from "../resource";
import {
  cidrBlock,
  connection,
  deviceName,
  ipAddress,
  isLayout,
  labels,
  layoutOrCidr,
  printable,
  resourceName,
  tenant,
} from "./inputs";
import { isPoolReplaced, type PoolSettings, poolReference, poolSettings } from "./ip-pool";
import { layoutsOf, storedNetwork } from "./network-settings";
import { storedRunner } from "./runner-subnet";

/** StaticIP: an address on a hub or a runner that forwards ports to workloads. */

const portNumber = z.number().int().min(1).max(65535);

const forward = z
  .strictObject({
    protocol: z.enum(["tcp", "udp", "sctp"]).meta({ id: "Protocol" }).default("tcp").describe("Transport protocol."),
    port: portNumber.describe("Port of the static address."),
    to: ipAddress.describe("Target address, such as the `ip` of an IPReservation."),
    toPort: portNumber.optional().describe("Port there. Default: the same."),
    name: printable.max(63).optional().describe("A description, such as `https`."),
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
    subnets: z.array(cidrBlock).min(1).max(2).describe("The ranges of its workloads."),
  })
  .meta({ id: "ReturnRunner" });

const inputs = z.strictObject({
  pool: poolSettings.describe("Where the address comes from: an IPPool, or the name of one in another stack."),
  tenant: tenant
    .optional()
    .describe("The tenant; a tenant's pool serves that tenant only. Default: the provider's setting `tenant`."),
  staticIpName: resourceName.describe("Part of `names` if there is no sharing key. Default: the resource's name."),
  ip: ipAddress.optional().describe("The address to get. Default: the pool picks."),
  attach: attachment.describe(
    "The host that carries it: an OverlayNetwork (its hub) or a RunnerSubnet; from another stack by name, `NETWORK` or `NETWORK/RUNNER`. A change moves it.",
  ),
  connection: connection.describe("How SSH reaches that host. Default: as `attach` says, where that is a resource."),
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
      "If another resource of the same tenant, in any stack, holds the address or a port: fail, or take it. Resources without a tenant count as one tenant.",
    ),
  onPortConflict: z
    .enum(["fail", "anotherAddress"])
    .meta({ id: "OnPortConflict" })
    .default("fail")
    .describe(
      "If another resource with the same sharing key has a port of `forwards`: fail, or get another address of the pool under that key. A later resource gets the lowest address of the key where its ports are free.",
    ),
  forwards: z.array(forward).default([]).describe("Ports that are forwarded to workloads."),
  preserveClientIp: z
    .boolean()
    .default(false)
    .describe("Workloads see the addresses of clients outside, instead of the carrier's. On a hub it needs `runners`."),
  runners: z
    .array(runner)
    .default([])
    .describe(
      "With preserveClientIp on a hub: the runners of the forwards' targets, which send replies through the hub.",
    ),
  runnerConnections: z
    .array(connection)
    .default([])
    .describe("How SSH reaches `runners`, in their order. Default: as they say, where they are resources."),
  persist: z.boolean().default(true).describe("The hosts restore it after a boot, with a systemd unit."),
  labels,
});

type Inputs = z.output<typeof inputs>;

const computed = z.object({
  ip: z.string().describe("The address."),
  names: z
    .array(z.string())
    .optional()
    .describe("A name for each forward, `KEY-PROTOCOL-PORT`, the same in every deployment."),
});

type StaticProps = Inputs & z.output<typeof computed>;

export const staticIp = defineResource({
  type: "StaticIP",
  description: "An address from a pool, on a hub or a runner, that forwards ports to workloads.",
  example: `const front = new overlay.StaticIP("front", {
  pool,
  attach: network, // the hub carries the address
  forwards: [{ port: 443, to: web.ip, toPort: 8443 }],
});
export const address = front.ip;`,
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    host: z.string().describe("The host that carries it, as SSH reaches it."),
    port: z.number().optional().describe("Port of its SSH server, if `connection` names one."),
    user: z.string().optional().describe("User to log in as, if `connection` names one."),
    jumpHost: z.string().optional().describe("Jump host through which it is reached."),
    runnerHosts: z.array(z.string()).describe("The hosts of `runners`, as SSH reaches them."),
    sharedWith: z.array(z.string()).describe("Other owners with forwards on the address."),
  }),
  nameInput: "staticIpName",
  secrets: ["connection", "runnerConnections"],
  shownParts: {
    connection: { host: "host", port: "port", user: "user", jumpHost: "jumpHost" },
    runnerConnections: { host: "runnerHosts" },
  },
  references: {
    pool: poolReference,
    attach: [
      {
        to: "OverlayNetwork",
        passes: ["networkName", "subnets", "bridgeName"],
        fills: { connection: "hubConnection" },
        pool: networkPool,
        stored: storedNetwork,
      },
      {
        to: "RunnerSubnet",
        passes: ["networkName", "runnerName", "subnets"],
        fills: { connection: "connection" },
        pool: runnerPool,
        stored: storedRunner,
      },
    ],
    runners: {
      to: "RunnerSubnet",
      passes: ["networkName", "runnerName", "subnets"],
      fills: { runnerConnections: "connection" },
      pool: runnerPool,
      stored: storedRunner,
      many: true,
    },
  },
  replaceOn: ["pool.poolName", "ip"],
  createBeforeDelete: true,
  mayBeUnknown: ["connection", "runnerConnections", "forwards", "labels"],

  id: ({ ip, staticIpName }) => `${ip}/${staticIpName}`,
  result: ({ ip }) => ip,
  request: ({ pool, tenant, ip, sharingKey, onConflict, onPortConflict, forwards = [], labels }) => ({
    pool: poolNamed(pool.poolName),
    ...(ip !== undefined && { values: [{ first: parseIp(ip), last: parseIp(ip) }] }),
    ...(ip === undefined && familyRequest(pool, forwards)),
    ...(sharingKey !== undefined && { sharingKey }),
    ports: forwards.map(({ protocol, port }) => ({ protocol, port })),
    ...(tenant && { tenant }),
    ...(onConflict === "take" && { evictSameTenant: true }),
    ...(onPortConflict === "anotherAddress" && { onPortConflict }),
    ...(labels && { labels }),
  }),
  values: ({ sharingKey, staticIpName, forwards }, [range]) => ({
    ip: formatIp(range!.first),
    ...(forwards && {
      names: forwards.map(({ protocol, port }) => `${dnsLabel(sharingKey ?? staticIpName)}-${protocol}-${port}`),
    }),
  }),
  rangesFromProps: ({ ip }) => [{ first: parseIp(ip), last: parseIp(ip) }],
  leaseData: ({ attach }) => ({ attach: carrierName(attach) }),
  validate: async (props) => rejectOtherFamily(props),
  validateCoHolders: async (props, context) => {
    if (props.sharingKey === undefined) return;
    for (const lease of await findCoHolders(context.pool, poolNamed(props.pool.poolName), props.ip, context.owner)) {
      const carrier = lease.sharingKey === props.sharingKey ? carrierInRun(lease, context) : undefined;
      if (carrier !== undefined && carrier !== carrierName(props.attach))
        throw carrierConflictError(props, lease, carrier);
    }
  },
  leaseOutputs: async ({ ip }, { pool: name, owner }, { pool }) => {
    const coHolders = (await findCoHolders(pool, name, ip, owner)).filter(({ state }) => state !== "offered");
    return { sharedWith: [...new Set(coHolders.map((lease) => lease.owner))].sort() };
  },
  sourcePool: {
    isReplacedInRun: ({ pool }, stored) => isPoolReplaced(pool, stored),
    ignoreChanges: ["pool.ranges", "pool.quota"],
  },
  host: {
    targets: (props) => [
      { role: "carrier", connection: props.connection, carries: props.ip },
      ...returnRunners(props).map(({ role, connection }): TargetHost => ({ role, connection, toward: props.ip })),
    ],
    plan: (props, underlays) => {
      const runners = returnRunners(props);
      return {
        carrier: planCarrier(
          staticAddress(props),
          underlays.carrier!,
          runners.map(({ role }) => underlays[role]!),
        ),
        ...Object.fromEntries(runners.map(({ role, path, forwarded }) => [role, planReturn(path, forwarded)])),
      };
    },
    unaffectedBy: [
      "connection",
      "runnerConnections",
      "labels",
      "tenant",
      "onConflict",
      "onPortConflict",
      "sharingKey",
      "staticIpName",
      "names",
    ],
    persist: ({ persist }) => persist,
  },
});

/** Other leases that share the address. */
async function findCoHolders(pool: RunPlan, name: string, ip: string, owner: string): Promise<Lease[]> {
  const [value, leases] = [parseIp(ip), await pool.ipam.leases(name, { after: parseIp(ip) - 1n, limit: 1 })];
  return leases.filter(
    (lease) =>
      lease.owner !== owner && lease.state !== "quarantined" && lease.ranges.some(({ first }) => first === value),
  );
}

const carrierName = ({ networkName, runnerName }: Inputs["attach"]): string =>
  runnerName ? `${networkName}/${runnerName}` : networkName;

/**
 * The host of a lease that shares the address: one address cannot be on two. Resources of the same stack may move together, and Pulumi
 * checks them one by one, so such a lease counts only after its own check, with the host that it will be on. An offer of another stack
 * does not count for a resource that has its lease already.
 */
function carrierInRun(lease: Lease, { owner, pool, isHeld }: CoHolderContext): string | undefined {
  const isOfStack = isSameStack(lease.owner, owner);
  if (!isOfStack && isHeld && !isCommitted(lease)) return undefined;
  return carrierData.safeParse(isOfStack ? pool.plannedData(lease) : lease.data).data?.attach;
}

const carrierData = z.object({ attach: z.string().regex(/^[A-Za-z0-9._/-]{1,130}$/) });

const carrierConflictError = ({ ip, attach }: StaticProps, { owner }: Lease, carrier: string): OverlayError =>
  new OverlayError(
    "SHARING_CONFLICT",
    `${ip} is shared with ${owner}, which has it on ${carrier}; this one would have it on ${carrierName(attach)}.`,
    "Attach both to the same host, or use another sharing key.",
  ).about("attach");

const familyOfText = (text: string): Family => familyOf(parseIp(text.split("/")[0]!));

function rejectOtherFamily({ ip, forwards = [] }: StaticProps): void {
  const wrong = forwards.findIndex(({ to }) => familyOfText(to) !== familyOfText(ip));
  if (wrong < 0) return;
  throw new OverlayError(
    "INPUT_INVALID",
    `forwards[${wrong}].to is ${forwards[wrong]!.to}, but ${ip} is an IPv${familyOfText(ip)} address.`,
    "Give each address family a static address of its own.",
  ).about(`forwards.${wrong}.to`);
}

/** In a pool with both families, the first workload decides the family. */
function familyRequest({ ranges }: PoolSettings, forwards: Inputs["forwards"]) {
  const families = new Set(ranges.map((text) => familyOf(parseRange(text)!.first)));
  return families.size === 2 && forwards[0] ? { range: familyRange(familyOfText(forwards[0].to)) } : {};
}

const staticAddress = ({ ip, forwards, attach, preserveClientIp }: StaticProps): StaticAddress => ({
  ip,
  forwards: forwards.map(withPort),
  preserveClientIp,
  cidrs: attach.runnerName ? [attach.subnets].flat() : layoutsOf(attach.subnets).map(({ cidr }) => cidr),
});

const withPort = ({ protocol, port, to, toPort = port }: Inputs["forwards"][number]) => ({
  protocol,
  port,
  to,
  toPort,
});

/** Runners that send replies back to the hub, if workloads see the addresses of clients. A carrier that is a runner needs none. */
function returnRunners({ ip, attach, runners, runnerConnections, preserveClientIp, forwards }: StaticProps) {
  if (!preserveClientIp || attach.runnerName) return [];
  const layout = layoutsOf(attach.subnets).find(({ family }) => family === familyOfText(ip));
  if (!layout) return [];
  return runners.flatMap(({ runnerName, subnets }, i) => {
    const subnet = subnets.find((text) => familyOfText(text) === layout.family)!;
    const forwarded = forwards.filter(({ to }) => isIpInRange(to, subnet)).map(withPort);
    const path = { networkName: attach.networkName, cidr: layout.cidr, subnet, bridge: attach.bridgeName ?? "" };
    return forwarded.length > 0
      ? [{ role: `runner/${runnerName}`, connection: runnerConnections[i]!, path, forwarded }]
      : [];
  });
}

function* crossFieldErrors(inputs: Inputs): Generator<InputError> {
  const { attach, forwards, runners, runnerConnections, preserveClientIp, onConflict, onPortConflict } = inputs;
  if (onConflict === "take" && onPortConflict === "anotherAddress")
    yield { property: "onPortConflict", reason: "anotherAddress does not go with onConflict take: choose one of them" };
  const seen = new Set<string>();
  for (const [i, { protocol, port }] of forwards.entries()) {
    if (seen.has(`${protocol}/${port}`))
      yield { property: `forwards.${i}.port`, reason: `is there twice: ${protocol}/${port}` };
    seen.add(`${protocol}/${port}`);
  }
  for (const [i, { networkName, runnerName }] of runners.entries()) {
    if (networkName !== attach.networkName)
      yield {
        property: `runners.${i}`,
        reason: `is ${runnerName} of network ${networkName}, not of ${attach.networkName}`,
      };
  }
  if (runnerConnections.length !== runners.length)
    yield { property: "runnerConnections", reason: `must be one for each of ${runners.length} runners` };
  const isWrong = (text: string): boolean => isLayout(text) === (attach.runnerName !== undefined);
  if ([attach.subnets].flat().some(isWrong))
    yield { property: "attach.subnets", reason: attach.runnerName ? "must be CIDRs of the runner" : "must be layouts" };
  else if (preserveClientIp) yield* returnPathErrors(inputs);
}

function* returnPathErrors({ attach, forwards, runners }: Inputs): Generator<InputError> {
  const reached = attach.runnerName ? [attach.subnets].flat() : runners.flatMap(({ subnets }) => subnets);
  const where = attach.runnerName ? `runner ${attach.runnerName}, which carries the address` : "one of `runners`";
  for (const [i, { to }] of forwards.entries()) {
    if (!reached.some((subnet) => isIpInRange(to, subnet)))
      yield {
        property: `forwards.${i}.to`,
        reason: `must be a workload of ${where}: replies to clients can be routed back only from there`,
      };
  }
}
