import { z } from "zod";
import { addressBits, familyOf, formatCidr, formatIp, isIpInRange, parseIp, parseRange } from "../addressing/ip";
import { gatewayOf, tapName, vmMac } from "../addressing/layout";
import { OverlayError } from "../errors";
import { toTimeText } from "../format-time";
import type { Lease, ValueRange } from "../ipam/types";
import { addressPool, networkPool, placementLeaseName, poolNamed, runnerPool } from "../pool-names";
import { type AllocationContext, defineResource, type InputError, parseSettings } from "../resource";
import { hasSameTexts, ipAddress, labels, plainName, resourceName, tenant } from "./inputs";
import { isPoolReplaced, poolReference, poolSettings } from "./ip-pool";
import { storedNetwork } from "./network-settings";
import { chooseRunner, PLACEMENTS } from "./placement";
import { runnerSettings, storedRunner, userLeaseName } from "./runner-subnet";
import { chooseTenantPool, claimTenantPool, tenantBlockLeases, tenantLeaseName } from "./tenants";

/** Seconds for which a reservation may stay unused. A virtual machine takes longer to boot than a container. */
export const DEFAULT_TTL = { container: 300, vm: 1800 };

const networkName = z
  .object({ networkName: resourceName.describe("Name of the network.") })
  .meta({ id: "NetworkReference" });

const inputs = z.strictObject({
  runner: runnerSettings
    .optional()
    .describe("On this runner: a RunnerSubnet, or `NETWORK/RUNNER` for one in another stack."),
  network: networkName
    .optional()
    .describe("On any runner of this network: an OverlayNetwork, or the name of one in another stack."),
  placement: z
    .enum(PLACEMENTS)
    .meta({ id: "Placement" })
    .default("mostFree")
    .describe(
      "With `network`, the runner for a new reservation: with the most free addresses, the fullest that has room (`packed`), or the one with the fewest reservations (`spread`).",
    ),
  pool: poolSettings.optional().describe("In this pool: an IPPool, or the name of one in another stack."),
  tenant: tenant
    .optional()
    .describe(
      "The tenant; a tenant's pool serves that tenant only. With `type` and without `pool`: in the tenant's own pool of that type. Default: the provider's setting `tenant`.",
    ),
  type: resourceName.optional().describe("Type of the tenant's own pool, such as `clusterIP` or `loadBalancer`."),
  ip: ipAddress.optional().describe("The address to get. Default: the pool picks."),
  ip6: ipAddress
    .optional()
    .describe("In a dual-stack network, the IPv6 address to get. Default: at the same offset in its subnet as `ip`."),
  port: z.number().int().min(1).max(65535).optional().describe("In a `nodePort` pool, the port to get."),
  kind: z
    .enum(["container", "vm"])
    .meta({ id: "ReservationKind" })
    .default("container")
    .describe("What it is for. A VM also gets a MAC and a tap."),
  ttl: z
    .union([z.literal(true), z.number().int().min(60).max(86400)])
    .optional()
    .describe(
      `Seconds for which it may stay unused, 60 to 86400; true: ${DEFAULT_TTL.container}, or ${DEFAULT_TTL.vm} for a VM. Default: held until the resource is deleted.`,
    ),
  usedBy: plainName
    .optional()
    .describe("The container or VM that uses it; it does not expire then. One reservation for each on a network."),
  force: z.boolean().default(false).describe("Delete it even while it is used."),
  labels,
});

type Inputs = z.output<typeof inputs>;

const computed = z.object({
  ip: z.string().describe("The address; in a `nodePort` pool, the port."),
  cidr: z.string().describe("The address with the prefix length of its subnet."),
  gateway: z.string().optional().describe("Gateway of the subnet, on a runner."),
  runnerName: z.string().optional().describe("The runner on which it is."),
  port: z.number().optional().describe("The port, in a `nodePort` pool."),
  dockerRunArgs: z.string().optional().describe("For `docker run` on that runner: `--network … --ip …`."),
  mac: z.string().optional().describe("MAC address for a VM; always the same for this address."),
  tapDevice: z.string().optional().describe("Name for the tap device of a VM."),
  ip6: z.string().optional().describe("The IPv6 address in a dual-stack network."),
  cidr6: z.string().optional().describe("The IPv6 address with the prefix length of its subnet."),
  gateway6: z.string().optional().describe("IPv6 gateway of the subnet."),
});

type Computed = z.output<typeof computed>;

