import { describe, expect, test } from "vitest";
import { CODES, type Code, OverlayError } from "../../../provider/errors";
import type { Lease } from "../../../provider/ipam/types";
import { problemHeaders, statusOf, toOverlayError, toProblem } from "../../../service/problem";

/** The status of every code. */
const STATUSES: Record<number, Code[]> = {
  400: [
    "SUBNET_FORMAT",
    "SUBNET_BITS",
    "SUBNET_RANGE",
    "SUBNET_NOT_ALIGNED",
    "INPUT_INVALID",
    "IP_OUTSIDE_POOL",
    "IP_NOT_REQUESTED",
    "TOKEN_FORMAT",
    "TOKEN_KEYS_MISSING",
  ],
  401: ["ACCESS_TOKEN_MISSING", "ACCESS_TOKEN_INVALID"],
  403: ["TENANT_MISMATCH", "TOKEN_SIGNATURE", "TOKEN_RUNNER", "ACCESS_DENIED"],
  404: ["POOL_NOT_FOUND", "LEASE_NOT_FOUND", "ACCESS_TOKEN_NOT_FOUND", "WEBHOOK_NOT_FOUND", "NOT_FOUND"],
  405: ["METHOD_NOT_ALLOWED"],
  408: ["REQUEST_TIMEOUT"],
  409: [
    "POOL_EXHAUSTED",
    "POOL_OVERLAP",
    "POOL_IN_USE",
    "POOL_QUOTA",
    "IP_IN_USE",
    "IP_RESERVED",
    "LEASE_FENCED",
    "LEASE_CHANGED",
    "RESERVATION_EXISTS",
    "PLAN_STALE",
    "PLAN_INCOMPLETE",
    "TOKEN_USED",
    "PORT_CONFLICT",
    "SHARING_CONFLICT",
    "RUNNER_IDS_EXHAUSTED",
    "RUNNER_ID_TAKEN",
    "RUNNER_NAME_TAKEN",
    "NETWORK_EXISTS",
    "ACCESS_TOKEN_EXISTS",
    "WEBHOOK_LIMIT",
    "STORE_LOST",
  ],
  410: ["EVENTS_LOST", "LEASE_EXPIRED", "TOKEN_EXPIRED"],
  413: ["BODY_TOO_LARGE"],
  415: ["BODY_TYPE"],
  429: ["RATE_LIMITED"],
  500: ["SETTING_INVALID", "STORE_CORRUPT", "STORE_VERSION", "STORE_CLOCK", "INTERNAL"],
  502: [
    "DEVICE_FOREIGN",
    "KEY_DUPLICATE",
    "FILE_FOREIGN",
    "ROUTE_OVERLAP",
    "RULE_FOREIGN",
    "SSH_UNREACHABLE",
    "SSH_AUTH",
    "SSH_HOST_KEY",
    "SSH_SUDO",
    "SSH_CUT",
    "HOST_TIMEOUT",
    "HOST_LOCKED",
    "HOST_TOOL_MISSING",
    "HOST_COMMAND_FAILED",
    "RECORD_LOST",
    "FIREWALL_BLOCKED",
    "DOCKER_UNAVAILABLE",
    "DOCKER_NETWORK_FOREIGN",
    "DOCKER_NETWORK_IN_USE",
    "MTU_TOO_SMALL",
    "MTU_TOO_LARGE",
    "VERIFY_FAILED",
  ],
  503: ["STORE_UNAVAILABLE", "STORE_READ_ONLY", "STORE_MOVED", "STORE_CONFLICT", "SERVICE_STOPPING"],
};

describe("every error code", () => {
  const expected = Object.entries(STATUSES).flatMap(([status, codes]) => codes.map((code) => [code, Number(status)]));

  test("is in this table once", () => {
    expect(expected.map(([code]) => code).sort()).toEqual([...CODES].sort());
  });

  test.each(expected as [Code, number][])("%s has status %i, and a title", (code, status) => {
    expect(statusOf(code)).toBe(status);
    const problem = toProblem(new OverlayError(code, "What.", "Fix."));
    expect(problem).toMatchObject({ type: `urn:pulumi-overlay:error:${code}`, status, code });
    expect(problem.title).toMatch(/^[A-Z][a-z ]+$/);
  });
});

test("a problem has what is wrong, what to do and the property", () => {
  const error = new OverlayError("IP_IN_USE", "10.0.0.5 is used by web.", "Use another address.").about("ip");
  expect(toProblem(error)).toEqual({
    type: "urn:pulumi-overlay:error:IP_IN_USE",
    title: "Conflict",
    status: 409,
    detail: "10.0.0.5 is used by web. Use another address.",
    code: "IP_IN_USE",
    what: "10.0.0.5 is used by web.",
    fix: "Use another address.",
    property: "ip",
  });
});

test.each([
  ["an exception", new TypeError("cannot read secret of undefined")],
  ["a corrupt store", new OverlayError("STORE_CORRUPT", "Row secret is broken.", "Repair secret.")],
  ["a store that does not answer", new OverlayError("STORE_UNAVAILABLE", "secret:5432 is down.", "Start secret.")],
  ["something that is no error", "secret"],
])("of %s, a problem has no text", (_, error) => {
  expect(JSON.stringify(toProblem(toOverlayError(error)))).not.toContain("secret");
});

test.each([
  ["ACCESS_TOKEN_MISSING", { "www-authenticate": 'Bearer realm="overlay"' }],
  ["ACCESS_TOKEN_INVALID", { "www-authenticate": 'Bearer realm="overlay", error="invalid_token"' }],
  ["RATE_LIMITED", { "retry-after": "1" }],
  ["STORE_UNAVAILABLE", { "retry-after": "1" }],
  ["IP_IN_USE", {}],
] as const)("%s has the headers that its status demands", (code, headers) => {
  expect(problemHeaders(new OverlayError(code, "What.", "Fix."))).toEqual(headers);
});

test("names the holder of values only to a caller that may see it", () => {
  const error = () => new OverlayError("IP_IN_USE", "10.0.0.1 is used.", "Request another.");
  const lease = { pool: "pool/p", owner: "o", uid: "u", ranges: [{ first: 1n, last: 2n }] } as Lease;
  const [first, last] = ["1", "2"].map((digit) => digit.padStart(32, "0"));
  expect(toProblem(error().heldBy(lease)).holder).toEqual({ ...lease, ranges: [`${first}-${last}`] });
  expect(toProblem(error().heldBy({ ...lease, owner: "another tenant", uid: "", ranges: [] }))).not.toHaveProperty(
    "holder",
  );
});
