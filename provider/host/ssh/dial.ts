import { connect as connectTcp } from "node:net";
import { addAbortSignal, type Duplex } from "node:stream";
import { NodeSSH } from "node-ssh";
import type { MacAlgorithm } from "ssh2";
import { OverlayError } from "../../errors";
import { type Connection, connectionName, portOf } from "../connection";
import { type ChannelNotOpened, SshClient } from "./client";
import { type Credentials, refusedCredentials, unreadableKey } from "./credentials";
import type { ExpectedKey } from "./host-keys";

/** How a dial failed: the name does not exist, the port is closed, or there was no answer. */
export type DialOutcome = "unknownName" | "closed" | "noAnswer";

/** A dial that failed for a possibly temporary reason: the host is booting, or the network was interrupted. */
export class DialFailed extends Error {
  constructor(
    readonly phase: string,
    readonly reason: string,
    readonly outcome: DialOutcome = "noAnswer",
  ) {
    super(`${phase}: ${reason}`);
  }
}

/** Why a jump host opened no channel (RFC 4254, 5.1). */
const [FORBIDDEN, CONNECT_FAILED] = [1, 2];

const OUTCOMES: Record<string, DialOutcome> = { ENOTFOUND: "unknownName", EAI_AGAIN: "closed", ECONNREFUSED: "closed" };

const REASONS: Record<string, string> = {
  ENOTFOUND: "ENOTFOUND: no such host name",
  EAI_AGAIN: "EAI_AGAIN: the host name cannot be resolved",
  ECONNREFUSED: "ECONNREFUSED: the port is closed",
};

/** ssh2 offers these by default, and no key exchange with SHA-1. */
const SHA1_MACS: MacAlgorithm[] = ["hmac-sha1", "hmac-sha1-etm@openssh.com"];

export interface DialRequest {
  connection: Connection;
  credentials: Credentials;
  expected: ExpectedKey;
  /** The connection to dial through. */
  jump: SshClient | undefined;
  /** Milliseconds for all of it. */
  limit: number;
  /** Seconds between two keepalives. */
  keepalive: number;
  /** Gives up at once. */
  ended: AbortSignal;
}

/** One dial: the stream, the handshake, the login. Throws DialFailed if a retry may succeed. */
export async function dial(request: DialRequest): Promise<SshClient> {
  const start = Date.now();
  const stream = await (request.jump ? openThrough(request, request.jump) : openDirect(request));
  return login(request, stream, Math.max(1, request.limit - (Date.now() - start)));
}

function openDirect({ connection, limit, ended }: DialRequest): Promise<Duplex> {
  // Nagle's delay costs ssh2 40 ms in the handshake and in every command.
  const socket = connectTcp({ host: connection.host, port: portOf(connection), noDelay: true, signal: ended });
  // An open connection must not keep the process alive; running operations have timers that do.
  socket.unref();
  return new Promise((resolve, reject) => {
    const fail = (reason: string) => {
      clearTimeout(timer);
      socket.destroy();
      reject(new DialFailed("dial", REASONS[reason] ?? reason, OUTCOMES[reason]));
    };
    const timer = setTimeout(() => fail(`no answer in ${limit / 1000} s`), limit);
    socket.on("error", (error: NodeJS.ErrnoException) => fail(error.code ?? error.message));
    socket.once("connect", () => {
      clearTimeout(timer);
      resolve(socket);
    });
  });
}

async function openThrough({ connection, limit, ended }: DialRequest, jump: SshClient): Promise<Duplex> {
  try {
    return addAbortSignal(ended, await jump.forward(connection.host, portOf(connection), limit));
  } catch (error) {
    const { message, refusal } = error as ChannelNotOpened;
    const outcome = refusal === CONNECT_FAILED ? "closed" : "noAnswer";
    if (refusal !== FORBIDDEN) throw new DialFailed(`dial${jumpText(connection)}`, message, outcome);
    const what = `The jump host ${connectionName(connection.proxy!)} forbids to reach ${connectionName(connection)} through it.`;
    throw new OverlayError("SSH_UNREACHABLE", what, "Set AllowTcpForwarding yes in its sshd_config.", error);
  }
}

async function login(request: DialRequest, stream: Duplex, limit: number): Promise<SshClient> {
  const { credentials, expected } = request;
  let refused: OverlayError | undefined;
  let hostKey: Buffer = Buffer.alloc(0);
  const ssh = new NodeSSH();
  const ready = ssh.connect({
    ...credentials.config,
    sock: stream,
    readyTimeout: limit,
    algorithms: { serverHostKey: expected.algorithms, hmac: { remove: SHA1_MACS, append: [], prepend: [] } },
    hostVerifier: (key: Buffer) => {
      hostKey = key;
      refused = expected.refuse(key);
      return refused === undefined;
    },
  });
  const client = ssh.connection!;
  // node-ssh listens for errors only until the login; ssh2 may emit a second one, which without a listener would end the process.
  client.on("error", () => {});
  client.once("handshake", () => requireRsaSha2(client));
  try {
    await ready;
    return new SshClient(client, hostKey, request.keepalive);
  } catch (error) {
    stream.destroy();
    throw refused ?? explainLoginError(request, error as Error & { level?: string });
  }
}

/** Of ssh2, which sets it for servers that take SHA-2 without saying so. */
const IMPLY_RSA_SHA2 = 1 << 4;

/** RSA user keys sign with SHA-2 only: ssh2 falls back to SHA-1 for a server that offers nothing else, and has no option for that. */
function requireRsaSha2(client: object): void {
  const { _protocol } = client as { _protocol: { _compatFlags: number } };
  _protocol._compatFlags |= IMPLY_RSA_SHA2;
}

function explainLoginError({ connection, credentials }: DialRequest, error: Error & { level?: string }): Error {
  if (/privateKey/.test(error.message)) return unreadableKey(connection, error);
  const refused = error.level === "client-authentication" || error.level === "agent";
  if (refused || /authentication failures/i.test(error.message)) {
    return refusedCredentials(connection, credentials.methods, error);
  }
  if (!/no matching/.test(error.message)) return new DialFailed(`handshake${jumpText(connection)}`, error.message);
  return new OverlayError(
    "SSH_UNREACHABLE",
    `${connectionName(connection)} and we have no SSH algorithm in common (${error.message}).`,
    "Allow a current one in its sshd_config, or update its OpenSSH.",
  );
}

const jumpText = ({ proxy }: Connection): string => (proxy ? ` through jump host ${connectionName(proxy)}` : "");
