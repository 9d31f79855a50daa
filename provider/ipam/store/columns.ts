import type { Extent, Json, PoolSpec, Port, Tenant } from "../types";
import {
  type Check,
  InvalidField,
  isBoolean,
  isDigits,
  isJson,
  isListOf,
  isNumber,
  isOf,
  isOneOf,
  isPoolName,
  isPort,
  isRange,
  isText,
  isTextMap,
  isUid,
  isValue,
  requireShape,
  shape,
} from "./fields";

/**
 * Columns of the tables: how SQLite and PostgreSQL store a field, and how it is encoded and decoded. What is decoded comes from a database
 * that others write to, too: it is checked. So is what is encoded, because text that could not be decoded must not be written.
 */
export interface Column<T = unknown, Optional extends boolean = boolean> {
  sqlite: string;
  postgres: string;
  isOptional: Optional;
  /** The name, if it is not that of the field. */
  name?: string;
  /** JSON columns are encoded as values: each engine makes the text in its way. Throws `InvalidField` without a field. */
  encode(value: T): unknown;
  decode(stored: unknown): T;
  isJson?: boolean;
  /** It follows from other columns, and is not read. */
  isDerived?: boolean;
}

const invalid = (): InvalidField => new InvalidField("?");

const must = <T>(check: Check, value: unknown): T => {
  if (!check(value)) throw invalid();
  return value as T;
};

const TEXT = { sqlite: "TEXT", postgres: 'text COLLATE "C"', isOptional: false } as const;

/** Text that sorts by its bytes. */
export const text = <T extends string = string>(check: Check = isText): Column<T, false> => ({
  ...TEXT,
  encode: (value) => must(check, value),
  decode: (stored) => must(check, stored),
});

/** Text that its readers check. */
export const anyText = text((it) => typeof it === "string");

export const word = <T extends string>(...words: T[]): Column<T, false> => text<T>(isOneOf(...words));

const DIGITS = 32;
const HIGHEST = (1n << 128n) - 1n;

/** Values as 32 hexadecimal digits, which sort as the values do. Bounds of a search may lie outside of all values. */
export const hex = (value: bigint): string =>
  value < 0n ? "" : value > HIGHEST ? "g" : value.toString(16).padStart(DIGITS, "0");

export const value: Column<bigint, false> = {
  ...TEXT,
  encode: hex,
  decode: (stored) => BigInt(`0x${must<string>(isValue, stored)}`),
};

/** Of any size, in decimal. */
export const amount: Column<bigint, false> = {
  sqlite: "TEXT",
  postgres: "numeric",
  isOptional: false,
  encode: String,
  decode: (stored) => BigInt(must<string>(isDigits, stored)),
};

/** Integers. PostgreSQL gives those of 64 bits as text. */
const integer = (stored: unknown): number => {
  const number = typeof stored === "string" && isDigits(stored) ? Number(stored) : stored;
  return must(Number.isSafeInteger, number);
};

export const count: Column<number, false> = {
  sqlite: "INTEGER",
  postgres: "bigint",
  isOptional: false,
  encode: (value) => must(Number.isSafeInteger, Math.round(value)),
  decode: integer,
};

/** Milliseconds since 1970. */
export const time = count;

export const number: Column<number, false> = {
  sqlite: "REAL",
  postgres: "double precision",
  isOptional: false,
  encode: (value) => value,
  decode: (stored) => must((it) => typeof it === "number" && Number.isFinite(it), stored),
};

const FLAGS = new Map<unknown, boolean>([
  [0, false],
  [1, true],
  [false, false],
  [true, true],
]);

/** SQLite has no booleans. */
export const flag: Column<boolean, false> = {
  sqlite: "INTEGER",
  postgres: "boolean",
  isOptional: false,
  encode: (value) => value,
  decode: (stored) => FLAGS.get(stored) ?? must(() => false, stored),
};

const json = <T>(check: Check, pack: (value: T) => unknown, unpack: (stored: never) => T): Column<T, false> => ({
  sqlite: "TEXT",
  postgres: "json",
  isOptional: false,
  isJson: true,
  encode: (value) => must(check, pack(value)),
  decode: (stored) => unpack(must<never>(check, parse(stored))),
});

