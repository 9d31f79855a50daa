import { expect, test } from "vitest";
import { isLoopbackName } from "../../../provider/loopback";
import { findPassedSocket, parseListen, refuseOpenAddress } from "../../../service/listen";
import { createLog, redact } from "../../../service/log";
import { RateLimit } from "../../../service/rate-limit";
import { readServiceSettings } from "../../../service/settings";
import { parseTraceContext, requestIdOf } from "../../../service/trace";

const codeOf = (work: () => unknown): string => {
  try {
    work();
    return "done";
  } catch (error) {
    return (error as { code?: string }).code ?? String(error);
  }
};

test.each([
  ["127.0.0.1:7447", { host: "127.0.0.1", port: 7447 }],
  ["localhost:80", { host: "127.0.0.1", port: 80 }],
  ["[::1]:7447", { host: "::1", port: 7447 }],
  ["[fd00::5]:0", { host: "fd00::5", port: 0 }],
  [":7447", { host: "::", port: 7447 }],
  ["pool.example.com:443", { host: "pool.example.com", port: 443 }],
  ["7447", undefined],
  ["127.0.0.1", undefined],
  ["127.0.0.1:65536", undefined],
  ["::1:7447", undefined],
  ["[127.0.0.1]:7447", undefined],
  ["host name:1", undefined],
])("--listen %s", (text, expected) => {
  expect(parseListen(text)).toEqual(expected);
});

test.each([
  ["127.0.0.1", "done", "done", "done"],
  ["127.9.9.9", "done", "done", "done"],
  ["::1", "done", "done", "done"],
  [undefined, "done", "done", "done"],
  ["0.0.0.0", "SETTING_INVALID", "SETTING_INVALID", "done"],
  ["::", "SETTING_INVALID", "SETTING_INVALID", "done"],
  ["10.0.0.5", "SETTING_INVALID", "SETTING_INVALID", "done"],
  ["127.0.0.1.example.com", "SETTING_INVALID", "SETTING_INVALID", "done"],
  ["pool.example.com", "SETTING_INVALID", "SETTING_INVALID", "done"],
])("address %s: without TLS %s, without authentication %s, with both %s", (host, noTls, noAuth, both) => {
  const outcome = (hasTls: boolean, hasAuthentication: boolean) =>
    codeOf(() => refuseOpenAddress(host, { hasTls, hasAuthentication }));
  expect([outcome(false, true), outcome(true, false), outcome(true, true)]).toEqual([noTls, noAuth, both]);
});

test.each([
  ["localhost", true],
  ["127.0.0.1", true],
  ["[::1]", true],
  ["localhost.example.com", false],
  ["127.0.0.1.nip.io", false],
  ["", false],
])("the name %s leads to loopback: %s", (name, expected) => {
  expect(isLoopbackName(name)).toBe(expected);
});

test.each([
  [{}, undefined],
  [{ LISTEN_PID: "7", LISTEN_FDS: "1" }, undefined],
  [{ LISTEN_PID: "42", LISTEN_FDS: "1" }, { fd: 3 }],
])("socket activation with %o", (env, expected) => {
  expect(findPassedSocket(env, 42)).toEqual(expected);
});

test("several sockets are refused", () => {
  expect(codeOf(() => findPassedSocket({ LISTEN_PID: "42", LISTEN_FDS: "2" }, 42))).toBe("SETTING_INVALID");
});

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
test.each([
  [`00-${TRACE}-00f067aa0ba902b7-01`, TRACE],
  [`00-${TRACE.toUpperCase()}-00f067aa0ba902b7-01`, undefined],
  [`00-${"0".repeat(32)}-00f067aa0ba902b7-01`, undefined],
  [`00-${TRACE}-${"0".repeat(16)}-01`, undefined],
  [`01-${TRACE}-00f067aa0ba902b7-01`, undefined],
  [`00-${TRACE}-00f067aa0ba902b7-01-more`, undefined],
  ["", undefined],
  [undefined, undefined],
])("traceparent %s", (traceparent, traceId) => {
  const trace = parseTraceContext({ ...(traceparent !== undefined && { traceparent }), tracestate: "a=1" });
  expect([trace?.traceId, trace?.tracestate]).toEqual([traceId, traceId && "a=1"]);
});

