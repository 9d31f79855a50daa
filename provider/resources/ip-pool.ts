import { z } from "zod";
import {
  addressBits,
  exactNumber,
  familyOf,
  formatNumberRange,
  formatRange,
  mergeRanges,
  parseNumberRange,
  parseRange,
} from "../addressing/ip";
import { findUsage } from "../ipam/interface";
import type { Json, PoolSpec, Usage, ValueRange } from "../ipam/types";
import { poolNamed, portSpace, addressSpace as spaceNamed } from "../pool-names";
import { defineResource, type InputError, parseSettings, type Reference, type StoredSettings } from "../resource";
import {
  hasSameTexts,
  labels,
  poolPath,
  ports,
  rangeOrPorts,
  ranges,
  rangesOrPorts,
  resourceName,
  tenant,
} from "./inputs";

/** The settings of a pool that resources with addresses in it need; passed by reference, or read from the pool by name. */
export const poolSettings = z
  .object({
    poolName: poolPath.describe("Name of the pool."),
    addressSpace: resourceName
      .default("default")
      .describe("Ranges in one address space must not overlap. Networks are in `default`."),
    type: z
      .enum(["clusterIP", "loadBalancer", "vip", "nodePort", "container"])
      .meta({ id: "PoolType" })
      .default("container")
      .describe(
        "What it is for. A `vip` pool gives only addresses that are requested themselves; a `nodePort` pool has ports.",
      ),
    ranges: z.array(rangeOrPorts).describe("The ranges of the pool."),
    tenant: tenant.optional().describe("The tenant of the pool."),
    quota: z
      .strictObject({
        maxIps: z.number().int().min(0).optional().describe("How many addresses may be held at a time."),
        maxReservations: z.number().int().min(0).optional().describe("How many leases may exist at a time."),
      })
      .meta({ id: "Quota" })
      .optional()
      .describe("Limits in addition to the size of the ranges."),
  })
  .meta({ id: "PoolSettings" });

export type PoolSettings = z.output<typeof poolSettings>;

export const storedPool: StoredSettings<typeof poolSettings> = {
  schema: poolSettings,
  poolOf: ({ poolName }) => poolNamed(poolName),
};

/** How other resources refer to a pool. */
export const poolReference: Reference = {
  to: "IPPool",
  passes: Object.keys(poolSettings.shape),
  pool: (name) => poolNamed(name),
  stored: storedPool,
};

/** Whether a pool that is passed by reference is replaced in the same run by one with other ranges. */
export function isPoolReplaced(pool: PoolSettings, stored: PoolSpec): boolean {
  const { type, addressSpace, ranges } = parseSettings(storedPool, stored);
  return (type !== pool.type || addressSpace !== pool.addressSpace) && !hasSameTexts(ranges, pool.ranges);
}

const inputs = z.strictObject({
  ...poolSettings.shape,
  poolName: resourceName.describe("Name of the pool, unique in the store. Default: the resource's name."),
  ranges: ranges
    .optional()
    .describe("The ranges of the pool, as CIDRs, addresses, or `FIRST-LAST`. Adding some is an update."),
  parent: poolSettings
    .optional()
    .describe("Instead of ranges: the pool that it is carved from, an IPPool or the name of one in another stack."),
  prefixLength: z.number().int().min(1).max(128).optional().describe("Size of the block that is carved from `parent`."),
  portRange: ports.optional().describe("Ports of a `nodePort` pool. Default 30000-32767."),
  reserved: rangesOrPorts.optional().describe("Inside the ranges, or of the ports, and never given out."),
  staticOnly: rangesOrPorts.optional().describe("Given only to requests for the address, or the port, itself."),
  allocation: z
    .enum(["hashed", "lowest", "random", "external"])
    .meta({ id: "Allocation" })
    .default("hashed")
    .describe(
      "How an address is picked. `hashed`: the same owner gets the same one again; `external`: another system picks, such as a DHCP server, and it is only recorded here.",
    ),
  autoAssign: z.boolean().default(true).describe("false: it gives only addresses that are requested themselves."),
  avoidBoundaryIps: z.boolean().default(false).describe("Never give .0 and .255, which some old clients refuse."),
  warnAtPercent: z
    .number()
    .int()
    .min(1)
    .max(100)
    .default(80)
    .describe("Previews warn from this percentage of held values on."),
  labels,
});