export const ipReservation = defineResource({
  type: "IPReservation",
  description: "An address that is known before its workload exists, and kept across the workload's restarts.",
  example: `const web = new overlay.IPReservation("web", { runner, usedBy: "web" });
export const command = pulumi.interpolate\`docker run --network pulumi-overlay --ip \${web.ip} nginx\`;`,
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    token: z.string().describe("Permits its bearer to use, validate or release the address with `overlayctl ip`."),
    state: z.string().describe("`reserved`, or `used` once a workload uses it."),
    expiresAt: z.string().optional().describe("When it expires unless it is used, RFC 3339."),
  }),
  secrets: ["token"],
  exactlyOneOf: ["runner", "network", "pool", "type"],
  references: {
    runner: {
      to: "RunnerSubnet",
      passes: Object.keys(runnerSettings.shape),
      pool: runnerPool,
      stored: storedRunner,
    },
    network: {
      to: "OverlayNetwork",
      passes: ["networkName"],
      pool: networkPool,
      stored: storedNetwork,
    },
    pool: poolReference,
  },
  replaceOn: ["runner.networkName", "runner.runnerName", "runner.subnets", "pool.poolName", "ip", "ip6", "port"],
  mayBeUnknown: ["labels", "usedBy", "ttl", "force"],
  createBeforeDelete: true,

  id: (props) => `${sourcePoolName(props).replace(/^\w+\//, "")}/${props.ip}`,
  result: ({ ip, ip6, port }) => (port === undefined ? [ip, ip6].filter(Boolean).join(", ") : `port ${port}`),
  request: (inputs, owner) => ({
    pool: sourcePoolName(inputs),
    ...requestedRanges(inputs),
    names: leaseNames(inputs, owner),
    ...(inputs.ttl !== undefined && { ttl: ttlSeconds(inputs) }),
    ...(inputs.usedBy !== undefined && { usedBy: inputs.usedBy }),
    ...(inputs.tenant && { tenant: inputs.tenant }),
    ...(inputs.labels && { labels: inputs.labels }),
  }),
  values,
  rangesFromProps: ({ ip, ip6, port }) =>
    port === undefined
      ? [ip, ...(ip6 ? [ip6] : [])].map((text) => singleRange(parseIp(text)))
      : [singleRange(BigInt(port))],
  validateDelete,
  leaseOutputs: async (_props, lease, { token }) => ({
    token: await token(lease),
    state: lease.state,
    expiresAt: lease.expiresAt === undefined ? undefined : toTimeText(lease.expiresAt),
  }),
  sourcePool: {
    isReplacedInRun: ({ runner, pool }, stored) =>
      runner
        ? !hasSameTexts(parseSettings(storedRunner, stored).subnets, runner.subnets)
        : isPoolReplaced(pool!, stored),
    ignoreChanges: ["pool.ranges", "pool.quota"],
    resolve: resolvePlacement,
    claimPrerequisites: async ({ tenant, type, pool }, context) => {
      if (tenant && type) await claimTenantPool(pool!, context);
    },
    prerequisiteLeases: ({ tenant, type, pool }, defaults) =>
      tenant && type ? tenantBlockLeases(pool!, defaults) : [],
  },
});

/** An address in use is not released, unless the program itself has moved its user to another reservation. */
function validateDelete(props: Inputs & Computed, { state, usedBy, names }: Lease, hasSuccessor: boolean): void {
  if (state !== "used" || props.force) return;
  const name = props.runner && usedBy !== undefined && userLeaseName(props.runner.networkName, usedBy);
  const hasMoved = hasSuccessor || (name && !names?.includes(name));
  if (hasMoved && usedBy === props.usedBy) return;
  throw new OverlayError(
    "IP_IN_USE",
    `${props.ip} is used${usedBy === undefined ? "" : ` by ${usedBy}`}.`,
    "Stop what uses it and release it, or set force: true and run up before it is removed.",
  );
}

/** Sets `runner` or `pool`, if the inputs leave the choice open. */
async function resolvePlacement(inputs: Inputs, context: AllocationContext): Promise<Inputs> {
  const { network, placement, tenant, type, ip } = inputs;
  if (network) {
    const runner = await chooseRunner({ network: network.networkName, placement, ip }, context);
    return withSecondAddress({ ...inputs, runner }, context);
  }
  if (tenant && type) {
    const value = requestedRanges(inputs).values?.[0]?.first;
    return { ...inputs, pool: await chooseTenantPool({ tenant, type, value }, context) };
  }
  return withSecondAddress(inputs, context);
}

