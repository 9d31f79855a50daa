import { createHash, createHmac } from "node:crypto";
import { appendFileSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname } from "node:path";
import type { ServerHostKeyAlgorithm } from "ssh2";
import { OverlayError } from "../../errors";
import { type Connection, connectionName, type HostSettings, portOf } from "../connection";

/** The expected host key of a server. */
export interface ExpectedKey {
  /** Types on record first, so that a server with several keys sends one that can be compared. */
  algorithms: ServerHostKeyAlgorithm[];
  /** Why this key is refused; undefined: it is the right one. */
  refuse(key: Buffer): OverlayError | undefined;
}

const ALGORITHMS: ServerHostKeyAlgorithm[] = [
  "ssh-ed25519",
  "ecdsa-sha2-nistp256",
  "ecdsa-sha2-nistp384",
  "ecdsa-sha2-nistp521",
  "rsa-sha2-512",
  "rsa-sha2-256",
];

/** Decides on host keys: the connection's own `hostKey`, else the known_hosts files, else the user's policy. */
export class HostKeys {
  readonly #files: string[];
  readonly #acceptsUnknown: boolean;
  readonly #accepted: KnownHost[] = [];

  constructor(settings: HostSettings) {
    this.#files = (settings.knownHosts ?? ["~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"]).map(expandHome);
    this.#acceptsUnknown = settings.unknownHostKey === "accept";
  }

  async expect(connection: Connection): Promise<ExpectedKey> {
    const known = connection.hostKey ? givenKeys(connection, connection.hostKey) : await this.#readAll();
    return {
      algorithms: sortAlgorithms(entriesFor(known, knownHostName(connection.host, portOf(connection)))),
      refuse: (key) => this.#refuse(connection, known, key),
    };
  }

  #refuse(connection: Connection, known: KnownHost[], key: Buffer): OverlayError | undefined {
    const verdict = verifyKey(known, connection.host, portOf(connection), key);
    if (verdict === "match") return undefined;
    if (verdict === "changed") return changedKeyError(connection, known, key);
    if (verdict === "revoked") return revokedKeyError(connection, key);
    if (!this.#acceptsUnknown) return unknownKeyError(connection, this.#files, key);
    const hosts = knownHostName(connection.host, portOf(connection));
    const entry = { hosts, type: keyType(key), key: key.toString("base64"), revoked: false };
    this.#accepted.push(entry);
    this.#remember(entry);
    // The server sends its key again whenever the session keys are renewed.
    known.push(entry);
    return undefined;
  }

  /** Adds the key to the first file, as OpenSSH does with accept-new. Where that cannot be written, the key counts for this process. */
  #remember({ hosts, type, key }: KnownHost): void {
    const [path] = this.#files;
    if (path === undefined) return;
    try {
      mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
      const text = existsSync(path) ? readFileSync(path, "utf8") : "";
      const separator = text === "" || text.endsWith("\n") ? "" : "\n";
      appendFileSync(path, `${separator}${hosts} ${type} ${key}\n`, { mode: 0o600 });
    } catch {
      // It stays in #accepted.
    }
  }

  /** As in OpenSSH all files count. They are read for every dial: the program that makes a host may add its key meanwhile. */
  async #readAll(): Promise<KnownHost[]> {
    const texts = await Promise.all(this.#files.map(readKnownHosts));
    return [...this.#accepted, ...texts.flatMap(parseKnownHosts)];
  }
}

/** `ssh-ed25519 AAAA…`, alone or in a line of known_hosts or authorized_keys; several lines: any of them will do. */
function givenKeys(connection: Connection, text: string): KnownHost[] {
  const hosts = knownHostName(connection.host, portOf(connection));
  const pairs = [...text.matchAll(/((?:ssh|ecdsa)-[\w@.-]+)\s+(AAAA[\w+/]+=*)/g)];
  if (pairs.length > 0) return pairs.map(([, type, key]) => ({ hosts, type: type!, key: key!, revoked: false }));
  throw new OverlayError(
    "SSH_HOST_KEY",
    `The hostKey given for ${connectionName(connection)} is not a public key.`,
    `Give it as \`ssh-ed25519 AAAA…\`: ${keyscan(connection)} prints it.`,
  );
}

async function readKnownHosts(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
    throw new OverlayError("SSH_HOST_KEY", `The known_hosts file ${path} cannot be read.`, "Make it readable.", error);
  }
}

function sortAlgorithms(known: KnownHost[]): ServerHostKeyAlgorithm[] {
  const types = new Set(known.filter((entry) => !entry.revoked).map((entry) => entry.type));
  const onRecord = (algorithm: string) => types.has(algorithm.startsWith("rsa-") ? "ssh-rsa" : algorithm);
  return [...ALGORITHMS.filter(onRecord), ...ALGORITHMS.filter((algorithm) => !onRecord(algorithm))];
}

const keyscan = (connection: Connection): string => `\`ssh-keyscan -p ${portOf(connection)} ${connection.host}\``;

const describeKey = (key: Buffer): string => `an ${keyType(key)} key ${fingerprint(key)}`;