type Inputs = z.output<typeof inputs>;

const computed = z.object({
  ranges: z.array(z.string()).describe("The ranges or ports of the pool, in their shortest form."),
});

const count = z.union([z.number(), z.string()]);

export const ipPool = defineResource({
  type: "IPPool",
  description: "Addresses or ports to allocate from, for one tenant or for all.",
  example: `const pool = new overlay.IPPool("public", { ranges: ["198.51.100.0/24"], type: "loadBalancer" });`,
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    capacity: count.describe("How many addresses or ports it can allocate; a string past 2^53."),
    allocated: count.describe("How many were held at the last up or refresh."),
    available: count.describe("How many were free then."),
    utilizationPercent: z.number().describe("Percentage of values that were held then."),
    warnings: z.array(z.string()).describe("Warnings, such as that the pool is nearly full."),
  }),
  nameInput: "poolName",
  secrets: [],
  references: { parent: poolReference },
  replaceOn: ["poolName", "addressSpace", "type", "parent.poolName", "prefixLength"],
  mayBeUnknown: ["labels"],

  id: ({ poolName }) => poolName,
  result: ({ ranges = [] }) => ranges.join(", "),
  request: (inputs) => ({
    ...sourceRequest(inputs),
    names: [poolNamed(inputs.poolName)],
    ...(inputs.labels && { labels: inputs.labels }),
    ...(inputs.tenant && { tenant: inputs.tenant }),
  }),
  childPool: buildPoolSpec,
  values: (inputs, ranges) => ({ ranges: ranges.map(isPorts(inputs) ? formatNumberRange : formatRange) }),
  rangesFromProps: ({ ranges, type }) => parseValidRanges(ranges, type),
  leaseOutputs: async ({ poolName }, _lease, { pool }) =>
    usageOutputs((await findUsage(pool.ipam, poolNamed(poolName)))!),
  sourcePool: {
    isReplacedInRun: ({ parent }, stored) => parent !== undefined && isPoolReplaced(parent, stored),
    ignoreChanges: ["parent.ranges", "parent.quota"],
  },
});

const DEFAULT_PORTS = "30000-32767";

const isPorts = ({ type }: Pick<Inputs, "type">): boolean => type === "nodePort";

const parseRangeOrPorts = (text: string, type: Inputs["type"]): ValueRange | undefined =>
  (type === "nodePort" ? parseNumberRange : parseRange)(text);

/** Parses texts that were validated. */
const parseValidRanges = (texts: string[], type: Inputs["type"]): ValueRange[] =>
  mergeRanges(texts.map((text) => parseRangeOrPorts(text, type)!));

/** Its own lease is in an address space or in its parent; for ports, in a space of its own. */
function sourceRequest({ poolName, addressSpace, type, ranges, parent, prefixLength, portRange }: Inputs) {
  if (type === "nodePort") {
    return { pool: portSpace(poolName), values: parseValidRanges([portRange ?? DEFAULT_PORTS], type) };
  }
  if (!parent) return { pool: spaceNamed(addressSpace), values: parseValidRanges(ranges!, type) };
  const range = familyPart(parseValidRanges(parent.ranges, parent.type), prefixLength!);
  const size = 1n << BigInt(addressBits(familyOf(range.first)) - prefixLength!);
  return { pool: poolNamed(parent.poolName), size, range };
}

/** A parent can have both families; a prefix over 32 bits can only mean IPv6. */
function familyPart(ranges: ValueRange[], prefixLength: number): ValueRange {
  const fits = ranges.filter(({ first }) => addressBits(familyOf(first)) >= prefixLength);
  const family = familyOf((fits.find(({ first }) => familyOf(first) === 4) ?? fits[0] ?? ranges[0]!).first);
  const part = ranges.filter(({ first }) => familyOf(first) === family);
  return { first: part[0]!.first, last: part.at(-1)!.last };
}