function parse(stored: unknown): unknown {
  try {
    return JSON.parse(must((it) => typeof it === "string", stored));
  } catch {
    throw invalid();
  }
}

const same = <T>(value: T): T => value;

export const rangeText = ({ first, last }: Extent): string => `${hex(first)}-${hex(last)}`;

export function rangeOf(text: string): Extent {
  const [first, last] = [BigInt(`0x${text.slice(0, DIGITS)}`), BigInt(`0x${text.slice(DIGITS + 1)}`)];
  if (first > last) throw invalid();
  return { first, last };
}

/** `["FIRST-LAST", …]` */
export const ranges = json<Extent[]>(
  isListOf(isRange),
  (extents) => extents.map(rangeText),
  (texts: string[]) => texts.map(rangeOf),
);

export const texts = (check: Check = isText): Column<string[], false> => json<string[]>(isListOf(check), same, same);

const portOf = (text: string): Port => {
  const [protocol, port] = text.split("/");
  return { protocol: protocol as Port["protocol"], port: must((it) => Number(it) <= 65535, Number(port)) };
};

/** `["tcp/80", …]` */
export const ports = json<Port[]>(
  isListOf(isPort),
  (list) => list.map(({ protocol, port }) => `${protocol}/${port}`),
  (list: string[]) => list.map(portOf),
);

const isTenant = isOf(shape<Tenant>({ org: isText, project: isText }));
export const tenant = json<Tenant>(isTenant, ({ org, project }) => ({ org, project }), same);
export const labels = json<Record<string, string>>(isTextMap, same, same);
export const data = json<Json>(isJson, same, same);

const isRanges = isListOf(isRange);
const specShape = shape<PoolSpec>(
  {
    name: isPoolName,
    kind: isOneOf("space", "address", "id", "port"),
    extents: isRanges,
    allocation: isOneOf("lowest", "hashed", "random", "external"),
  },
  {
    reserved: isRanges,
    staticOnly: isRanges,
    autoAssign: isBoolean,
    avoidBoundaryIps: isBoolean,
    quota: isOf(shape<NonNullable<PoolSpec["quota"]>>({}, { maxIps: isNumber, maxReservations: isNumber })),
    tenant: isTenant,
    warnAtPercent: isNumber,
    reclaimAfter: isNumber,
    data: isJson,
  },
);

const packSpec = ({ extents, reserved, staticOnly, ...rest }: PoolSpec) => ({
  ...rest,
  extents: extents.map(rangeText),
  ...(reserved && { reserved: reserved.map(rangeText) }),
  ...(staticOnly && { staticOnly: staticOnly.map(rangeText) }),
});

const unpackSpec = ({ extents, reserved, staticOnly, ...rest }: ReturnType<typeof packSpec>): PoolSpec => ({
  ...rest,
  extents: extents.map(rangeOf),
  ...(reserved && { reserved: reserved.map(rangeOf) }),
  ...(staticOnly && { staticOnly: staticOnly.map(rangeOf) }),
});

const isSpec: Check = (value) => {
  requireShape(value, specShape);
  return true;
};

const plainSpec = json<PoolSpec>(isSpec, packSpec, unpackSpec);
const known = new Map<unknown, PoolSpec>();

/** Decoded specifications are kept: every transaction reads that of its pool, which hardly ever changes. */
export const spec: Column<PoolSpec, false> = {
  ...plainSpec,
  decode: (stored) => {
    const found = known.get(stored) ?? plainSpec.decode(stored);
    if (known.size > 1000) known.clear();
    known.set(stored, found);
    return found;
  },
};

export const optional = <T>(column: Column<T, false>): Column<T, true> => ({ ...column, isOptional: true });

export const derived = <T>(column: Column<T, false>): Column<T, true> => ({ ...optional(column), isDerived: true });

export const named = <T, O extends boolean>(name: string, column: Column<T, O>): Column<T, O> => ({ ...column, name });

export const uid = text(isUid);
export const uids = texts(isUid);
export const poolName = text(isPoolName);
