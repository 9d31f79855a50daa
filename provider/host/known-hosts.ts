import { createHash, createHmac } from "node:crypto";

/** One line of a known_hosts file; `@cert-authority` lines are left out, since ssh2 shows no certificates. */
export interface KnownHost {
  hosts: string;
  type: string;
  key: string;
  revoked: boolean;
}

export type Verdict = "match" | "unknown" | "changed" | "revoked";

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

/** The lines that speak of this name. */
export const entriesFor = (known: KnownHost[], name: string): KnownHost[] =>
  known.filter((entry) => (entry.hosts.startsWith("|1|") ? hashMatches(entry.hosts, name) : listed(entry.hosts, name)));

function hashMatches(hashed: string, name: string): boolean {
  const [, , salt = "", hash] = hashed.split("|");
  return createHmac("sha1", Buffer.from(salt, "base64")).update(name).digest("base64") === hash;
}

function listed(patterns: string, name: string): boolean {
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
 * What the files say of a key that a server shows. As in OpenSSH, a server on another port than 22 may also be known by
 * its bare name; but a bare name with another key says nothing, for it may be another server.
 */
export function judgeKey(known: KnownHost[], host: string, port: number, key: Buffer): Verdict {
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