/** A request for one address of a dual-stack network gets two: the second is that in the state, or at the same offset. */
function withSecondAddress(inputs: Inputs, { olds }: AllocationContext): Inputs {
  const { ip, ip6, runner } = inputs;
  const [main, second] = runner?.subnets.map((cidr) => parseRange(cidr)!) ?? [];
  if (ip === undefined || ip6 !== undefined || !main || !second) return inputs;
  const [cidr, cidr6] = runner!.subnets as [string, string];
  if (isIpInRange(ip, cidr6)) throw otherFamilyError(ip, cidr, cidr6);
  if (!isIpInRange(ip, cidr)) return inputs; // the pool refuses it
  if (olds?.ip === ip && typeof olds.ip6 === "string") return { ...inputs, ip6: olds.ip6 };
  return { ...inputs, ip6: formatIp(second.first + (parseIp(ip) - main.first)) };
}

const otherFamilyError = (ip: string, cidr: string, cidr6: string): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `ip is ${ip}, which is in ${cidr6}, the second range of its runner.`,
    `Request an address of ${cidr} as ip, and this one as ip6.`,
  ).about("ip");

const singleRange = (value: bigint): ValueRange => ({ first: value, last: value });

const sourcePoolName = ({ runner, pool }: Inputs): string =>
  runner ? addressPool(runner.networkName, runner.runnerName) : poolNamed(pool!.poolName);

/** The requested values, or one address of each family. */
function requestedRanges({ runner, ip, ip6, port }: Inputs) {
  if (port !== undefined) return { values: [singleRange(BigInt(port))] };
  if (ip !== undefined)
    return { values: [ip, ...(ip6 === undefined ? [] : [ip6])].map((text) => singleRange(parseIp(text))) };
  const [main, ...others] = runner?.subnets.map((cidr) => parseRange(cidr)!) ?? [];
  return main && others.length > 0 ? { range: main, secondRange: others } : {};
}

const ttlSeconds = ({ ttl, kind }: Inputs): number => (ttl === true ? DEFAULT_TTL[kind] : ttl!);

function leaseNames({ network, runner, tenant, type, usedBy }: Inputs, owner: string): string[] {
  return [
    ...(tenant && type ? [tenantLeaseName(tenant, type, owner)] : []),
    ...(network ? [placementLeaseName(network.networkName, owner)] : []),
    ...(runner && usedBy !== undefined ? [userLeaseName(runner.networkName, usedBy)] : []),
  ];
}

function values({ runner, pool, kind }: Inputs, ranges: ValueRange[]): Computed {
  const [main, second] = ranges.map(({ first }) => first);
  if (pool?.type === "nodePort") return { ip: `${main}`, cidr: `${main}`, port: Number(main) };
  const ip = formatIp(main!);
  if (!runner)
    return {
      ip,
      cidr: formatCidr(main!, addressBits(familyOf(main!))),
      ...(kind === "vm" && vmValues(pool!.poolName, ip)),
    };
  const { networkName, runnerName, subnets, dockerNetwork } = runner;
  const [prefix, prefix6] = subnets.map((cidr) => Number(cidr.split("/")[1]));
  const ip6 = second === undefined ? undefined : formatIp(second);
  const args = [
    `--network ${dockerNetwork}`,
    `${familyOf(main!) === 4 ? "--ip" : "--ip6"} ${ip}`,
    ...(ip6 ? [`--ip6 ${ip6}`] : []),
  ];
  return {
    ip,
    cidr: formatCidr(main!, prefix!),
    gateway: gatewayOf(parseRange(subnets[0]!)!),
    runnerName,
    ...(ip6 && { ip6, cidr6: formatCidr(second!, prefix6!), gateway6: gatewayOf(parseRange(subnets[1]!)!) }),
    ...(kind === "vm" && vmValues(networkName, ip)),
    ...(kind === "container" && dockerNetwork && { dockerRunArgs: args.join(" ") }),
  };
}

const vmValues = (network: string, ip: string) => ({ mac: vmMac(network, ip), tapDevice: tapName(network, ip) });

function* crossFieldErrors({ runner, network, pool, tenant, type, port, ip, ip6 }: Inputs): Generator<InputError> {
  const ways = [runner && "runner", network && "network", pool && "pool", type && "type"].filter(Boolean);
  const wrong = ways.length === 0 ? "is missing" : `does not go with ${ways[0]}`;
  if (ways.length !== 1) {
    yield {
      property: String(ways[1] ?? "runner"),
      reason: `${wrong}: give runner, network, pool, or tenant with type`,
    };
  }
  if (type !== undefined && !tenant)
    yield { property: "tenant", reason: "is missing: it selects one of the tenant's pools" };
  const isPorts = (pool?.type ?? type) === "nodePort";
  if (isPorts && ip !== undefined) yield { property: "ip", reason: "cannot be requested in a nodePort pool; port can" };
  if (!isPorts && port !== undefined) yield { property: "port", reason: "can be requested only in a nodePort pool" };
  if (ip6 !== undefined && ip === undefined)
    yield { property: "ip6", reason: "can be requested only together with ip" };
}
