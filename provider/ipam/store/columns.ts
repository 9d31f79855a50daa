import type { Json, PoolSpec, Port, Tenant, ValueRange } from "../types";

/**
 * Columns of the tables: how SQLite and PostgreSQL store a field, and how it is encoded and decoded. What is decoded comes from a database
 * that others write to, too: it is checked. So is what is encoded, because text that could not be decoded must not be written. The checks are
 * written by hand: a claim reads and writes a dozen rows, and a schema library would cost more than the rest of the claim.
 */
export interface Column<T = unknown, Optional extends boolean = boolean> {
  sqlite: string;
  postgres: string;
  isOptional: Optional;
  /** The name, if it is not that of the field. */
  name?: string;
  /** JSON columns are encoded as values: each engine makes the text in its way. Throws `InvalidField`. */
  encode(value: T): unknown;
  decode(stored: unknown): T;
  isJson?: boolean;
  /** It follows from other columns, and is not read. */
  isDerived?: boolean;
}

/** A value that is not in the form of its field. */
export class InvalidField extends Error {}

// Checks

/** Whether a value is what its field may hold. */
export type Check = (value: unknown) => boolean;

const matches =
  (pattern: RegExp): Check =>
  (value) =>
    typeof value === "string" && pattern.test(value);

const CONTROL = /\p{Cc}/u;
/** Free text: owners, users, labels. It is shown, escaped, and is never a part of a command. */
export const isText: Check = (value) => typeof value === "string" && value.length <= 4000 && !CONTROL.test(value);

/** Names of pools, types, ids: nothing that a shell would take for more than a word. */
export const isPoolName = matches(/^[\w.:%@+=,~/-]{1,1000}$/);
export const isWord = matches(/^[\w.-]{1,200}$/);
export const isUid = matches(/^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/);
export const isLeaseId = matches(/^[A-Za-z0-9][A-Za-z0-9.-]{0,128}$/);
export const isRange = matches(/^[0-9a-f]{32}-[0-9a-f]{32}$/);
const isValue = matches(/^[0-9a-f]{32}$/);
const isDigits = matches(/^-?\d{1,40}$/);
const isPort = matches(/^(tcp|udp|sctp)\/\d{1,5}$/);

const isNumber: Check = (value) => typeof value === "number";
const isBoolean: Check = (value) => typeof value === "boolean";
export const isCount: Check = (value) => Number.isSafeInteger(value);

export const isListOf =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check);

const isOneOf = (...words: string[]): Check => {
  const known = new Set<unknown>(words);
  return (value) => known.has(value);
};

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const isTextMap: Check = (value) =>
  isObject(value) && Object.entries(value).every(([key, each]) => isText(key) && isText(each));

/** Levels of lists and objects in data. */
const MOST_LEVELS = 100;

/** Data of the owner. Its readers parse it. */
export const isJson: Check = (value) => isJsonWithin(value, MOST_LEVELS);

function isJsonWithin(value: unknown, levels: number): boolean {
  if (typeof value === "string") return isText(value);
  if (typeof value !== "object" || value === null) return true;
  if (levels === 0) return false;
  const isInner = (inner: unknown): boolean => inner === undefined || isJsonWithin(inner, levels - 1);
  return Array.isArray(value)
    ? value.every(isInner)
    : Object.entries(value).every(([key, inner]) => isText(key) && isInner(inner));
}

/** An object with these fields. Others are kept and never used; they must be plain JSON. */
export function isOf<T extends object>(
  required: { [K in keyof T as T[K] extends Exclude<T[K], undefined> ? K : never]?: Check },
  optional: { [K in keyof T]?: Check } = {},
): Check {
  const names = Object.keys(required);
  const checks = new Map(Object.entries({ ...required, ...optional }) as [string, Check][]);
  const isField = ([key, value]: [string, unknown]) =>
    value === undefined || (checks.get(key)?.(value) ?? (isText(key) && isJson(value)));
  return (value) =>
    isObject(value) && names.every((name) => value[name] !== undefined) && Object.entries(value).every(isField);
}

// Text and numbers

const invalid = (): InvalidField => new InvalidField("It is not in the form of its field.");

const must = <T>(check: Check, value: unknown): T => {
  if (!check(value)) throw invalid();
  return value as T;
};

type Codec<T> = Pick<Column<T>, "encode" | "decode">;

const column = <T>(sqlite: string, postgres: string, codec: Codec<T>): Column<T, false> => ({
  sqlite,
  postgres,
  isOptional: false,
  ...codec,
});

const TEXT = ["TEXT", 'text COLLATE "C"'] as const;

/** Text that sorts by its bytes. */
export const text = <T extends string = string>(check: Check = isText): Column<T, false> =>
  column<T>(...TEXT, { encode: (value) => must(check, value), decode: (stored) => must(check, stored) });

/** Text that its readers check. */
export const anyText = text((it) => typeof it === "string");
export const uid = text(isUid);
export const poolName = text(isPoolName);
export const word = <T extends string>(...words: T[]): Column<T, false> => text<T>(isOneOf(...words));

const DIGITS = 32;
const HIGHEST = (1n << 128n) - 1n;

/** Values as 32 hexadecimal digits, which sort as the values do. Bounds of a search may lie outside of all values. */
export const hex = (value: bigint): string =>
  value < 0n ? "" : value > HIGHEST ? "g" : value.toString(16).padStart(DIGITS, "0");

export const value = column<bigint>(...TEXT, {
  encode: hex,
  decode: (stored) => BigInt(`0x${must<string>(isValue, stored)}`),
});

