import { OverlayError } from "../../../errors";
import { fileNamed, isLocalHost } from "../server-url";

export interface Cluster {
  /** `HOST:PORT,HOST:PORT/PREFIX`, for messages. */
  place: string;
  /** With `http://` or `https://`. */
  members: string[];
  /** Ends with a slash. */
  prefix: string;
  /** The URL asks for connections without TLS, and a member is on another machine. */
  isExposed: boolean;
  tls?: { ca?: Buffer; cert?: Buffer; key?: Buffer };
  login?: { username: string; password: string };
  /** Milliseconds for one question to one member. */
  timeout: number;
}

const KNOWN = ["tls", "ca", "cert", "key", "user", "timeout"];
const FORM = "Write it like etcd://user:password@host1:2379,host2:2379,host3:2379/prefix?ca=ca.pem.";
const URL_FORM = /^etcd:\/\/(?:([^@/]*)@)?([^@/?]+)(?:\/([^?]*))?(?:\?(.*))?$/;

const HOST = /^([^:[\]]+|\[[^\]]+\])(:\d{1,5})?$/;

/** Takes a URL apart. No message has any part of it but hosts, prefix and user: the rest may be secret. */
export function parseEtcdUrl(url: string): Cluster {
  const [, userinfo = "", hosts, path = "", query] = URL_FORM.exec(url) ?? [];
  // A password with / or @ in it ends the host too early: its rest would pass for a prefix or an option.
  if ([path, query].some((part) => part?.includes("@")))
    throw invalid("in a password / must be written as %2F, ? as %3F and @ as %40.");
  if (hosts === undefined || !hosts.split(",").every((host) => HOST.test(host)))
    throw invalid("it does not have that form.");
  const params = new URLSearchParams(query);
  const unknown = [...params.keys()].find((key) => !KNOWN.includes(key));
  if (unknown !== undefined) throw invalid(`'${unknown}' is not one of ${KNOWN.join(", ")}.`);
  const isLocal = hosts.split(",").every((host) => isLocalHost(host.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1")));
  const tls = parseTls(params, isLocal);
  const prefix = decoded(path).replace(/\/*$/, "") || "overlay";
  const login = loginOf(userinfo, params.get("user"));
  return {
    place: `${hosts}/${prefix}`,
    members: hosts
      .split(",")
      .map((host) => `${tls ? "https" : "http"}://${/:\d+$/.test(host) ? host : `${host}:2379`}`),
    prefix: `${prefix}/`,
    isExposed: !tls && !isLocal,
    timeout: 1000 * Number(params.get("timeout") || 3),
    ...(tls && { tls }),
    ...(login && { login }),
  };
}

function loginOf(userinfo: string, user: string | null): Cluster["login"] {
  const [name = "", ...rest] = userinfo.split(":");
  const username = user ?? decoded(name);
  return username ? { username, password: decoded(rest.join(":")) } : undefined;
}

/** A password with a plain % in it is a common mistake, and not to be shown. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw invalid("a % in it must be written as %25.");
  }
}

/** With TLS, certificates are always verified. Members on other machines are reached with TLS unless the URL says `tls=false`. */
function parseTls(params: URLSearchParams, isLocal: boolean): Cluster["tls"] {
  const file = (name: string) => (params.has(name) ? fileNamed(name, params.get(name)!, invalid) : undefined);
  const [ca, cert, key] = [file("ca"), file("cert"), file("key")];
  const files = { ...(ca && { ca }), ...(cert && { cert }), ...(key && { key }) };
  const asked = params.get("tls") ?? String(!isLocal || Object.keys(files).length > 0);
  if (!["true", "false"].includes(asked)) throw invalid("tls is true or false.");
  return asked === "true" ? files : undefined;
}

const invalid = (reason: string): OverlayError =>
  new OverlayError("SETTING_INVALID", `The address of the etcd store cannot be used: ${reason}`, FORM);
