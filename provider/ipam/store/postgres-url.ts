import type { ConnectionOptions } from "node:tls";
import type { PoolConfig } from "pg";
import { OverlayError } from "../../errors";
import { fileNamed, isLocalHost } from "./server-url";

export interface Address {
  /** `HOST:PORT/DATABASE`, for messages. */
  place: string;
  user: string;
  schema: string;
  /** The URL asks for a connection without TLS to another machine. */
  isExposed: boolean;
  connection: PoolConfig;
}

const KNOWN = ["host", "schema", "connect_timeout", "sslmode", "sslrootcert", "sslcert", "sslkey"];
const FORM = "Write it like postgres://user:password@host:5432/database?sslrootcert=ca.pem.";

/** Takes a URL apart. No message has any part of it but host, port, database and user: the rest may be secret. */
export function parsePostgresUrl(url: string): Address {
  const { hostname, port, username, password, pathname, searchParams } = splitUrl(url);
  const unknown = [...searchParams.keys()].find((key) => !KNOWN.includes(key));
  if (unknown !== undefined) throw invalid(`'${unknown}' is not one of ${KNOWN.join(", ")}.`);
  const host = (searchParams.get("host") || decode(hostname) || "127.0.0.1").replace(/^\[(.*)\]$/, "$1");
  const ssl = parseTls(searchParams, isLocalHost(host));
  const user = decode(username) || "postgres";
  const database = decode(pathname.slice(1)) || user;
  return {
    place: `${host.includes(":") ? `[${host}]` : host}:${port || 5432}/${database}`,
    user,
    schema: searchParams.get("schema") || "overlay",
    isExposed: ssl === false && !isLocalHost(host),
    connection: {
      host,
      port: Number(port || 5432),
      user,
      database,
      ...(password && { password: decode(password) }),
      connectionTimeoutMillis: 1000 * Number(searchParams.get("connect_timeout") || 5),
      ssl,
    },
  };
}

/** A password with `/`, `?` or `#` in it ends the host too early: its rest would pass for a database or an option. */
function splitUrl(url: string): URL {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    // Without a cause: it would carry the URL, and that the password.
    throw invalid("it is not a URL.");
  }
  if (!url.startsWith("postgres://")) throw invalid("it has no // behind the scheme.");
  const { pathname, search, hash } = parsed;
  if (hash || [pathname, search].some((text) => text.includes("@")))
    throw invalid("in a password / must be written as %2F, ? as %3F, # as %23 and @ as %40.");
  return parsed;
}

/** A password with a plain % in it is a common mistake, and not to be shown. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw invalid("a % in it must be written as %25.");
  }
}

/**
 * Other machines are reached with TLS and a verified certificate unless the URL says `sslmode=disable`; `require` verifies as
 * `verify-full` does. On this machine the modes are libpq's, and without any there is no TLS.
 */
function parseTls(params: URLSearchParams, isLocal: boolean): ConnectionOptions | false {
  const file = (name: string) => (params.has(name) ? fileNamed(name, params.get(name)!, invalid) : undefined);
  const [ca, cert, key] = [file("sslrootcert"), file("sslcert"), file("sslkey")];
  const files = { ...(ca && { ca }), ...(cert && { cert }), ...(key && { key }) };
  switch (params.get("sslmode") ?? (isLocal && !ca ? "disable" : "verify-full")) {
    case "disable":
      return false;
    case "require":
      if (!isLocal) return files;
      return ca ? { ...files, checkServerIdentity: () => undefined } : { ...files, rejectUnauthorized: false };
    case "verify-ca":
      return { ...files, checkServerIdentity: () => undefined };
    case "verify-full":
      return files;
    default:
      throw invalid("sslmode is one of disable, require, verify-ca, verify-full.");
  }
}

const invalid = (reason: string): OverlayError =>
  new OverlayError("SETTING_INVALID", `The address of the PostgreSQL store cannot be used: ${reason}`, FORM);