function buildPoolSpec(inputs: Inputs, ranges: ValueRange[]): PoolSpec {
  const { poolName, addressSpace, type, tenant, reserved, staticOnly, quota } = inputs;
  const settings = {
    poolName,
    addressSpace,
    type,
    ranges: ranges.map(isPorts(inputs) ? formatNumberRange : formatRange),
    ...(tenant && { tenant }),
    ...(quota && { quota }),
  };
  return {
    name: poolNamed(poolName),
    kind: isPorts(inputs) ? "port" : "address",
    ranges,
    ...(reserved && { reserved: parseValidRanges(reserved, type) }),
    ...(staticOnly && { staticOnly: parseValidRanges(staticOnly, type) }),
    allocation: inputs.allocation,
    ...((!inputs.autoAssign || type === "vip") && { autoAssign: false }),
    ...(inputs.avoidBoundaryIps && { avoidBoundaryIps: true }),
    ...(quota && { quota: quota as NonNullable<PoolSpec["quota"]> }),
    ...(tenant && { tenant }),
    warnAtPercent: inputs.warnAtPercent,
    data: { settings: settings as unknown as Json },
  };
}

function usageOutputs({ capacity, held, warning }: Usage) {
  return {
    capacity: exactNumber(capacity),
    allocated: exactNumber(held),
    available: exactNumber(capacity - held),
    utilizationPercent: capacity === 0n ? 100 : Number((held * 10000n) / capacity) / 100,
    warnings: warning ? [warning] : [],
  };
}

function* crossFieldErrors(inputs: Inputs): Generator<InputError> {
  const { type, ranges, parent, prefixLength, portRange } = inputs;
  const given = Object.entries({ ranges, parent, prefixLength, portRange }).flatMap(([k, v]) =>
    v === undefined ? [] : [k],
  );
  const required = type === "nodePort" ? ["portRange"] : parent ? ["parent", "prefixLength"] : ["ranges"];
  for (const key of required) {
    if (!given.includes(key) && key !== "portRange")
      yield { property: key, reason: "is missing: a pool has either ranges, or a parent and a prefixLength" };
  }
  for (const key of given) {
    if (!required.includes(key))
      yield { property: key, reason: `does not go with ${parent ? "parent" : `type ${type}`}` };
  }
  if (parent && isPorts(parent)) yield { property: "parent", reason: "has ports, from which no block can be carved" };
  else if (parent && prefixLength !== undefined) yield* blockSizeErrors(parent, prefixLength);
  yield* exclusionErrors(inputs);
}

/** A block must fit into one range of its parent. */
function* blockSizeErrors({ poolName, ranges, type }: PoolSettings, prefixLength: number): Generator<InputError> {
  const parsed = parseValidRanges(ranges, type);
  const wide = parsed.filter(({ first }) => addressBits(familyOf(first)) >= prefixLength);
  if (wide.length === 0) {
    yield { property: "prefixLength", reason: `is ${prefixLength}, and addresses of ${poolName} have 32 bits` };
    return;
  }
  const { first } = familyPart(parsed, prefixLength);
  const size = 1n << BigInt(addressBits(familyOf(first)) - prefixLength);
  const sizes = wide
    .filter((range) => familyOf(range.first) === familyOf(first))
    .map((range) => range.last - range.first + 1n);
  const [largest = 0n] = sizes.sort((a, b) => (a > b ? -1 : 1));
  if (size <= largest) return;
  yield {
    property: "prefixLength",
    reason: `is ${prefixLength}: a block of ${size} addresses is larger than its parent ${poolName}, which has ${largest} in a row`,
  };
}

/** Not checked for a block that is still to be allocated: the pool checks it then. */
function* exclusionErrors({
  type,
  ranges,
  portRange = DEFAULT_PORTS,
  reserved,
  staticOnly,
}: Inputs): Generator<InputError> {
  const texts = type === "nodePort" ? [portRange] : ranges;
  const whole = texts && parseValidRanges(texts, type);
  const isPart = (text: string): boolean => {
    const part = parseRangeOrPorts(text, type);
    return part !== undefined && (!whole || whole.some(({ first, last }) => first <= part.first && part.last <= last));
  };
  for (const [property, texts = []] of Object.entries({ reserved, staticOnly })) {
    const outside = texts.find((text) => !isPart(text));
    if (outside !== undefined) yield { property, reason: `has ${outside}, which is not in the pool` };
  }
  const withheld = mergeRanges((reserved ?? []).flatMap((text) => parseRangeOrPorts(text, type) ?? []));
  const never = staticOnly?.find((text) => {
    const part = parseRangeOrPorts(text, type);
    return part && withheld.some(({ first, last }) => first <= part.first && part.last <= last);
  });
  if (never !== undefined)
    yield { property: "staticOnly", reason: `has ${never}, which is in reserved and so is never given out` };
}
