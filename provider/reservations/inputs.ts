import { z } from "zod";
import { formatIp, tryParseIp } from "../addressing/ip";
import { plainName, resourceName, tenant } from "../resources/inputs";

/**
 * Inputs of the functions in this folder, from options of a command or from a request. All text is parsed here.
 */

/** In its usual form only: `10.128.064.006` is another address to some programs. */
const ip = z.string().transform((text, context): bigint => {
  const point = tryParseIp(text);
  if (point !== undefined && formatIp(point) === text.toLowerCase()) return point;
  context.addIssue({ code: "custom", message: "must be an IP address in its usual form, like 10.128.64.5 or fd00::5" });
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
    .refine((value) => Number.isInteger(value) && value >= min && value <= max, `must be a whole number: ${what}`);

const ttl = integerBetween(1, 86_400, "seconds from 1 to 86400");
const portOption = integerBetween(1, 65_535, "a port from 1 to 65535");

const label = z.string().regex(/^[^=\s]+=.*$/s, "must be like KEY=VALUE");
const tenantText = z.union([
  tenant,
  z
    .string()
    .regex(/^[^/]+\/[^/]+$/, "must be ORGANIZATION/PROJECT")
    .transform((text) => ({ org: text.split("/")[0]!, project: text.split("/")[1]! })),
]);

/** A runner's subnet, or a pool by its name. */
const where = { network: resourceName.optional(), runner: resourceName.optional(), pool: z.string().min(1).optional() };
const value = { ip: ip.optional(), port: portOption.optional() };
const vm = z.boolean().optional();

const poolChoiceInput = z.object(where);
export const reserveInput = z.object({ ...where, ...value, ttl: ttl.optional(), vm, by: plainName.optional() });
export const useByTokenInput = z.object({ token: z.string(), runner: z.string().optional(), by: plainName, vm });
export const useByAddressInput = z.object({ ...where, ...value, by: plainName, vm });
export const releaseInput = z.object({ ...where, token: z.string().optional(), by: plainName.optional() });
export const freeInput = z.object({ ...where, ...value, force: z.boolean().optional() });
export const holdInput = z.object({ ...where, ...value, ttl: ttl.default(30) });
export const addressInput = z.object({ ...where, ip });
export const searchInput = z.object({
  ...where,
  ip: ip.optional(),
  owner: z.string().optional(),
  by: plainName.optional(),
  labels: z.array(label).optional(),
  tenant: tenantText.optional(),
  state: z.enum(["offered", "reserved", "used", "quarantined"]).optional(),
});

export type PoolChoice = z.output<typeof poolChoiceInput>;
export type ReserveInput = z.output<typeof reserveInput>;
export type UseByTokenInput = z.output<typeof useByTokenInput>;
export type UseByAddressInput = z.output<typeof useByAddressInput>;
export type FreeInput = z.output<typeof freeInput>;
export type HoldInput = z.output<typeof holdInput>;
export type AddressInput = z.output<typeof addressInput>;
export type SearchInput = z.output<typeof searchInput>;
