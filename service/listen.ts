import { isIP } from "node:net";
import { OverlayError } from "../provider/errors";
import { isLoopback } from "../provider/loopback";

/** Where the server listens. */
export type ListenAddress = { host: string; port: number } | { fd: number };

/** The first socket that systemd passes. */
const FIRST_SOCKET = 3;

/** `HOST:PORT`, `[IPV6]:PORT` or `:PORT`; the latter on all addresses. */
export function parseListen(text: string): { host: string; port: number } | undefined {
  const [, bracketed, plain, port] = /^(?:\[([0-9a-f:.%]+)\]|([^\s:[\]]*)):(\d{1,5})$/i.exec(text) ?? [];
  if (port === undefined || Number(port) > 65_535) return undefined;
  if (bracketed !== undefined) return isIP(bracketed) === 6 ? { host: bracketed, port: Number(port) } : undefined;
  return { host: plain === "" ? "::" : plain === "localhost" ? "127.0.0.1" : plain!, port: Number(port) };
}

/** systemd's socket activation: `LISTEN_FDS` sockets were passed to the process `LISTEN_PID`. */
export function findPassedSocket(env: NodeJS.ProcessEnv, pid: number): { fd: number } | undefined {
  if (env.LISTEN_PID !== String(pid) || env.LISTEN_FDS === undefined) return undefined;
  if (env.LISTEN_FDS === "1") return { fd: FIRST_SOCKET };
  throw new OverlayError(
    "SETTING_INVALID",
    `systemd passed ${env.LISTEN_FDS} sockets (LISTEN_FDS).`,
    "Give the socket unit one ListenStream.",
  );
}

export interface Protection {
  hasTls: boolean;
  hasAuthentication: boolean;
}

/** `host` undefined: a Unix socket, which only this machine reaches. */
export function refuseOpenAddress(host: string | undefined, { hasTls, hasAuthentication }: Protection): void {
  if (host === undefined || isLoopback(host) || (hasTls && hasAuthentication)) return;
  const missing = hasTls ? "authentication" : "TLS";
  throw new OverlayError(
    "SETTING_INVALID",
    `Without ${missing} the service listens on loopback addresses only, not on ${host}.`,
    hasTls
      ? "Leave out --no-auth, or listen on 127.0.0.1."
      : "Give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that has TLS.",
  );
}
