import { readFile } from "node:fs/promises";
import { connect as connectTcp } from "node:net";
import { addAbortSignal, type Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  type ConnectConfig,
  type KeyboardInteractiveCallback,
  type MacAlgorithm,
  type Prompt,
  utils,
} from "ssh2";
import { OverlayError } from "../../errors";
import { type Connection, connectionName, type HostSettings, portOf, userOf } from "../connection";
import { type ChannelNotOpened, PROHIBITED, SshClient } from "./client";
import { type ExpectedKey, expandHome } from "./host-keys";

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

/** The jump host could not reach the port (RFC 4254, 5.1). */
const CONNECT_FAILED = 2;

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
    if (refusal !== PROHIBITED) throw new DialFailed(`dial${jumpText(connection)}`, message, outcome);
    const what = `The jump host ${connectionName(connection.proxy!)} forbids to reach ${connectionName(connection)} through it.`;
    throw new OverlayError("SSH_UNREACHABLE", what, "Set AllowTcpForwarding yes in its sshd_config.", error);
  }
}

async function login(request: DialRequest, stream: Duplex, limit: number): Promise<SshClient> {
  const { credentials, expected } = request;
  let refused: OverlayError | undefined;
  let hostKey: Buffer = Buffer.alloc(0);
  const client = new Client();
  client.once("handshake", () => requireRsaSha2(client));
  client.on("keyboard-interactive", answerPrompt(credentials.config.password));
  const config: ConnectConfig = {
    ...credentials.config,
    // Its type is stricter than what ssh2 needs.
    sock: stream as Duplex & { readable: true },
    readyTimeout: limit,
    algorithms: { serverHostKey: expected.algorithms, hmac: { remove: SHA1_MACS, append: [], prepend: [] } },
    hostVerifier: (key: Buffer) => {
      hostKey = key;
      refused = expected.refuse(key);
      return refused === undefined;
    },
  };
  // It throws at once if the private key is malformed.
  const ready = new Promise<void>((resolve, reject) => {
    client.once("ready", resolve).once("close", () => reject(new Error("the connection was closed")));
    // It stays: ssh2 may emit a second error, which without a listener would end the process.
    client.on("error", reject);
    client.connect(config);
  });
  try {
    await ready;
    return new SshClient(client, hostKey, request.keepalive);
  } catch (error) {
    stream.destroy();
    throw refused ?? explainLoginError(request, error as Error & { level?: string });
  }
}

/**
 * Servers with PAM often take a password only as the answer to a prompt. It is given once, to a single hidden prompt: another one may ask for a
 * code, and what is shown may be logged.
 */
function answerPrompt(password: string | undefined) {
  let isGiven = false;
  return (_name: string, _text: string, _lang: string, prompts: Prompt[], finish: KeyboardInteractiveCallback) => {
    const isAsked = prompts.length === 1 && prompts[0]!.echo === false && !isGiven;
    if (isAsked) isGiven = true;
    finish(isAsked && password !== undefined ? [password] : prompts.map(() => ""));
  };
}

/** Of ssh2, which sets it for servers that take SHA-2 without saying so. */
const IMPLY_RSA_SHA2 = 1 << 4;

/** RSA user keys sign with SHA-2 only: ssh2 falls back to SHA-1 for a server that offers nothing else, and has no option for that. */
function requireRsaSha2(client: object): void {
  const { _protocol } = client as { _protocol: { _compatFlags: number } };
  _protocol._compatFlags |= IMPLY_RSA_SHA2;
}

function explainLoginError({ connection, credentials }: DialRequest, error: Error & { level?: string }): Error {
  if (/privateKey/.test(error.message)) return unreadableKeyError(connection, error);
  const refused = error.level === "client-authentication" || error.level === "agent";
  if (refused || /authentication failures/i.test(error.message)) {
    return credentialsRefusedError(connection, credentials.methods, error);
  }
  if (!/no matching/.test(error.message)) return new DialFailed(`handshake${jumpText(connection)}`, error.message);
  return new OverlayError(
    "SSH_UNREACHABLE",
    `${connectionName(connection)} and we have no SSH algorithm in common (${error.message}).`,
    "Allow a current one in its sshd_config, or update its OpenSSH.",
  );
}

