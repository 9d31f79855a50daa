import { z } from "zod";
import { formatIp, tryParseIp } from "../addressing/ip";
import {
  labels,
  ONE_OR_TWO_NAMES,
  PRINTABLE,
  plainName,
  poolPath,
  resourceName,
  tenant,
  tenantText,
} from "../resources/inputs";
import { ipPool } from "../resources/ip-pool";
import { PLACEMENTS } from "../resources/placement";

/**
 * Inputs of the functions in this folder, from options of a command or from a request, with the descriptions that the service documents. All text
 * is parsed here.
 */

/** How the description of an interface puts it: an IPv4 address is not written as one of IPv6. */
const IP_FORMATS = { anyOf: [{ format: "ipv4" }, { format: "ipv6", not: { pattern: "^::ffff:" } }] };

/** In its usual form only: `10.128.064.006` is another address to some programs. */
const ip = z
  .string()
  .meta(IP_FORMATS)
  .transform((text, context): bigint => {
    const point = tryParseIp(text);
    if (point !== undefined && formatIp(point) === text.toLowerCase()) return point;
    context.addIssue({
      code: "custom",
      message: "must be an IP address in its usual form, like 10.128.64.5 or fd00::5",
    });
    return z.NEVER;
  });

const integerBetween = (min: number, max: number, what: string) =>
  z
    .union(
      [
        z.number(),
        z
          .string()
          .regex(/^\d{1,15}$/)
          .transform(Number),
      ],
      `must be a whole number: ${what}`,
    )
    .refine((value) => Number.isInteger(value) && value >= min && value <= max, `must be a whole number: ${what}`)
    .meta({ anyOf: [{ type: "integer", minimum: min, maximum: max }] }); // text is for queries and options

const ttl = integerBetween(1, 86_400, "seconds from 1 to 86400");
const portOption = integerBetween(1, 65_535, "a port from 1 to 65535");
const limit = integerBetween(1, 1000, "from 1 to 1000");

const label = z.string().regex(/^[^=\s\ufeff]+=[\s\S]*$/, "must be like KEY=VALUE");
const tenantOrText = z.union([tenant, tenantText]);

const runnerName = z
  .string()
  .regex(ONE_OR_TWO_NAMES, "must be the name of a runner, or NETWORK/RUNNER")
  .meta({ examples: ["node1", "training/node1"] });

/** In a query, all values are text. */
const flag = z
  .union([z.boolean(), z.enum(["true", "false"]).transform((text) => text === "true")], "must be true or false")
  .optional();

/** A runner's subnet, or a pool by its name. A runner whose name only one network has needs no network. */
const where = {
  network: resourceName.optional().describe("The network of the runner."),
  runner: runnerName
    .optional()
    .describe("The runner: NAME if only one network has it, NETWORK/NAME, or NAME with `network`."),
  pool: z.string().min(1).optional().describe("Instead of a runner: an IPPool, or any pool of addresses or ports."),
};
const value = {
  ip: ip.optional().describe("The address."),
  port: portOption.optional().describe("In a pool of ports: the port."),
};
const vm = flag.describe("For a virtual machine.");
const by = plainName.describe("The container or virtual machine.");
const token = z.string().describe("The token that `ip/reserve` answered.");

export const poolChoiceInput = z.object(where);
export const reserveInput = z.object({
  ...where,
  ...value,
  anyRunner: flag.describe("On any runner of `network`. `placement` alone says so, too."),
  placement: z.enum(PLACEMENTS).optional().describe("How any runner is chosen; default mostFree."),
  type: resourceName.optional().describe("Instead of a pool: the tenant's own pool of this type, made at first use."),
  tenant: tenantText.optional().describe("With `type`: ORGANIZATION/PROJECT. Default: the tenant of the access token."),
  count: integerBetween(1, 64, "addresses from 1 to 64")
    .optional()
    .describe("Number of addresses, all or none. With `count` the answer is a list."),
  ttl: ttl.optional().describe("Seconds for which it may stay unused; default 300, 1800 with `vm`."),
  vm,
  by: by.optional().describe("The container that it is for; the same container gets the same reservation again."),
  owner: plainName.optional().describe("Instead of a container: the same owner gets the same reservation again."),
  key: z
    .string()
    .regex(new RegExp(`^${PRINTABLE}{1,200}$`, "u"), "must be 1 to 200 printable characters")
    .optional()
    .describe("A request with the same key gets the same reservation again."),
});
export const validateInput = z.object({
  token,
  runner: z.string().optional().describe("The runner that the token must be for: NAME or NETWORK/NAME."),
  offline: flag.describe("Check signature and expiry only, without the store."),
});
export const useInput = z.object({ ...where, ...value, token: token.optional(), by, vm });
export const releaseInput = z.object({ ...where, token: token.optional(), by: by.optional() });
export const freeInput = z.object({
  ...where,
  ...value,
  force: flag.describe("Also if a Pulumi stack holds it; its next run requests it again."),
});
export const holdInput = z.object({ ...where, ...value, ttl: ttl.default(30) });
export const addressInput = z.object({ ...where, ip: ip.describe("The address.") });

