import { z } from "zod";
import type { Event, Extent, Lease, PoolSpec } from "./types";

/** What lies under the keys, and how it is written: JSON, with extents as `FIRST-LAST` in hexadecimal. */
export interface Codec<T> {
  encode(value: T): string;
  decode(text: string): T;
}

/** A pool as stored. */
export interface PoolRecord {
  spec: PoolSpec;
  /** The lease that opened it; the address spaces have none. */
  opener?: { pool: string; uid: string };
  /** Opened by an offer: it does not exist any more from this time on. */
  until?: number;
  /** Being deleted: nothing new in it. */
  closing?: boolean;
}

/** Who sits on an extent: one lease, or all that share it under a key. */
export interface Seat {
  extent: Extent;
  uid?: string;
  sharedAs?: string;
}

export interface Counts {
  offered: number;
  reserved: number;
  used: number;
  resting: number;
  /** How many values the leases hold that do not rest; a shared one counts once. */
  held: bigint;
  /** Nothing in the pool expires before this time. */
  soonest?: number;
  /** Lines of its history. */
  events?: number;
}

export type Place = { pool: string; uid: string };
/** A pool that went, and when. */
export type Gone = { pool: string; at: number };

const extentText = ({ first, last }: Extent): string => `${first.toString(16)}-${last.toString(16)}`;

function extentOf(text: string): Extent {
  const dash = text.indexOf("-");
  return { first: BigInt(`0x${text.slice(0, dash)}`), last: BigInt(`0x${text.slice(dash + 1)}`) };
}

/** JSON, with one field written in another way. Every claim goes through here a dozen times: nothing is copied twice. */
const json = <T extends object, K extends keyof T, P>(
  field: K,
  pack: (value: T[K]) => P,
  unpack: (raw: P) => T[K],
): Codec<T> => ({
  encode: (value) => JSON.stringify({ ...value, [field]: pack(value[field]) }),
  decode: (text) => {
    const value = JSON.parse(text);
    value[field] = unpack(value[field]);
    return value;
  },
});

/** Every operation reads its pool, which hardly ever changes: the same text gives the same object. */
function remembering<T extends object>({ encode, decode }: Codec<T>): Codec<T> {
  const known = new Map<string, T>();
  return {
    encode,
    decode: (text) => {
      const value = known.get(text) ?? decode(text);
      if (known.size > 1000) known.clear();
      known.set(text, value);
      return value;
    },
  };
}

const packSpec = ({ extents, reserved, staticOnly, ...spec }: PoolSpec) => ({
  ...spec,
  extents: extents.map(extentText),
  ...(reserved && { reserved: reserved.map(extentText) }),
  ...(staticOnly && { staticOnly: staticOnly.map(extentText) }),
});

const unpackSpec = ({ extents, reserved, staticOnly, ...spec }: ReturnType<typeof packSpec>): PoolSpec => ({
  ...spec,
  extents: extents.map(extentOf),
  ...(reserved && { reserved: reserved.map(extentOf) }),
  ...(staticOnly && { staticOnly: staticOnly.map(extentOf) }),
});

/** Two specs are equal when they are written equally. */
export const specText = (spec: PoolSpec): string => JSON.stringify(packSpec(spec));

const extentList = <T extends { extents: Extent[] }>(): Codec<T> =>
  json<T, "extents", string[]>(
    "extents",
    (extents) => extents.map(extentText),
    (texts) => texts.map(extentOf),
  );

export const leaseCodec = extentList<Lease>();
export const eventCodec = extentList<Event>();
export const poolCodec = remembering(
  json<PoolRecord, "spec", ReturnType<typeof packSpec>>("spec", packSpec, unpackSpec),
);
export const seatCodec = json<Seat, "extent", string>("extent", extentText, extentOf);
export const countsCodec = json<Counts, "held", string>("held", String, BigInt);
export const placeCodec: Codec<Place> = { encode: JSON.stringify, decode: JSON.parse };
export const goneCodec: Codec<Gone> = { encode: JSON.stringify, decode: JSON.parse };

/** Versions `first` to `last` of a store, which belong to one history of it. */
export interface Epoch {
  id: string;
  first: number;
  last: number;
}
/** The epoch that is still open, with the store's version as its `last`. */
export interface StoreHead extends Epoch {
  /** When the epoch began. */
  since: number;
  /** How many epochs there were before it. */
  number: number;
}
const count = z.int().nonnegative();
const epoch = z.strictObject({ id: z.string(), first: count, last: count });
export const epochCodec: Codec<Epoch> = { encode: JSON.stringify, decode: (text) => epoch.parse(JSON.parse(text)) };
const head = epoch.extend({ since: z.number(), number: count });
export const headCodec: Codec<StoreHead> = { encode: JSON.stringify, decode: (text) => head.parse(JSON.parse(text)) };

export const extentCodec: Codec<Extent> = { encode: extentText, decode: extentOf };
export const textCodec: Codec<string> = { encode: (text) => text, decode: (text) => text };

/** Optional fields are there or not, never undefined. */
export function given<T extends object>(fields: { [K in keyof T]: T[K] | undefined }): T {
  const result: Partial<T> = {};
  for (const key in fields) if (fields[key] !== undefined) result[key] = fields[key];
  return result as T;
}