const jumpText = ({ proxy }: Connection): string => (proxy ? ` through jump host ${connectionName(proxy)}` : "");

/** What ssh2 logs in with, and the names of the methods for messages: never what is in them. */
export interface Credentials {
  config: ConnectConfig;
  methods: string[];
}

export async function readCredentials(connection: Connection): Promise<Credentials> {
  const privateKey = await readPrivateKey(connection);
  const agent = connection.agentSocketPath || process.env.SSH_AUTH_SOCK;
  const methods = [
    ...(connection.password ? ["password"] : []),
    ...(privateKey ? [`private key (${keySource(connection)})`] : []),
    ...(agent ? [`agent (${agent})`] : []),
  ];
  return { config: configOf(connection, privateKey, agent), methods };
}

const keySource = (connection: Connection): string =>
  connection.privateKey ? "privateKey" : `file ${connection.privateKeyPath}`;

function configOf(connection: Connection, privateKey: string | undefined, agent: string | undefined): ConnectConfig {
  const { password, privateKeyPassword } = connection;
  return {
    username: userOf(connection),
    // ssh2's order, with the agent last: the error of an agent that does not run ends the login.
    authHandler: ["none", "password", "publickey", "keyboard-interactive", "agent"],
    ...(privateKey && { privateKey }),
    ...(privateKeyPassword && { passphrase: privateKeyPassword }),
    ...(agent && { agent }),
    ...(password && { password, tryKeyboard: true }),
  };
}

async function readPrivateKey(connection: Connection): Promise<string | undefined> {
  if (connection.privateKey) return `${connection.privateKey.trim()}\n`;
  if (!connection.privateKeyPath) return undefined;
  if (connection.privateKeyPath.includes("-----BEGIN")) throw keyForPath(connection);
  const path = expandHome(connection.privateKeyPath);
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    throw new OverlayError(
      "SSH_AUTH",
      `The private key file ${path} for ${userOf(connection)}@${connectionName(connection)} cannot be read (${(error as NodeJS.ErrnoException).code}).`,
      "Correct privateKeyPath, or give the key's text as privateKey.",
    );
  }
}

/** Throws SSH_AUTH if the private key of this connection, or of its jump host, cannot be read or used. Contacts no host. */
export async function checkPrivateKey(connection: Connection): Promise<void> {
  const text = await readPrivateKey(connection);
  const key = text === undefined ? undefined : utils.parseKey(text, connection.privateKeyPassword);
  if (key instanceof Error) throw unreadableKeyError(connection, key);
  const isPrivate = [key].flat().some((each) => each?.isPrivateKey());
  if (key && !isPrivate) throw unreadableKeyError(connection, new Error("it is a public key"));
  if (connection.proxy) await checkPrivateKey(connection.proxy);
}

const keyForPath = (connection: Connection): OverlayError =>
  new OverlayError(
    "SSH_AUTH",
    `privateKeyPath for ${userOf(connection)}@${connectionName(connection)} is the text of a key, not the name of a file.`,
    "Give it as privateKey.",
  );

/** The server accepted none of the credentials. */
function credentialsRefusedError(connection: Connection, methods: string[], cause: Error): OverlayError {
  const tried = methods.length > 0 ? `tried: ${methods.join(", ")}` : "no key, password or agent was given";
  const reason = cause.message.startsWith("All configured") ? "" : `; ${cause.message}`;
  return new OverlayError(
    "SSH_AUTH",
    `${connectionName(connection)} refused to log in ${userOf(connection)} (${tried}${reason}).`,
    `Check user and key: the public key must be in ~${userOf(connection)}/.ssh/authorized_keys there.`,
    cause,
  );
}