function unknownKeyError(connection: Connection, files: string[], key: Buffer): OverlayError {
  const line = `${knownHostName(connection.host, portOf(connection))} ${keyType(key)} ${key.toString("base64")}`;
  return new OverlayError(
    "SSH_HOST_KEY",
    `${connectionName(connection)} shows ${describeKey(key)}, which is not in ${files.join(" or ") || "any known_hosts file"}.`,
    `If that fingerprint is right, add this line to ${files[0] ?? "a known_hosts file"} (${keyscan(connection)} prints it ` +
      `too), name a file that has it (overlay:knownHosts or OVERLAY_KNOWN_HOSTS), or give the key as hostKey: ${line}`,
  );
}

function changedKeyError(connection: Connection, known: KnownHost[], key: Buffer): OverlayError {
  const name = knownHostName(connection.host, portOf(connection));
  const before = entriesFor(known, name).filter((entry) => !entry.revoked);
  const list = before.map(({ type, key }) => `${type} ${fingerprint(Buffer.from(key, "base64"))}`).join(", ");
  return new OverlayError(
    "SSH_HOST_KEY",
    `The key of ${connectionName(connection)} has changed: it shows ${describeKey(key)}, but ${connection.hostKey ? "hostKey" : "known_hosts"} has ${list}.`,
    `The connection may be intercepted. If the host was reinstalled, ${
      connection.hostKey ? "give its new key as hostKey." : `run \`ssh-keygen -R '${name}'\` and add the new key.`
    }`,
  );
}

function revokedKeyError(connection: Connection, key: Buffer): OverlayError {
  return new OverlayError(
    "SSH_HOST_KEY",
    `${connectionName(connection)} shows ${describeKey(key)}, which known_hosts marks as @revoked.`,
    "Give the host a new host key; this one must not be trusted.",
  );
}

/** One line of a known_hosts file; `@cert-authority` lines are left out, since ssh2 shows no certificates. */
export interface KnownHost {
  hosts: string;
  type: string;
  key: string;
  revoked: boolean;
}

export type KeyStatus = "match" | "unknown" | "changed" | "revoked";

export const parseKnownHosts = (text: string): KnownHost[] => text.split("\n").flatMap(parseLine);

function parseLine(line: string): KnownHost[] {
  const words = line.trim().split(/\s+/);
  const marker = words[0]?.startsWith("@") ? words.shift() : undefined;
  const [hosts, type, key] = words;
  if (!hosts || hosts.startsWith("#") || !type || !key) return [];
  if (marker !== undefined && marker !== "@revoked") return [];
  return [{ hosts, type, key, revoked: marker === "@revoked" }];
}

/** The name under which known_hosts files list a server: ports other than 22 belong to it. */
export const knownHostName = (host: string, port: number): string =>
  port === 22 ? host.toLowerCase() : `[${host.toLowerCase()}]:${port}`;

/** The entries for this name. */
export const entriesFor = (known: KnownHost[], name: string): KnownHost[] =>
  known.filter((entry) =>
    entry.hosts.startsWith("|1|") ? hashMatches(entry.hosts, name) : matchesPatterns(entry.hosts, name),
  );

function hashMatches(hashed: string, name: string): boolean {
  const [, , salt = "", hash] = hashed.split("|");
  return createHmac("sha1", Buffer.from(salt, "base64")).update(name).digest("base64") === hash;
}

function matchesPatterns(patterns: string, name: string): boolean {
  const list = patterns.toLowerCase().split(",");
  const hit = (pattern: string) => wildcard(pattern).test(name);
  return list.some(hit) && !list.some((pattern) => pattern.startsWith("!") && hit(pattern.slice(1)));
}

const wildcard = (pattern: string): RegExp =>
  new RegExp(
    `^${pattern
      .replace(/[.+^${}()|[\]\\]/g, "\\$&")
      .replaceAll("*", ".*")
      .replaceAll("?", ".")}$`,
  );

/**
 * Compares a server's key with the files. As in OpenSSH, a server on another port than 22 may also be listed by
 * its bare name; a bare name with another key is no mismatch, because it may be another server.
 */
export function verifyKey(known: KnownHost[], host: string, port: number, key: Buffer): KeyStatus {
  const shown = key.toString("base64");
  const own = entriesFor(known, knownHostName(host, port));
  const all = [...own, ...entriesFor(known, knownHostName(host, 22))];
  if (all.some((entry) => entry.revoked && entry.key === shown)) return "revoked";
  if (all.some((entry) => !entry.revoked && entry.key === shown)) return "match";
  return own.some((entry) => !entry.revoked) ? "changed" : "unknown";
}

/** `SHA256:…`, as `ssh-keygen -l` prints it. */
export const fingerprint = (key: Buffer): string =>
  `SHA256:${createHash("sha256").update(key).digest("base64").replace(/=+$/, "")}`;

/** The type is the first string of the key's own bytes. */
export const keyType = (key: Buffer): string => key.toString("latin1", 4, 4 + key.readUInt32BE(0));

/** `~/x` in the user's home, as in OpenSSH's own settings. */
export const expandHome = (path: string): string => path.replace(/^~(?=\/|$)/, homedir());
