import type { ConnectionOptions } from "node:tls";
import type { PoolConfig } from "pg";
import { OverlayError } from "../../errors";
import { fileNamed } from "./url-file";

export interface Address {
  /** `HOST:PORT/DATABASE`, for messages. */
  place: string;
  user: string;
  schema: string;
  connection: PoolConfig;
}

const KNOWN = ["host", "schema", "connect_timeout", "sslmode", "sslrootcert", "sslcert", "sslkey"];
const FORM = "Write it like postgres://user:password@host:5432/database?sslmode=verify-full&sslrootcert=ca.pem.";

/** Takes a URL apart. No message has any part of it but host, port, database and user: the rest may be secret. */
export function addressOf(url: string): Address {
  const { hostname, port, username, password, pathname, searchParams } = parsed(url);
  const unknown = [...searchParams.keys()].find((key) => !KNOWN.includes(key));
  if (unknown !== undefined) throw invalid(`'${unknown}' is not one of ${KNOWN.join(", ")}.`);
  const host = searchParams.get("host") || decoded(hostname) || "127.0.0.1";
  const user = decoded(username) || "postgres";
  const database = decoded(pathname.slice(1)) || user;
  return {
    place: `${host}:${port || 5432}/${database}`,
    user,
    schema: searchParams.get("schema") || "overlay",
    connection: {
      host: host.replace(/^\[(.*)\]$/, "$1"),
      port: Number(port || 5432),
      user,
      database,
      ...(password && { password: decoded(password) }),
      connectionTimeoutMillis: 1000 * Number(searchParams.get("connect_timeout") || 5),
      ssl: tlsOf(searchParams),
    },
  };
}

function parsed(url: string): URL {
  try {
    return new URL(url);
  } catch {
    // Without a cause: it would carry the URL, and that the password.
    throw invalid("it is not a URL.");
  }
}

/** A password with a plain % in it is a common mistake, and not to be shown. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw invalid("a % in it must be written as %25.");
  }
}

/** As libpq has it, except that nothing is tried in the clear when TLS was asked for. */
function tlsOf(params: URLSearchParams): ConnectionOptions | false {
  const file = (name: string) => (params.has(name) ? fileNamed(name, params.get(name)!, invalid) : undefined);
  const [ca, cert, key] = [file("sslrootcert"), file("sslcert"), file("sslkey")];
  const files = { ...(ca && { ca }), ...(cert && { cert }), ...(key && { key }) };
  switch (params.get("sslmode") ?? (ca ? "verify-full" : "disable")) {
    case "disable":
      return false;
    case "require":
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
