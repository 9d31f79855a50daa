import { describe, expect, test } from "vitest";
import { openEngine } from "../../../provider/ipam";
import { parseServiceUrl } from "../../../provider/ipam/remote/url";
import { parseEtcdUrl } from "../../../provider/ipam/store/etcd/url";
import { parsePostgresUrl } from "../../../provider/ipam/store/postgres-url";

type Mode = "plain" | "unverified" | "authority only" | "verified";

function postgresMode(url: string): Mode {
  const ssl = parsePostgresUrl(url).connection.ssl;
  if (typeof ssl !== "object") return "plain";
  if (ssl.rejectUnauthorized === false) return "unverified";
  return ssl.checkServerIdentity ? "authority only" : "verified";
}

/** Any file that can be read serves as a certificate here. */
const CA = encodeURIComponent(__filename);

describe("PostgreSQL", () => {
  test.each<[url: string, mode: Mode, isExposed: boolean]>([
    ["postgres://me@db.example/overlay", "verified", false],
    ["postgres://me@10.0.0.5/overlay", "verified", false],
    ["postgres://me@[2001:db8::5]/overlay", "verified", false],
    ["postgres://me@127.example/overlay", "verified", false],
    ["postgres://me@localhost.example/overlay", "verified", false],
    ["postgres://me@localhost/overlay?host=10.0.0.5", "verified", false],
    [`postgres://me@db.example/overlay?sslrootcert=${CA}`, "verified", false],
    ["postgres://me@db.example/overlay?sslmode=require", "verified", false],
    [`postgres://me@db.example/overlay?sslmode=require&sslrootcert=${CA}`, "verified", false],
    ["postgres://me@db.example/overlay?sslmode=verify-full", "verified", false],
    ["postgres://me@db.example/overlay?sslmode=verify-ca", "authority only", false],
    ["postgres://me@db.example/overlay?sslmode=disable", "plain", true],
    ["postgres://me@localhost/overlay", "plain", false],
    ["postgres://me@127.0.0.2/overlay", "plain", false],
    ["postgres://me@[::1]:5433/overlay", "plain", false],
    ["postgres:///overlay", "plain", false],
    ["postgres:///overlay?host=/run/postgresql", "plain", false],
    ["postgres://me@localhost/overlay?sslmode=disable", "plain", false],
    ["postgres://me@localhost/overlay?sslmode=require", "unverified", false],
    [`postgres://me@localhost/overlay?sslmode=require&sslrootcert=${CA}`, "authority only", false],
    [`postgres://me@localhost/overlay?sslrootcert=${CA}`, "verified", false],
    ["postgres://me@localhost/overlay?sslmode=verify-full", "verified", false],
  ])("%s: %s", (url, mode, isExposed) => {
    expect(postgresMode(url)).toBe(mode);
    expect(parsePostgresUrl(url).isExposed).toBe(isExposed);
  });

  test.each([
    "postgres:me:hidden@db/overlay",
    "postgres://me:1/hidden@db/overlay",
    "postgres://me:1?hidden@db/overlay",
    "postgres://me:1#hidden@db/overlay",
    "postgres://me:1?hidden=x@db/overlay",
    "postgres://me:hid%den@db/overlay",
  ])("%s is refused without a part of the password", (url) => {
    expect(() => parsePostgresUrl(url)).toThrow(/^SETTING_INVALID: (?!.*(hidden|den))/);
  });
});

describe("etcd", () => {
  test.each<[url: string, members: string[], isExposed: boolean]>([
    ["etcd://a,b:2380/x", ["https://a:2379", "https://b:2380"], false],
    ["etcd://127.0.0.1:1,10.0.0.5:2/x", ["https://127.0.0.1:1", "https://10.0.0.5:2"], false],
    ["etcd://a/x?tls=true", ["https://a:2379"], false],
    ["etcd://a/x?tls=false", ["http://a:2379"], true],
    [
      "etcd://127.0.0.1:1,localhost,[::1]:2/x",
      ["http://127.0.0.1:1", "http://localhost:2379", "http://[::1]:2"],
      false,
    ],
    ["etcd://localhost/x?tls=true", ["https://localhost:2379"], false],
    [`etcd://localhost/x?ca=${CA}`, ["https://localhost:2379"], false],
  ])("%s: %s", (url, members, isExposed) => {
    const cluster = parseEtcdUrl(url);
    expect([cluster.members, cluster.isExposed]).toEqual([members, isExposed]);
    expect(cluster.tls !== undefined).toBe(members[0]!.startsWith("https:"));
  });

  test.each([
    "etcd://me:1/hidden@db:2379/overlay",
    "etcd://me:hidden/1@db:2379/overlay",
    "etcd://me:x@hidden/y@db/overlay",
    "etcd://me:1/x?hidden=y@db/overlay",
    "etcd://me:hidden/overlay",
    "etcd://me:hid%den@db/overlay",
  ])("%s is refused without a part of the password", (url) => {
    expect(() => parseEtcdUrl(url)).toThrow(/^SETTING_INVALID: (?!.*(hidden|den))/);
  });
});

describe("a service", () => {
  test.each<[url: string, base: string]>([
    ["https://overlay.example", "https://overlay.example"],
    ["https://overlay.example/", "https://overlay.example"],
    ["https://overlay.example:8443/ipam/", "https://overlay.example:8443/ipam"],
    [`https://overlay.example/?ca=${CA}&timeout=3`, "https://overlay.example"],
    ["https://[2001:db8::5]:8443", "https://[2001:db8::5]:8443"],
    ["http://localhost:7447", "http://localhost:7447"],
    ["http://127.0.0.2:7447", "http://127.0.0.2:7447"],
    ["http://[::1]:7447/x", "http://[::1]:7447/x"],
  ])("%s", (url, base) => {
    expect(parseServiceUrl(url)).toMatchObject({ base, place: base });
  });

  test("has the authority, and a certificate of the client, from files", () => {
    const { tls, timeout } = parseServiceUrl(`https://h?ca=${CA}&cert=${CA}&key=${CA}&timeout=2`);
    expect([Object.keys(tls), timeout]).toEqual([["ca", "cert", "key"], 2000]);
  });

  test.each<[url: string, reason: RegExp]>([
    ["http://overlay.example", /could be read in transit/],
    ["http://10.0.0.5:7447", /could be read in transit/],
    ["http://localhost.example", /could be read in transit/],
    ["https://me:hidden@overlay.example", /overlay:storeToken/],
    ["https://hidden@overlay.example", /overlay:storeToken/],
    ["https://overlay.example?token=hidden", /its options are ca, cert, key, timeout/],
    ["https://overlay.example#hidden", /its options are/],
    ["https://overlay.example?ca=/nowhere/at/all", /ca cannot be read/],
    ["https://overlay.example?timeout=soon", /timeout is a number/],
    ["https:overlay.example", /no \/\/ behind the scheme/],
    ["https://", /not a URL/],
  ])("%s is refused", (url, reason) => {
    expect(() => parseServiceUrl(url)).toThrow(/^SETTING_INVALID: (?!.*hidden)/);
    expect(() => parseServiceUrl(url)).toThrow(reason);
  });
});

test.each(["postgress://x/y", "nonsense", "", "sqlite:"])("the store '%s' is not a setting", async (url) => {
  await expect(openEngine(url)).rejects.toMatchObject({ code: "SETTING_INVALID" });
});
