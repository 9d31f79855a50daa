import { OverlayError } from "../../errors";
import { fileNamed, isLocalHost } from "../store/server-url";

/** A service that does the operations on a store. */
export interface ServiceAddress {
  /** `https://HOST:PORT/PATH`, for messages. */
  place: string;
  /** The same, without a slash at its end: paths are appended. */
  base: string;
  tls: { ca?: Buffer; cert?: Buffer; key?: Buffer };
  /** Milliseconds for which a service that does not answer is asked again. */
  timeout: number;
}

const KNOWN = ["ca", "cert", "key", "timeout"];
const FORM = "Write it like https://overlay.example:7447?ca=ca.pem.";

export const isServiceUrl = (url: string): boolean => /^https?:/.test(url);

/** No message has any part of the URL but host, port and path: the rest may be secret. */
export function parseServiceUrl(url: string): ServiceAddress {
  const { protocol, host, hostname, username, password, pathname, searchParams, hash } = splitUrl(url);
  if (username || password || url.includes("@"))
    throw invalid("it has a user or a password. The access token is a setting of its own, overlay:storeToken.");
  const unknown = [...searchParams.keys()].find((key) => !KNOWN.includes(key));
  if (unknown !== undefined || hash) throw invalid(`its options are ${KNOWN.join(", ")}.`);
  if (protocol === "http:" && !isLocalHost(hostname.replace(/^\[(.*)\]$/, "$1")))
    throw invalid(
      "with http:// the access token could be read in transit. Only a service on this machine may have it.",
    );
  const seconds = Number(searchParams.get("timeout") ?? 10);
  if (!(seconds >= 0 && seconds <= 3600)) throw invalid("timeout is a number of seconds.");
  const base = `${protocol}//${host}${pathname.replace(/\/+$/, "")}`;
  return { place: base, base, tls: readFiles(searchParams), timeout: seconds * 1000 };
}

function splitUrl(url: string): URL {
  if (!/^https?:\/\//.test(url)) throw invalid("it has no // behind the scheme.");
  try {
    return new URL(url);
  } catch {
    throw invalid("it is not a URL."); // without a cause, which would have the URL
  }
}

function readFiles(params: URLSearchParams): ServiceAddress["tls"] {
  const file = (name: string) => (params.has(name) ? fileNamed(name, params.get(name)!, invalid) : undefined);
  const [ca, cert, key] = [file("ca"), file("cert"), file("key")];
  return { ...(ca && { ca }), ...(cert && { cert }), ...(key && { key }) };
}

const invalid = (reason: string): OverlayError =>
  new OverlayError("SETTING_INVALID", `The address of the service cannot be used: ${reason}`, FORM);
