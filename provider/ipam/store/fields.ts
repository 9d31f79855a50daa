/**
 * The form of rows in the store. Other stacks write to it, too, so every field is checked when a row is read. Written by hand:
 * a claim reads a dozen rows, and a schema library would cost more than the rest of the claim.
 */

/** Whether a value of a JSON object is what its field may hold. */
export type Check = (value: unknown) => boolean;

/** A row, or a part of one, that is not in its form. */
export class InvalidField extends Error {
  constructor(readonly field: string) {
    super(field === "" ? "it is not an object" : `field ${field}`);
  }
}

export interface Shape {
  checks: Map<string, Check>;
  required: string[];
}

/** A field that is added to a record must be added here. */
export const shape = <T extends object>(
  required: { [K in keyof T as T[K] extends Exclude<T[K], undefined> ? K : never]?: Check },
  optional: { [K in keyof T]?: Check } = {},
): Shape => ({
  checks: new Map(Object.entries({ ...required, ...optional }) as [string, Check][]),
  required: Object.keys(required),
});

/** Throws `InvalidField`. Fields that only a newer release knows are kept and never used; they must be plain JSON. */
export function requireShape(value: unknown, { checks, required }: Shape): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new InvalidField("");
  const fields = value as Record<string, unknown>;
  for (const key in fields) {
    const [value, check] = [fields[key], checks.get(key)];
    if (value !== undefined && !(check ? check(value) : isText(key) && isJson(value))) throw new InvalidField(key);
  }
  for (const key of required) if (fields[key] === undefined) throw new InvalidField(key);
}

export const isOf =
  (inner: Shape): Check =>
  (value) => {
    try {
      requireShape(value, inner);
      return true;
    } catch (error) {
      if (error instanceof InvalidField) return false;
      throw error;
    }
  };

const matchesPattern =
  (pattern: RegExp): Check =>
  (value) =>
    typeof value === "string" && pattern.test(value);

const CONTROL = /\p{Cc}/u;
/** Free text: owners, users, labels. It is shown, escaped, and is never a part of a command. */
export const isText: Check = (value) => typeof value === "string" && value.length <= 4000 && !CONTROL.test(value);

/** Names of pools, types, ids: nothing that a shell would take for more than a word. */
export const isPoolName = matchesPattern(/^[\w.:%@+=,~/-]{1,1000}$/);
export const isWord = matchesPattern(/^[\w.-]{1,200}$/);
export const isUid = matchesPattern(/^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/);
export const isLeaseId = matchesPattern(/^[A-Za-z0-9][A-Za-z0-9.-]{0,128}$/);
export const isValue = matchesPattern(/^[0-9a-f]{32}$/);
export const isRange = matchesPattern(/^[0-9a-f]{32}-[0-9a-f]{32}$/);
export const isDigits = matchesPattern(/^-?\d{1,40}$/);
/** `tcp/80` */
export const isPort = matchesPattern(/^(tcp|udp|sctp)\/\d{1,5}$/);

export const isNumber: Check = (value) => typeof value === "number";
export const isCount: Check = (value) => Number.isSafeInteger(value);
export const isBoolean: Check = (value) => typeof value === "boolean";

export const isListOf =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check);

export const isOneOf = (...words: string[]): Check => {
  const known = new Set<unknown>(words);
  return (value) => known.has(value);
};

export const isTextMap: Check = (value) =>
  typeof value === "object" &&
  value !== null &&
  !Array.isArray(value) &&
  Object.entries(value).every(([key, each]) => isText(key) && isText(each));

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