/** `POOL/VALUE`, such as `runner/training/node1/10.128.64.5`: the lease after which a page begins. */
const cursor = z.string().transform((text, context) => {
  const [, pool, value = ""] = /^(.+)\/([^/]+)$/.exec(text) ?? [];
  const point = /^\d{1,5}$/.test(value) ? BigInt(value) : tryParseIp(value);
  if (pool !== undefined && point !== undefined) return { pool, value: point };
  context.addIssue({ code: "custom", message: "must be POOL/VALUE, as the page before named it" });
  return z.NEVER;
});

const size = limit.optional().describe("Entries of the page.");
const NEXT = "`next` of the page before.";

export const searchInput = z.object({
  ...where,
  ip: ip.optional().describe("Only this address."),
  owner: z.string().optional().describe("Only of owners whose name contains this text."),
  by: by.optional().describe("Only of this container."),
  labels: z.array(label).max(20).optional(),
  tenant: tenantOrText.optional(),
  state: z.enum(["offered", "reserved", "used", "quarantined"]).optional().describe("Default: reserved and used."),
  limit: size,
  after: cursor.optional().describe(NEXT),
});

export const availableInput = z.object({
  ...where,
  limit: integerBetween(0, 1000, "from 0 to 1000")
    .default(100)
    .describe("How many free addresses of each pool are listed; default 100."),
  /** The pool after which the page begins. */
  after: z.string().optional().describe(NEXT),
});

/** A page of pools whose names begin with `prefix`, after the pool of this name. */
export const poolPageInput = z.object({
  prefix: z.string().optional().describe("What their names begin with, such as `runner/training/`."),
  limit: size,
  after: z.string().optional().describe(NEXT),
});

export const runnerInput = z.object({ network: where.network, runner: runnerName });

const workloads = z
  .array(z.object({ name: plainName, ip, ip6: ip.optional() }))
  .max(4000)
  .optional();

/** What runs on a runner. */
export const reportInput = runnerInput.extend({
  containers: workloads,
  vms: workloads,
  /** The lists that are given are complete: what is not in them does not run. */
  complete: z.boolean().optional(),
  /** Release the addresses of what does not run. */
  free: z.boolean().optional(),
  /** Seconds. An address that was changed later is not missed: its container may be younger than the report. */
  olderThan: integerBetween(0, 86_400, "seconds from 0 to 86400").default(60),
});

/** Inputs of an IPPool; `parent` is the name of one. */
export const createPoolInput = ipPool.inputs.extend({ parent: poolPath.optional() });
export const deletePoolInput = z.object({ pool: z.string().min(1) });

/** As Kubernetes writes the uid of a service. */
const serviceUid = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$/, "must be 1 to 200 letters, digits, '.', '_', ':' or '-'");

/** In a pool, or in the tenant's own pool of a type. */
const allocationPlace = {
  pool: z.string().min(1).optional(),
  tenant: tenantOrText.optional(),
  type: resourceName.optional(),
};
export const allocateInput = z.object({ uid: serviceUid, ...allocationPlace, ...value, labels });
export const allocationInput = z.object({ uid: serviceUid, ...allocationPlace });

export type PoolChoice = z.output<typeof poolChoiceInput>;
export type ReserveInput = z.output<typeof reserveInput>;
export type ValidateInput = z.output<typeof validateInput>;
export type UseInput = z.output<typeof useInput>;
export type ReleaseInput = z.output<typeof releaseInput>;
export type FreeInput = z.output<typeof freeInput>;
export type HoldInput = z.output<typeof holdInput>;
export type AddressInput = z.output<typeof addressInput>;
export type SearchInput = z.output<typeof searchInput>;
export type AvailableInput = z.output<typeof availableInput>;
export type PoolPageInput = z.output<typeof poolPageInput>;
export type RunnerInput = z.output<typeof runnerInput>;
export type ReportInput = z.output<typeof reportInput>;
export type CreatePoolInput = z.output<typeof createPoolInput>;
export type AllocateInput = z.output<typeof allocateInput>;
export type AllocationInput = z.output<typeof allocationInput>;
