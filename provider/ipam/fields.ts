import { z } from "zod";
import { MAX_IP, type ValueRange } from "../addressing/ip";
import { isJson, isLeaseId, isPoolName, isRange, isText, isUid, isWord, rangeOf, rangeText } from "./store/columns";

/**
 * Fields of the types of the pool, as JSON and in the program: ranges are `FIRST-LAST` in hexadecimal, as in the rows of a store, other
 * bigints are decimal. Each schema encodes and decodes.
 */

export type Json = string | number | boolean | null | Json[] | { [key: string]: Json };

/** Entries of a list in a request. */
const MOST = 10_000;

export const text = z.string().refine(isText, "must be plain text of at most 4000 characters");
export const poolName = z.string().refine(isPoolName, "must be the name of a pool");
export const word = z.string().refine(isWord, "must be a word");
export const uid = z.string().refine(isUid, "must be a uid");
export const leaseId = z.string().refine(isLeaseId, "must be a lease id");
/** An owner of leases that a client makes. The service itself is the owner of others. */
export const givenOwner = text.refine((name) => !name.startsWith("service/"), "must not begin with service/");

/** Milliseconds since 1970 by the store's clock. Not limited: the store may have later ones. */
export const time = z.number().min(-1);
/** Seconds of a ttl or a quarantine: at most ten years, so that every time in the store is one that can be shown. */
export const seconds = z.number().int().min(0).max(315_360_000, "must be seconds, at most ten years");
export const count = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
export const flag = z.boolean();

export const json = z.custom<Json>((value) => value !== undefined && isJson(value), "must be JSON with plain text");
export const list = <S extends z.ZodType>(schema: S) => z.array(schema).max(MOST);
export const labels = z
  .record(text, text)
  .refine((map) => Object.keys(map).length <= MOST, `must have at most ${MOST}`);

export const bigint = z.codec(z.string().regex(/^-?\d{1,40}$/, "must be a whole number"), z.bigint(), {
  decode: (digits) => BigInt(digits),
  encode: String,
});

/** A value of a pool, or -1: before the first one. */
export const value = bigint.refine((value) => -1n <= value && value <= MAX_IP, "must be a value of a pool");
export const size = bigint.refine((size) => 0n < size && size <= MAX_IP, "must be positive, and less than 2^128");

export const range = z.codec(
  z.string().refine(isRange, "must be FIRST-LAST in hexadecimal"),
  z.object({ first: z.bigint().min(0n), last: z.bigint().max(MAX_IP) }),
  {
    decode: (hexadecimal, context): ValueRange => {
      try {
        return rangeOf(hexadecimal);
      } catch {
        context.issues.push({ code: "custom", message: "must not end before it begins", input: hexadecimal });
        return z.NEVER;
      }
    },
    encode: rangeText,
  },
);
/** Of a lease or a pool: each is compared with those that are held. */
export const ranges = z.array(range).max(256);

/** JSON has no undefined, which means in `data` that there is no such entry: an absent `value`. */
export const dataEntries = z.codec(
  list(z.strictObject({ key: text, value: json.exactOptional() })),
  z.record(z.string(), z.union([json, z.undefined()])),
  {
    decode: (entries) => Object.fromEntries(entries.map(({ key, value }) => [key, value])),
    encode: (data) =>
      Object.entries(data).map(([key, value]) => (value === undefined ? { key } : { key, value: value as Json })),
  },
);

type Fields = Record<string, z.ZodType>;
const wrapEach = (fields: Fields, wrap: (schema: z.ZodType) => z.ZodType): Fields =>
  Object.fromEntries(Object.entries(fields).map(([name, schema]) => [name, wrap(schema)]));

/** The same fields, each of which may be absent. */
export const optional = <F extends Fields>(fields: F) =>
  wrapEach(fields, (schema) => schema.exactOptional()) as { [K in keyof F]: z.ZodExactOptional<F[K]> };

/** The same, and null. */
export const removable = <F extends Fields>(fields: F) =>
  wrapEach(fields, (schema) => schema.nullable().exactOptional()) as {
    [K in keyof F]: z.ZodExactOptional<z.ZodNullable<F[K]>>;
  };
