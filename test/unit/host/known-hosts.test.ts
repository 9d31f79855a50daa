import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import {
  entriesFor,
  fingerprint,
  keyType,
  knownHostName,
  parseKnownHosts,
  verifyKey,
} from "../../../provider/host/ssh/host-keys";

const folder = mkdtempSync(join(tmpdir(), "overlay-known-hosts-"));
afterAll(() => rmSync(folder, { recursive: true }));

function makeKey(name: string, type: string): { line: string; key: Buffer; path: string } {
  const path = join(folder, name);
  execFileSync("ssh-keygen", ["-q", "-t", type, "-N", "", "-C", name, "-f", path]);
  const [kind, base64] = readFileSync(`${path}.pub`, "utf8").split(" ");
  return { line: `${kind} ${base64}`, key: Buffer.from(base64!, "base64"), path };
}

const one = makeKey("one", "ed25519");
const two = makeKey("two", "ed25519");
const rsa = makeKey("rsa", "rsa");

const hashed = (text: string): string => {
  const path = join(folder, "hashed");
  writeFileSync(path, text);
  execFileSync("ssh-keygen", ["-H", "-f", path], { stdio: "ignore" });
  return readFileSync(path, "utf8");
};

test.each([
  ["host", 22, "host"],
  ["Host.Example", 22, "host.example"],
  ["10.0.0.1", 2222, "[10.0.0.1]:2222"],
  ["fd00::1", 22, "fd00::1"],
  ["fd00::1", 2222, "[fd00::1]:2222"],
])("%s on port %i is listed as %s", (host, port, name) => {
  expect(knownHostName(host, port)).toBe(name);
});

test.each([
  ["web.example", "web.example", true],
  ["web.example", "WEB.example", true],
  ["web.example,10.0.0.1", "10.0.0.1", true],
  ["web.example", "web.example.org", false],
  ["webxexample", "web.example", false],
  ["*.example", "web.example", true],
  ["*.example", "example", false],
  ["web?.example", "web1.example", true],
  ["web?.example", "web12.example", false],
  ["*.example,!web.example", "web.example", false],
  ["*.example,!web.example", "db.example", true],
  ["!web.example", "db.example", false],
  ["[web.example]:2222", "[web.example]:2222", true],
  ["[web.example]:2222", "web.example", false],
  ["[*.example]:2222", "[web.example]:2222", true],
])("the pattern %s and the name %s: %s, and ssh-keygen agrees", (patterns, name, found) => {
  const text = `${patterns} ${one.line}\n`;
  expect(entriesFor(parseKnownHosts(text), name.toLowerCase()).length > 0).toBe(found);
  const path = join(folder, "patterns");
  writeFileSync(path, text);
  const asked = () => execFileSync("ssh-keygen", ["-F", name.toLowerCase(), "-f", path], { stdio: "pipe" });
  if (found) asked();
  else expect(asked).toThrow();
});

test("lines without a key are skipped", () => {
  const text = `# comment\n\n   \nonly-a-name\nname ssh-ed25519\n@cert-authority * ${one.line}\n@odd * ${one.line}\r\n`;
  expect(parseKnownHosts(text)).toEqual([]);
});

test("tabs, comments and Windows line ends do no harm", () => {
  const [type, key] = two.line.split(" ");
  expect(parseKnownHosts(`  host\t${two.line} root@host\r\n`)).toEqual([{ hosts: "host", type, key, revoked: false }]);
});

test.each<[string, string, number, string]>([
  ["the key on record", `host ${one.line}`, 22, "match"],
  ["the key on record for that port", `[host]:2222 ${one.line}`, 2222, "match"],
  ["one of several keys of different types", `host ${rsa.line}\nhost ${one.line}`, 22, "match"],
  ["another key", `host ${two.line}`, 22, "changed"],
  ["a key of another type only", `host ${rsa.line}`, 22, "changed"],
  ["no line at all", "", 22, "unknown"],
  ["a line for another host", `other ${one.line}`, 22, "unknown"],
  ["a line for another port", `[host]:2222 ${one.line}`, 22, "unknown"],
  ["the key under the bare name, on another port", `host ${one.line}`, 2222, "match"],
  ["another key under the bare name, on another port", `host ${two.line}`, 2222, "unknown"],
  ["a revoked key", `host ${one.line}\n@revoked * ${one.line}`, 22, "revoked"],
  ["another revoked key", `@revoked * ${two.line}\nhost ${one.line}`, 22, "match"],
  ["only another key, revoked", `@revoked host ${two.line}`, 22, "unknown"],
  ["a certificate authority", `@cert-authority host ${one.line}`, 22, "unknown"],
])("with %s the verdict is the same, plain and hashed by ssh-keygen", (_, text, port, verdict) => {
  expect(verifyKey(parseKnownHosts(text), "host", port, one.key)).toBe(verdict);
  expect(verifyKey(parseKnownHosts(hashed(`${text}\n`)), "host", port, one.key)).toBe(verdict);
});

test("hashed files hide the names", () => {
  const text = hashed(`host,[host]:2222 ${one.line}\n`);
  expect(text).toMatch(/^\|1\|/);
  expect(entriesFor(parseKnownHosts(text), "host")).toHaveLength(1);
  expect(entriesFor(parseKnownHosts(text), "[host]:2222")).toHaveLength(1);
  expect(entriesFor(parseKnownHosts(text), "other")).toEqual([]);
});

test.each([one, rsa])("fingerprint and type are those of ssh-keygen -l", ({ key, line, path }) => {
  expect(execFileSync("ssh-keygen", ["-lf", `${path}.pub`], { encoding: "utf8" })).toContain(` ${fingerprint(key)} `);
  expect(keyType(key)).toBe(line.split(" ")[0]);
});