/** A member of so many characters. */
const member = (key: string, length: number): string => `${key}=${"x".repeat(length - key.length - 1)}`;
test.each([
  ["congo=t61rcWkgMzE", "congo=t61rcWkgMzE"],
  ["rojo=00f067aa0ba902b7 , \tcongo=a b,,", "rojo=00f067aa0ba902b7,congo=a b"],
  ["tenant@vendor=1,0a_-*/=!~", "tenant@vendor=1,0a_-*/=!~"],
  ["", undefined],
  [" , ", undefined],
  ["congo", undefined],
  ["Congo=1", undefined],
  ["congo=", undefined],
  ["congo=a=b", undefined],
  ["congo=\u00e4", undefined],
  ["congo=a\nb", undefined],
  ["good=1,b\u0000ad=1", undefined],
  [member("k", 258), member("k", 258)],
  [member("k", 259), undefined],
  [Array.from({ length: 32 }, (_, i) => `k${i}=1`).join(), Array.from({ length: 32 }, (_, i) => `k${i}=1`).join()],
  [Array.from({ length: 33 }, (_, i) => `k${i}=1`).join(), undefined],
  [`${member("a", 129)},${member("b", 128)},${member("c", 255)}`, member("b", 128)],
  [["a", "b", "c", "d"].map((key) => member(key, 128)).join(), ["a", "b", "c"].map((key) => member(key, 128)).join()],
])("tracestate %j", (tracestate, expected) => {
  const traceparent = `00-${TRACE}-00f067aa0ba902b7-01`;
  expect(parseTraceContext({ traceparent, tracestate })?.tracestate).toBe(expected);
});

test("a client's request id is kept if it is plain, else replaced", () => {
  expect(requestIdOf({ "x-request-id": "job-17:a" })).toBe("job-17:a");
  for (const given of ['a"b', "a b", "", "x".repeat(129)])
    expect(requestIdOf({ "x-request-id": given })).toMatch(/^[0-9a-f-]{36}$/);
});

test("a key may make so many requests a second, and as many at once; others have their own", () => {
  let now = 0;
  const limit = new RateLimit(4, () => now);
  const take = (n: number, key = "a") =>
    Array.from({ length: n }, () => limit.take(key)).filter((taken) => taken).length;
  expect(take(6)).toBe(4);
  expect(take(1, "b")).toBe(1);
  now = 500;
  expect(take(6)).toBe(2);
  now = 60_000;
  expect(take(6)).toBe(4);
  limit.giveBack("a");
  expect(take(6)).toBe(1);
  limit.charge("a", 100);
  now += 1000;
  expect(take(1)).toBe(0);
  now += 1000;
  expect(take(6)).toBe(4);
});

test.each([
  ["an access token", `ovl_0a1b2c3d_${"x".repeat(43)}`],
  ["a token of a reservation", `ipr1.abcd-_12.${"eyJw".repeat(20)}.${"M".repeat(43)}`],
  ["a password in a URL", "postgres://overlay:hunter2-secret@db/overlay"],
  ["a header", "authorization: Bearer hunter2-secret"],
])("%s is not in a log line", (_, text) => {
  const lines: string[] = [];
  createLog("info", (line) => lines.push(line)).info({ url: `/x?token=${text}` }, `failed: ${text}`);
  const [line] = lines;
  expect(JSON.parse(line!)).toMatchObject({ level: "info" });
  expect(line).toContain("[redacted]");
  for (const secret of ["xxxxx", "MMMMM", "hunter2"]) expect(line).not.toContain(secret);
});

test.each([
  ["postgres://ops:hunter2/x@y@db.example/pool", "postgres://ops:[redacted]@db.example/pool"],
  ["webhook whsec_AbC-123 made", "webhook [redacted] made"],
])("%s is logged as %s", (text, expected) => {
  expect(redact(text)).toBe(expected);
});

test("what is no secret stays as it is", () => {
  const text = "GET /api/overlay/ip/info/node1 https://127.0.0.1:7447 at 10:20";
  expect(redact(text)).toBe(text);
});

test("settings come from options, then from the environment, then from defaults", () => {
  expect(readServiceSettings({ rateLimit: "5" }, { OVERLAY_RATE_LIMIT: "7", OVERLAY_LISTEN: "[::1]:9" })).toMatchObject(
    {
      listen: { host: "::1", port: 9 },
      rateLimit: 5,
      bodyLimit: 65_536,
      noAuth: false,
    },
  );
  expect(readServiceSettings({}, { OVERLAY_NO_AUTH: "true" }).noAuth).toBe(true);
});

test.each([
  [{ listen: "nonsense" }, "listen must be HOST:PORT"],
  [{ tlsCert: "a.pem" }, "must be given together with tlsKey"],
  [{ tlsKey: "a.pem" }, "must be given together with tlsKey"],
  [{ clientCa: "a.pem" }, "clientCa must be given with tlsCert"],
  [{ bodyLimit: "0" }, "bodyLimit must be"],
  [{ logLevel: "loud" }, "logLevel must be"],
])("settings %o are refused", (options, text) => {
  expect(codeOf(() => readServiceSettings(options, {}))).toBe("SETTING_INVALID");
  expect(() => readServiceSettings(options, {})).toThrow(text);
});
