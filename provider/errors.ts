import type { Lease } from "./ipam/types";

/** What kind of failure an error is. Interfaces map it to their own status: HTTP in service/problem.ts. */
export type Category =
  | "invalid"
  | "unauthenticated"
  | "forbidden"
  | "notFound"
  | "conflict"
  | "exhausted"
  | "gone"
  | "rateLimited"
  | "hostFailed"
  | "unavailable"
  | "internal";

/** All error codes. */
const CATEGORIES = {
  SUBNET_FORMAT: "invalid",
  SUBNET_BITS: "invalid",
  SUBNET_RANGE: "invalid",
  SUBNET_NOT_ALIGNED: "invalid",
  INPUT_INVALID: "invalid",
  SETTING_INVALID: "internal",
  POOL_NOT_FOUND: "notFound",
  POOL_EXHAUSTED: "exhausted",
  POOL_OVERLAP: "conflict",
  POOL_IN_USE: "conflict",
  POOL_QUOTA: "exhausted",
  TENANT_MISMATCH: "forbidden",
  IP_IN_USE: "conflict",
  IP_RESERVED: "conflict",
  IP_OUTSIDE_POOL: "invalid",
  IP_NOT_REQUESTED: "invalid",
  EVENTS_LOST: "gone",
  LEASE_NOT_FOUND: "notFound",
  LEASE_EXPIRED: "gone",
  LEASE_FENCED: "conflict",
  LEASE_CHANGED: "conflict",
  RESERVATION_EXISTS: "conflict",
  PLAN_STALE: "conflict",
  TOKEN_FORMAT: "invalid",
  TOKEN_KEYS_MISSING: "invalid",
  TOKEN_SIGNATURE: "forbidden",
  TOKEN_EXPIRED: "gone",
  TOKEN_RUNNER: "forbidden",
  TOKEN_USED: "conflict",
  PORT_CONFLICT: "conflict",
  SHARING_CONFLICT: "conflict",
  RUNNER_IDS_EXHAUSTED: "exhausted",
  RUNNER_ID_TAKEN: "conflict",
  RUNNER_NAME_TAKEN: "conflict",
  NETWORK_EXISTS: "conflict",
  DEVICE_FOREIGN: "hostFailed",
  FILE_FOREIGN: "hostFailed",
  ROUTE_OVERLAP: "hostFailed",
  RULE_FOREIGN: "hostFailed",
  SSH_UNREACHABLE: "hostFailed",
  SSH_AUTH: "hostFailed",
  SSH_HOST_KEY: "hostFailed",
  SSH_SUDO: "hostFailed",
  SSH_CUT: "hostFailed",
  HOST_TIMEOUT: "hostFailed",
  HOST_LOCKED: "hostFailed",
  HOST_TOOL_MISSING: "hostFailed",
  HOST_COMMAND_FAILED: "hostFailed",
  RECORD_LOST: "hostFailed",
  FIREWALL_BLOCKED: "hostFailed",
  DOCKER_UNAVAILABLE: "hostFailed",
  DOCKER_NETWORK_FOREIGN: "hostFailed",
  DOCKER_NETWORK_IN_USE: "hostFailed",
  MTU_TOO_SMALL: "hostFailed",
  VERIFY_FAILED: "hostFailed",
  STORE_UNAVAILABLE: "unavailable",
  STORE_READ_ONLY: "unavailable",
  STORE_LOST: "conflict",
  STORE_MOVED: "unavailable",
  STORE_CONFLICT: "unavailable",
  STORE_CORRUPT: "internal",
  STORE_VERSION: "internal",
  STORE_CLOCK: "internal",
  ACCESS_TOKEN_MISSING: "unauthenticated",
  ACCESS_TOKEN_INVALID: "unauthenticated",
  ACCESS_TOKEN_EXISTS: "conflict",
  ACCESS_TOKEN_NOT_FOUND: "notFound",
  ACCESS_DENIED: "forbidden",
  WEBHOOK_NOT_FOUND: "notFound",
  WEBHOOK_LIMIT: "exhausted",
  NOT_FOUND: "notFound",
  METHOD_NOT_ALLOWED: "invalid",
  BODY_TOO_LARGE: "invalid",
  BODY_TYPE: "invalid",
  REQUEST_TIMEOUT: "invalid",
  RATE_LIMITED: "rateLimited",
  SERVICE_STOPPING: "unavailable",
  INTERNAL: "internal",
} as const satisfies Record<string, Category>;

export type Code = keyof typeof CATEGORIES;

export const CODES = Object.keys(CATEGORIES) as Code[];

export const categoryOf = (code: Code): Category => CATEGORIES[code];

/** Terminal control characters and characters that change the direction of text, except line ends and tabs. */
const CONTROLS = /(?![\n\t])[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

/** Text of hosts, stores and users for a terminal: control characters are shown as `\u001b`. */
export const escapeControls = (text: string): string =>
  text.replace(CONTROLS, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The same for text that must stay on one line, so that it cannot imitate other lines of output. */
export const escapeLine = (text: string): string =>
  escapeControls(text).replaceAll("\n", "\\n").replaceAll("\t", "\\t");

/** The only error class: `CODE: what is wrong, with names and numbers. What to do.` It never contains a secret. */
export class OverlayError extends Error {
  override readonly name = "OverlayError";
  readonly what: string;
  /** The input that causes it, if one does. */
  property?: string;
  /** The lease that keeps a request from its values. */
  holder?: Pick<Lease, "pool" | "owner" | "uid" | "extents">;

  constructor(
    readonly code: Code,
    what: string,
    readonly fix: string,
    cause?: unknown,
  ) {
    super(`${code}: ${escapeControls(what)} ${escapeControls(fix)}`, cause === undefined ? {} : { cause });
    this.what = escapeControls(what);
  }

  about(property: string): this {
    this.property = property;
    return this;
  }

  heldBy({ pool, owner, uid, extents }: Lease): this {
    this.holder = { pool, owner, uid, extents };
    return this;
  }
}

export const isOverlayError = (error: unknown, ...codes: Code[]): error is OverlayError =>
  error instanceof OverlayError && (codes.length === 0 || codes.includes(error.code));
