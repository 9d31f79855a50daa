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
 * Inputs of the functions in this folder, from options of a command or from a request. All text is parsed here.
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

/** A runner's subnet, or a pool by its name. A runner whose name only one network has needs no network. */
const where = { network: resourceName.optional(), runner: runnerName.optional(), pool: z.string().min(1).optional() };
const value = { ip: ip.optional(), port: portOption.optional() };
const vm = z.boolean().optional();

const poolChoiceInput = z.object(where);
export const reserveInput = z.object({
  ...where,
  ...value,
  /** On any runner of `network`. `placement` alone says so, too. */
  anyRunner: z.boolean().optional(),
  placement: z.enum(PLACEMENTS).optional(),
  /** In the tenant's own pool of this type, which is made at first use. */
  type: resourceName.optional(),
  tenant: tenantText.optional(),
  count: integerBetween(1, 64, "addresses from 1 to 64").optional(),
  ttl: ttl.optional(),
  vm,
  by: plainName.optional(),
  owner: plainName.optional(),
  /** As in the header Idempotency-Key. */
  key: z
    .string()
    .regex(new RegExp(`^${PRINTABLE}{1,200}$`, "u"), "must be 1 to 200 printable characters")
    .optional(),
});
export const validateInput = z.object({
  token: z.string(),
  runner: z.string().optional(),
  offline: z.boolean().optional(),
});
export const useByTokenInput = z.object({ token: z.string(), runner: z.string().optional(), by: plainName, vm });
export const useByAddressInput = z.object({ ...where, ...value, by: plainName, vm });
export const releaseInput = z.object({ ...where, token: z.string().optional(), by: plainName.optional() });
export const freeInput = z.object({ ...where, ...value, force: z.boolean().optional() });
export const holdInput = z.object({ ...where, ...value, ttl: ttl.default(30) });
export const addressInput = z.object({ ...where, ip });

/** `POOL/VALUE`, such as `runner/training/node1/10.128.64.5`: the lease after which a page begins. */
const cursor = z.string().transform((text, context) => {
  const [, pool, value = ""] = /^(.+)\/([^/]+)$/.exec(text) ?? [];
  const point = /^\d{1,5}$/.test(value) ? BigInt(value) : tryParseIp(value);
  if (pool !== undefined && point !== undefined) return { pool, value: point };
  context.addIssue({ code: "custom", message: "must be POOL/VALUE, as the page before named it" });
  return z.NEVER;
});

export const searchInput = z.object({
  ...where,
  ip: ip.optional(),
  owner: z.string().optional(),
  by: plainName.optional(),
  labels: z.array(label).max(20).optional(),
  tenant: tenantOrText.optional(),
  state: z.enum(["offered", "reserved", "used", "quarantined"]).optional(),
  limit: limit.optional(),
  after: cursor.optional(),
});

export const availableInput = z.object({
  ...where,
  /** How many free addresses of each pool are listed. */
  limit: integerBetween(0, 1000, "from 0 to 1000").default(100),
  /** The pool after which the page begins. */
  after: z.string().optional(),
});

/** A page of pools whose names begin with `prefix`, after the pool of this name. */
export const poolPageInput = z.object({
  prefix: z.string().optional(),
  limit: limit.optional(),
  after: z.string().optional(),
});

export const runnerInput = z.object({ network: resourceName.optional(), runner: runnerName });

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
export type UseByTokenInput = z.output<typeof useByTokenInput>;
export type UseByAddressInput = z.output<typeof useByAddressInput>;
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