/** ssh2 could not read the private key. Its reasons name formats and passphrases, never the key. */
function unreadableKeyError(connection: Connection, cause: Error): OverlayError {
  const locked = /passphrase|encrypted|integrity|decrypt/i.test(cause.message);
  return new OverlayError(
    "SSH_AUTH",
    `The private key (${keySource(connection)}) for ${userOf(connection)}@${connectionName(connection)} cannot be used: ` +
      (locked
        ? "it is encrypted, and privateKeyPassword is missing or wrong."
        : "it is not a private key that we can read."),
    locked
      ? "Give the right privateKeyPassword."
      : "Give a key as ssh-keygen writes it, complete with its BEGIN and END lines.",
  );
}

const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 5000;

/** Seconds after which the user is notified about a host that does not answer. */
const NOTICE_AFTER_SECONDS = 15;

/**
 * Seconds for which a host is dialled again after a clear answer. A closed port may be a host that is just booting; a name that
 * does not exist is mistyped. A connection with dialErrorLimit or perDialTimeout has its own limits.
 */
const CLEAR_ANSWER_LIMIT: Record<DialOutcome, number> = { unknownName: 0, closed: 9, noAnswer: Infinity };

/** Counts the failed dials of one host, and decides whether to retry. */
export class DialRetries {
  #failed = 0;
  #began: number | undefined;

  constructor(
    private readonly connection: Connection,
    private readonly settings: HostSettings,
  ) {}

  /** Milliseconds that the next dial may take. The clock starts with the first dial, not while it waits for a slot. */
  limit(): number {
    this.#began ??= Date.now();
    const one = (this.connection.perDialTimeout ?? this.settings.connectTimeout) * 1000;
    return Math.ceil((one > 0 ? Math.min(one, this.#left()) : this.#left()) / 100) * 100;
  }

  /** Waits before the next try, or throws when it was the last one. */
  async pause(failure: DialFailed, ended: AbortSignal): Promise<void> {
    const most = this.connection.dialErrorLimit ?? 10;
    const wait = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#failed);
    this.#failed++;
    const isLast = (most > 0 && this.#failed >= most) || this.#left() <= wait || this.#isAnswered(failure, wait);
    if (ended.aborted || isLast) throw this.#unreachable(failure);
    await sleep(wait, undefined, { signal: ended }).catch(() => {
      throw this.#unreachable(failure);
    });
  }

  /** Calls `notify` once if the host has not been reached after a while; returns a function that cancels it. */
  notifyWhenSlow(notify: (text: string) => void): () => void {
    const { host } = this.connection;
    const place = `${host.includes(":") ? `[${host}]` : host}:${portOf(this.connection)}`;
    const text =
      `waiting for SSH on ${place}: not reached after ${NOTICE_AFTER_SECONDS} s. It is given up ` +
      `after ${this.settings.operationTimeout} s (overlay:operationTimeout), or as its dialErrorLimit says.`;
    const timer = setTimeout(() => notify(text), NOTICE_AFTER_SECONDS * 1000);
    return () => clearTimeout(timer);
  }

  /** Whether the host, or the resolver, has refused for long enough. */
  #isAnswered({ outcome }: DialFailed, wait: number): boolean {
    const { dialErrorLimit, perDialTimeout } = this.connection;
    if (dialErrorLimit !== undefined || perDialTimeout !== undefined) return false;
    return Date.now() - this.#began! + wait > CLEAR_ANSWER_LIMIT[outcome] * 1000;
  }

  #left(): number {
    return Math.max(1, this.#began! + this.settings.operationTimeout * 1000 - Date.now());
  }

  #unreachable({ phase, reason }: DialFailed): OverlayError {
    const seconds = Math.round((Date.now() - this.#began!) / 100) / 10;
    const tries = `${this.#failed} ${this.#failed === 1 ? "try" : "tries"} in ${seconds} s`;
    return new OverlayError(
      "SSH_UNREACHABLE",
      `${connectionName(this.connection)} cannot be reached by SSH: ${phase} failed with ${reason} (${tries}).`,
      "Check that the host is up, its address and port are right, sshd listens, and no firewall is in between. For a host that is " +
        "still booting, set dialErrorLimit in its connection (0: try until overlay:operationTimeout).",
    );
  }
}
