/** All error codes. */
export type Code =
  | "SUBNET_FORMAT"
  | "SUBNET_BITS"
  | "SUBNET_RANGE"
  | "SUBNET_NOT_ALIGNED"
  | "INPUT_INVALID"
  | "SETTING_INVALID"
  | "POOL_NOT_FOUND"
  | "POOL_EXHAUSTED"
  | "POOL_OVERLAP"
  | "POOL_IN_USE"
  | "POOL_QUOTA"
  | "TENANT_MISMATCH"
  | "IP_IN_USE"
  | "IP_RESERVED"
  | "IP_OUTSIDE_POOL"
  | "IP_NOT_REQUESTED"
  | "EVENTS_LOST"
  | "LEASE_EXPIRED"
  | "LEASE_FENCED"
  | "LEASE_CHANGED"
  | "RESERVATION_EXISTS"
  | "PLAN_STALE"
  | "TOKEN_FORMAT"
  | "TOKEN_SIGNATURE"
  | "TOKEN_EXPIRED"
  | "TOKEN_RUNNER"
  | "TOKEN_USED"
  | "PORT_CONFLICT"
  | "SHARING_CONFLICT"
  | "RUNNER_IDS_EXHAUSTED"
  | "RUNNER_ID_TAKEN"
  | "RUNNER_NAME_TAKEN"
  | "NETWORK_EXISTS"
  | "DEVICE_FOREIGN"
  | "FILE_FOREIGN"
  | "ROUTE_OVERLAP"
  | "RULE_FOREIGN"
  | "SSH_UNREACHABLE"
  | "SSH_AUTH"
  | "SSH_HOST_KEY"
  | "SSH_SUDO"
  | "SSH_CUT"
  | "HOST_TIMEOUT"
  | "HOST_LOCKED"
  | "HOST_TOOL_MISSING"
  | "HOST_COMMAND_FAILED"
  | "RECORD_LOST"
  | "FIREWALL_BLOCKED"
  | "DOCKER_UNAVAILABLE"
  | "DOCKER_NETWORK_FOREIGN"
  | "DOCKER_NETWORK_IN_USE"
  | "MTU_TOO_SMALL"
  | "VERIFY_FAILED"
  | "STORE_UNAVAILABLE"
  | "STORE_READ_ONLY"
  | "STORE_LOST"
  | "STORE_MOVED"
  | "STORE_CONFLICT"
  | "STORE_CORRUPT"
  | "STORE_VERSION"
  | "STORE_CLOCK";

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
}

export const isOverlayError = (error: unknown, ...codes: Code[]): error is OverlayError =>
  error instanceof OverlayError && (codes.length === 0 || codes.includes(error.code));