/** Of any size, in decimal. */
export const amount = column<bigint>("TEXT", "numeric", {
  encode: String,
  decode: (stored) => BigInt(must<string>(isDigits, stored)),
});

/** Integers. PostgreSQL gives those of 64 bits as text. */
export const count = column<number>("INTEGER", "bigint", {
  encode: (value) => must(isCount, Math.round(value)),
  decode: (stored) => must(isCount, typeof stored === "string" && isDigits(stored) ? Number(stored) : stored),
});

/** Milliseconds since 1970. */
export const time = count;

export const number = column<number>("REAL", "double precision", {
  encode: (value) => value,
  decode: (stored) => must(Number.isFinite as Check, stored),
});

/** SQLite has no booleans. */
export const flag = column<boolean>("INTEGER", "boolean", {
  encode: Number,
  decode: (stored) => Boolean(must(isOneOfFlags, stored)),
});

const FLAGS: unknown[] = [0, 1, false, true];
const isOneOfFlags: Check = (stored) => FLAGS.includes(stored);

// JSON

const json = <T, S = T>(check: Check, pack: (value: T) => S, unpack: (stored: S) => T): Column<T, false> => ({
  ...column<T>("TEXT", "json", {
    encode: (value) => must(check, pack(value)),
    decode: (stored) => unpack(must<S>(check, parse(stored))),
  }),
  isJson: true,
});

const plainJson = <T>(check: Check): Column<T, false> =>
  json<T>(
    check,
    (value) => value,
    (stored) => stored,
  );

function parse(stored: unknown): unknown {
  try {
    return JSON.parse(must((it) => typeof it === "string", stored));
  } catch {
    throw invalid();
  }
}

export const rangeText = ({ first, last }: ValueRange): string => `${hex(first)}-${hex(last)}`;

export function rangeOf(text: string): ValueRange {
  const [first, last] = [BigInt(`0x${text.slice(0, DIGITS)}`), BigInt(`0x${text.slice(DIGITS + 1)}`)];
  if (first > last) throw invalid();
  return { first, last };
}

const isRanges = isListOf(isRange);

/** `["FIRST-LAST", …]` */
export const ranges = json<ValueRange[], string[]>(
  isRanges,
  (ranges) => ranges.map(rangeText),
  (texts) => texts.map(rangeOf),
);

export const texts = (check: Check = isText): Column<string[], false> => plainJson(isListOf(check));
export const uids = texts(isUid);

const portOf = (text: string): Port => {
  const [protocol, port] = text.split("/");
  return { protocol: protocol as Port["protocol"], port: must((it) => Number(it) <= 65535, Number(port)) };
};

/** `["tcp/80", …]` */
export const ports = json<Port[], string[]>(
  isListOf(isPort),
  (list) => list.map(({ protocol, port }) => `${protocol}/${port}`),
  (list) => list.map(portOf),
);

const isTenant = isOf<Tenant>({ org: isText, project: isText });
export const tenant = plainJson<Tenant>(isTenant);
export const labels = plainJson<Record<string, string>>(isTextMap);
export const data = plainJson<Json>(isJson);

type PackedSpec = Omit<PoolSpec, "ranges" | "reserved" | "staticOnly"> &
  Record<"ranges", string[]> &
  Partial<Record<"reserved" | "staticOnly", string[]>>;

const plainSpec = json<PoolSpec, PackedSpec>(
  isOf<PoolSpec>(
    {
      name: isPoolName,
      kind: isOneOf("space", "address", "id", "port"),
      ranges: isRanges,
      allocation: isOneOf("lowest", "hashed", "random", "external"),
    },
    {
      reserved: isRanges,
      staticOnly: isRanges,
      autoAssign: isBoolean,
      avoidBoundaryIps: isBoolean,
      quota: isOf<NonNullable<PoolSpec["quota"]>>({}, { maxIps: isNumber, maxReservations: isNumber }),
      tenant: isTenant,
      warnAtPercent: isNumber,
      reclaimAfter: isNumber,
      data: isJson,
    },
  ),
  ({ ranges, reserved, staticOnly, ...rest }) => ({
    ...rest,
    ranges: ranges.map(rangeText),
    ...(reserved && { reserved: reserved.map(rangeText) }),
    ...(staticOnly && { staticOnly: staticOnly.map(rangeText) }),
  }),
  ({ ranges, reserved, staticOnly, ...rest }) => ({
    ...rest,
    ranges: ranges.map(rangeOf),
    ...(reserved && { reserved: reserved.map(rangeOf) }),
    ...(staticOnly && { staticOnly: staticOnly.map(rangeOf) }),
  }),
);

const decoded = new Map<unknown, PoolSpec>();
const encoded = new WeakMap<PoolSpec, unknown>();

/** Both forms are kept: every transaction has that of its pool, which hardly ever changes. */
export const spec: Column<PoolSpec, false> = {
  ...plainSpec,
  encode: (value) => {
    const found = encoded.get(value) ?? plainSpec.encode(value);
    encoded.set(value, found);
    return found;
  },
  decode: (stored) => {
    const found = decoded.get(stored) ?? plainSpec.decode(stored);
    if (decoded.size > 1000) decoded.clear();
    decoded.set(stored, found);
    return found;
  },
};

// Variants

export const optional = <T>(column: Column<T, false>): Column<T, true> => ({ ...column, isOptional: true });

export const derived = <T>(column: Column<T, false>): Column<T, true> => ({ ...optional(column), isDerived: true });

export const named = <T, O extends boolean>(name: string, column: Column<T, O>): Column<T, O> => ({ ...column, name });
