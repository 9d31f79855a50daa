import { execFileSync, spawn } from "node:child_process";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import type { OverlayError } from "../../provider/errors";
import { openHosts, type SshHosts, type SshOptions } from "../../provider/host/ssh";
import type { Connection, HostSettings } from "../../provider/host/types";
import { emptyFile, freePort, makeFolder, makeKey, type Sshd, type SshdOptions, startSshd, USERS } from "./sshd";

vi.setConfig({ testTimeout: 20_000 });
delete process.env.SSH_AUTH_SOCK;
const ready = process.getuid?.() === 0 && existsSync("/usr/sbin/sshd");
const hasSudo = existsSync("/usr/bin/sudo");
const folder = makeFolder();
const key = makeKey(folder, "id");
const knownHosts = join(folder, "known_hosts");
const opened: SshHosts[] = [];
const servers: Sshd[] = [];
let main: Sshd;

const settings: HostSettings = { connectTimeout: 5, operationTimeout: 10, parallelHosts: 16, knownHosts: [knownHosts] };

function open(changes: Partial<HostSettings> = {}, options?: SshOptions): SshHosts {
  const hosts = openHosts({ ...settings, ...changes }, options);
  opened.push(hosts);
  return hosts;
}

async function serve(options?: SshdOptions): Promise<Sshd> {
  const sshd = await startSshd(`${key}.pub`, options);
  servers.push(sshd);
  return sshd;
}

const at = (sshd: { port: number; hostKey?: string }, changes: Partial<Connection> = {}): Connection => ({
  host: "127.0.0.1",
  port: sshd.port,
  privateKeyPath: key,
  hostKey: sshd.hostKey,
  ...changes,
});

const failure = async (work: Promise<unknown>): Promise<OverlayError> => {
  const error = await work.then(
    () => undefined,
    (error: OverlayError) => error,
  );
  if (!error?.code) throw new Error("it did not fail as it should", { cause: error });
  return error;
};

const logins = (sshd: Sshd): number => sshd.log().match(/Accepted (publickey|password)/g)?.length ?? 0;

beforeAll(async () => {
  if (ready) main = await serve();
});

afterEach(async () => {
  await Promise.all(opened.splice(0).map((hosts) => hosts.end()));
});

const warnings: Error[] = [];
process.on("warning", (warning) => warnings.push(warning));

afterAll(async () => {
  expect(warnings, "Node warns of leaks").toEqual([]);
  await Promise.all(servers.map((sshd) => sshd.stop()));
  rmSync(folder, { recursive: true, force: true });
});

describe.skipIf(!ready)("logging in (needs root and openssh-server)", () => {
  test("a key from a file, from text, encrypted, or in an agent", async () => {
    const encrypted = makeKey(folder, "encrypted");
    execFileSync("ssh-keygen", ["-q", "-p", "-P", "", "-N", "secret", "-f", encrypted]);
    const both = `${readFileSync(`${key}.pub`)}${readFileSync(`${encrypted}.pub`)}`;
    writeFileSync(join(main.folder, "authorized_keys"), both);
    const socket = join(folder, "agent");
    const agent = spawn("ssh-agent", ["-D", "-a", socket], { stdio: "ignore" });
    while (!existsSync(socket)) await sleep(20);
    execFileSync("ssh-add", ["-q", key], { env: { ...process.env, SSH_AUTH_SOCK: socket } });
    const none = { privateKeyPath: undefined };
    const ways: Partial<Connection>[] = [
      { privateKeyPath: key },
      { ...none, privateKey: readFileSync(key, "utf8").trim() },
      { privateKeyPath: encrypted, privateKeyPassword: "secret" },
      { ...none, agentSocketPath: socket },
    ];
    for (const way of ways) expect((await (await open().connect(at(main, way))).exec("id -un")).stdout).toBe("root\n");
    agent.kill();
  });

  test("a password", async () => {
    const way = at(main, { user: "alice", password: USERS.alice.password, privateKeyPath: undefined, sudo: false });
    expect((await (await open().connect(way)).exec("id -un")).stdout).toBe("alice\n");
  });

  test.each<[string, () => Partial<Connection>, RegExp]>([
    [
      "the wrong key",
      () => ({ privateKeyPath: makeKey(folder, "wrong") }),
      /refused to log in root \(tried: private key/,
    ],
    [
      "the wrong password",
      () => ({ user: "bob", password: "guess", privateKeyPath: makeKey(folder, "bad") }),
      /refused to log in bob \(tried: password, private/,
    ],
    ["no credentials", () => ({ privateKeyPath: undefined }), /no key, password or agent was given/],
    ["a key file that is not there", () => ({ privateKeyPath: "~/no-such-key" }), /no-such-key .* \(ENOENT\)/],
    ["a key that is none", () => ({ privateKey: "-----BEGIN HORSE-----\nAAAA" }), /not a private key that we can read/],
    [
      "an agent that is gone",
      () => ({ privateKeyPath: undefined, agentSocketPath: "/no/agent" }),
      /agent \(\/no\/agent\); Failed to connect to agent/,
    ],
  ])("%s fails at once with SSH_AUTH", async (_, change, message) => {
    const error = await failure(open().connect(at(main, change())));
    expect(error.code).toBe("SSH_AUTH");
    expect(error.message).toMatch(message);
    expect(error.message).not.toMatch(/guess|HORSE|AAAA/);
  });

  test("an encrypted key without its password says so", async () => {
    const locked = makeKey(folder, "locked");
    execFileSync("ssh-keygen", ["-q", "-p", "-P", "", "-N", "secret", "-f", locked]);
    for (const privateKeyPassword of [undefined, "wrong"]) {
      const error = await failure(open().connect(at(main, { privateKeyPath: locked, privateKeyPassword })));
      expect(error.message).toMatch(/^SSH_AUTH: .*privateKeyPassword is missing or wrong/);
    }
  });

  test("fallbacks are tried in order, each once, when the first key is refused", async () => {
    const old = at(main, { privateKeyPath: makeKey(folder, "old") });
    const refused = main.log().match(/authenticating user root/g)?.length ?? 0;
    const hosts = open();
    const host = await hosts.connect(old, [old, at(main)]);
    expect((await host.exec("echo in")).stdout).toBe("in\n");
    expect(hosts.stats()[host.name]).toEqual({ connections: 1, execs: 1, conversations: 0 });
    await hosts.end();
    await sleep(100);
    expect((main.log().match(/authenticating user root/g)?.length ?? 0) - refused).toBe(1);
  });
});

describe.skipIf(!ready)("logging in beside others", () => {
  test("a fallback with another user is not preceded by the refused key in every command", async () => {
    const server = await serve();
    const old = at(server, { privateKeyPath: makeKey(folder, "older") });
    const alice = { user: "alice", password: USERS.alice.password, privateKeyPath: undefined, sudo: false };
    const host = await open().connect(old, [at(server, alice)]);
    for (const script of ["id -un", "id -un"]) expect((await host.exec(script)).stdout).toBe("alice\n");
    expect(server.log().match(/authenticating user root/g)).toHaveLength(1);
  });

  test("a caller with a good key is not refused for the bad one of another who came first", async () => {
    const hosts = open();
    const bad = failure(hosts.connect(at(main, { privateKeyPath: makeKey(folder, "bad-first") })));
    const good = await Promise.all([hosts.connect(at(main)), hosts.connect(at(main))]);
    expect((await bad).code).toBe("SSH_AUTH");
    expect((await good[0]!.exec("echo in")).stdout).toBe("in\n");
    expect(hosts.stats()[good[0]!.name]!.connections).toBe(1);
  });
});

describe.skipIf(!ready)("host keys", () => {
  const unpinned = () => at(main, { hostKey: undefined });

  test("an unknown one is refused with its fingerprint and the line to add, and that line then works", async () => {
    writeFileSync(knownHosts, "");
    const error = await failure(open().connect(unpinned()));
    const print = execFileSync("ssh-keygen", ["-lf", join(main.folder, "host.pub")], { encoding: "utf8" }).split(
      " ",
    )[1];
    expect(error.code).toBe("SSH_HOST_KEY");
    expect(error.message).toContain(`shows an ssh-ed25519 key ${print}`);
    expect(error.message).toContain(`ssh-keyscan -p ${main.port} 127.0.0.1`);
    writeFileSync(knownHosts, `${error.message.split("hostKey: ")[1]}\n`);
    execFileSync("ssh-keygen", ["-q", "-H", "-f", knownHosts], { stdio: "ignore" });
    expect((await (await open().connect(unpinned())).exec("echo in")).stdout).toBe("in\n");
  });

  test("a changed one is refused with both fingerprints", async () => {
    const other = readFileSync(`${makeKey(folder, "other")}.pub`, "utf8")
      .split(" ")
      .slice(0, 2)
      .join(" ");
    const print = (path: string) => execFileSync("ssh-keygen", ["-lf", path], { encoding: "utf8" }).split(" ")[1]!;
    writeFileSync(knownHosts, `[127.0.0.1]:${main.port} ${other}\n`);
    for (const connection of [unpinned(), at(main, { hostKey: other })]) {
      const error = await failure(open({ unknownHostKey: "accept" }).connect(connection));
      expect(error.message).toMatch(/^SSH_HOST_KEY: The key of 127\.0\.0\.1:\d+ has changed/);
      expect(error.message).toContain(print(join(main.folder, "host.pub")));
      expect(error.message).toContain(print(join(folder, "other.pub")));
    }
  });

  test("an unknown one may be accepted, and is remembered for this process", async () => {
    writeFileSync(knownHosts, "");
    const hosts = open({ unknownHostKey: "accept" });
    await hosts.connect(unpinned());
    const other = readFileSync(`${makeKey(folder, "another")}.pub`, "utf8");
    expect((await failure(hosts.connect({ ...unpinned(), hostKey: other }))).code).toBe("SSH_HOST_KEY");
  });

  test("of a server with several keys, the one on record is asked for", async () => {
    const keys = ["ed25519", "ecdsa", "rsa"].map((type) => makeKey(folder, `host-${type}`, "-t", type));
    const server = await serve({ keys });
    for (const path of keys) {
      const line = readFileSync(`${path}.pub`, "utf8").split(" ").slice(0, 2).join(" ");
      writeFileSync(knownHosts, `[127.0.0.1]:${server.port} ${line}\n`);
      await open().connect(at(server, { hostKey: undefined }));
    }
    expect(logins(server)).toBe(3);
  });
});

describe.skipIf(!ready)("dialling", () => {
  test("a host that comes up three seconds late is waited for", async () => {
    const port = await freePort();
    const late = sleep(3000).then(() => serve({ port }));
    writeFileSync(knownHosts, "");
    const host = await open({ unknownHostKey: "accept" }).connect(at({ port }));
    expect((await host.exec("echo up")).stdout).toBe("up\n");
    await late;
  });

  test("a host that is down fails with how often and how long it was tried", async () => {
    const port = await freePort();
    const error = await failure(open().connect(at({ port }, { dialErrorLimit: 3 })));
    expect(error.message).toMatch(
      new RegExp(`^SSH_UNREACHABLE: 127.0.0.1:${port} .*dial failed with ECONNREFUSED \\(3 tries in [\\d.]+ s\\)`),
    );
  });

  test("the operation timeout ends it before the limit of dials is reached", async () => {
    const start = Date.now();
    const error = await failure(
      open({ operationTimeout: 2 }).connect(at({ port: await freePort() }, { dialErrorLimit: 0 })),
    );
    expect(error.message).toMatch(/SSH_UNREACHABLE: .*\(\d tries in/);
    expect(Date.now() - start).toBeLessThan(3000);
  });

  test("a server that accepts and says nothing, or hangs up, fails in the handshake", async () => {
    const silent = await listen(() => {});
    const rude = await listen((socket) => socket.destroy());
    const short = { dialErrorLimit: 2, perDialTimeout: 0.5 };
    const errors = await Promise.all([silent, rude].map(({ port }) => failure(open().connect(at({ port }, short)))));
    expect(errors[0]!.message).toMatch(/SSH_UNREACHABLE: .*handshake failed with Timed out .*\(2 tries in [\d.]+ s\)/);
    expect(errors[1]!.message).toMatch(/SSH_UNREACHABLE: .*handshake failed with .*\(2 tries in [\d.]+ s\)/);
    for (const { server, sockets } of [silent, rude]) {
      for (const socket of sockets) socket.destroy();
      server.close();
    }
  });

  test("a lost connection is dialled anew by the next call", async () => {
    const server = await serve();
    const hosts = open();
    const host = await hosts.connect(at(server));
    process.kill(sessionOf(server), "SIGKILL");
    expect((await host.exec("echo again")).stdout).toBe("again\n");
    expect(logins(server)).toBe(2);
  });

  test("a peer that stops answering is noticed, and what waits for it fails", async () => {
    const server = await serve();
    const host = await open({}, { keepalive: 0.2 }).connect(at(server));
    const waiting = failure(host.exec("sleep 2"));
    await sleep(300);
    const session = sessionOf(server);
    process.kill(session, "SIGSTOP");
    const error = await waiting;
    expect(error.message).toMatch(/^SSH_UNREACHABLE: The connection to .* was lost while running .*stopped answering/);
    process.kill(session, "SIGKILL");
  });

  test("ending gives up what is still being dialled", async () => {
    const hosts = open();
    const silent = await listen(() => {});
    const waiting = [at({ port: await freePort() }), at(silent)].map((way) => failure(hosts.connect(way)));
    await sleep(200);
    await hosts.end();
    for (const { code } of await Promise.all(waiting)) expect(code).toBe("SSH_UNREACHABLE");
    silent.server.close();
  });

  test("a process may end while its connections are open", async () => {
    const child = client("await host.exec('true'); console.log('done');");
    expect(await new Promise((resolve) => child.once("exit", resolve))).toBe(0);
  });
});

describe.skipIf(!ready)("jump hosts", () => {
  test("fifteen hosts behind one are reached by one connection to it, without running into MaxStartups", async () => {
    const jump = await serve();
    const addresses = Array.from({ length: 15 }, (_, index) => `127.0.0.${index + 1}`);
    const listening = addresses.slice(1).map((address) => `ListenAddress=${address}`);
    const behind = await serve({ options: ["MaxStartups=9:100:9", ...listening] });
    const hosts = open({ parallelHosts: 20 });
    const connections = addresses.map((host) => at(behind, { host, proxy: at(jump) }));
    const results = await Promise.all(connections.map(async (way) => (await hosts.connect(way)).exec("echo here")));
    expect(new Set(results.map(({ stdout }) => stdout))).toEqual(new Set(["here\n"]));
    expect([logins(jump), logins(behind)]).toEqual([1, 15]);
    expect(behind.log()).not.toMatch(/MaxStartups|drop connection/);
  });

  test("failures behind one name it", async () => {
    const jump = await serve();
    const strict = await serve({ options: ["AllowTcpForwarding=no"] });
    const port = await freePort();
    const hosts = open();
    const closed = await failure(hosts.connect(at({ port }, { proxy: at(jump), dialErrorLimit: 2 })));
    expect(closed.message).toMatch(
      new RegExp(
        `^SSH_UNREACHABLE: 127.0.0.1:${port} .*dial through jump host 127.0.0.1:${jump.port} .*Connection refused .*2 tries`,
      ),
    );
    const forbidden = await failure(hosts.connect(at(main, { proxy: at(strict) })));
    expect(forbidden.message).toMatch(/^SSH_UNREACHABLE: The jump host .* forbids to reach .*AllowTcpForwarding/);
    const refused = await failure(
      hosts.connect(at(main, { proxy: at(jump, { privateKeyPath: makeKey(folder, "stranger"), user: "bob" }) })),
    );
    expect(refused.message).toMatch(/^SSH_AUTH: .* is behind a jump host that fails: .* refused to log in bob/);
  });
});

describe.skipIf(!ready)("exec", () => {
  test("twenty at once, from callers who each connect, share one connection", async () => {
    const server = await serve();
    const hosts = open();
    const twenty = Array.from({ length: 20 }, async (_, index) =>
      (await hosts.connect(at(server))).exec(`echo ${index}`),
    );
    const results = await Promise.all(twenty);
    expect(results.map(({ stdout }) => Number(stdout))).toEqual(Array.from({ length: 20 }, (_, index) => index));
    expect(logins(server)).toBe(1);
    expect(server.log()).not.toMatch(/no more sessions/);
    expect(hosts.stats()).toEqual({ [`127.0.0.1:${server.port}`]: { connections: 1, execs: 20, conversations: 0 } });
  });

  test.each([1, 2])("a host that allows only %i sessions at a time serves all", async (sessions) => {
    const server = await serve({ options: [`MaxSessions=${sessions}`] });
    const host = await open().connect(at(server));
    const results = await Promise.all(Array.from({ length: 12 }, () => host.exec("echo here")));
    expect(results.map(({ stdout }) => stdout)).toEqual(Array(12).fill("here\n"));
  });

  test.each<[string, string, { code: number; stdout?: string; stderr?: RegExp }]>([
    ["a failing command", "echo out; echo err >&2; exit 7", { code: 7, stdout: "out\n", stderr: /^err\n$/ }],
    ["set -e", "set -e; echo one; false; echo two", { code: 1, stdout: "one\n" }],
    ["a heredoc", "cat <<'EOF'\nit's \"$HOME\" \\n\nEOF\necho end", { code: 0, stdout: 'it\'s "$HOME" \\n\nend\n' }],
    ["a command that reads its input", "cat; read line; echo $?", { code: 0, stdout: "1\n" }],
    ["a syntax error", "echo 'open", { code: 2, stdout: "", stderr: /Unterminated quoted string/ }],
    ["an unknown command", "no-such-command", { code: 127, stderr: /not found/ }],
    ["output without a newline at its end", "printf 'no newline'", { code: 0, stdout: "no newline" }],
    ["nothing", "", { code: 0, stdout: "" }],
  ])("%s gives its own exit code and output", async (_, script, { code, stdout, stderr }) => {
    const result = await (await open().connect(at(main))).exec(script);
    expect(result.code).toBe(code);
    if (stdout !== undefined) expect(result.stdout).toBe(stdout);
    if (stderr !== undefined) expect(result.stderr).toMatch(stderr);
  });

  test("a script that hangs is ended, also on the host, and named", async () => {
    const host = await open({ operationTimeout: 1 }).connect(at(main));
    const error = await failure(host.exec("sleep 4321\necho never"));
    expect(error.message).toMatch(/^HOST_TIMEOUT: 127.0.0.1:\d+ was not done after 1 s with running `sleep 4321`/);
    await sleep(300);
    expect(() => execFileSync("pgrep", ["-f", "^sleep 4321"])).toThrow();
  });

  test("what a login script prints is not taken for output", async () => {
    const server = await serve({
      setup: "echo 'echo noise; echo more noise >&2' >/run/profile; export BASH_ENV=/run/profile",
    });
    writeFileSync(join(server.folder, ".bashrc"), "echo noise; echo more noise >&2\n");
    const result = await (await open().connect(at(server))).exec("echo out; echo err >&2");
    expect(result).toEqual({ code: 0, stdout: "out\n", stderr: "err\n" });
  });

  test("a user without sudo gets SSH_SUDO with the remedy", async () => {
    const bob = { user: "bob", password: USERS.bob.password, privateKeyPath: undefined };
    const error = await failure((await open().connect(at(main, bob))).exec("id"));
    expect(error.message).toMatch(/^SSH_SUDO: .*lets bob not become root .*NOPASSWD/);
  });

  test.skipIf(!hasSudo)("a user with password-less sudo becomes root (needs sudo)", async () => {
    const alice = { user: "alice", password: USERS.alice.password, privateKeyPath: undefined };
    const host = await open().connect(at(main, alice));
    expect((await host.exec("id -un")).stdout).toBe("root\n");
    const script = "id -un; head -c 3000000 /dev/zero >&2";
    const { stdout, stderr } = await host.locked("alice", (shell) => shell.run(script));
    expect([stdout, stderr.length]).toEqual(["root\n", 3_000_000]);
  });
});

describe.skipIf(!ready)("locked", () => {
  test("results come back one for one, in order, whatever the scripts do", async () => {
    const host = await open().connect(at(main));
    const results = await host.locked("me", async (shell) => [
      await shell.run("echo one; exit 3"),
      await shell.run("set -e; false"),
      await shell.run("cat; exec 0</dev/null; echo two >&2"),
      ...(await Promise.all([shell.run("echo three"), shell.run("echo four")])),
    ]);
    expect(results).toEqual([
      { code: 3, stdout: "one\n", stderr: "" },
      { code: 1, stdout: "", stderr: "" },
      { code: 0, stdout: "", stderr: "two\n" },
      { code: 0, stdout: "three\n", stderr: "" },
      { code: 0, stdout: "four\n", stderr: "" },
    ]);
  });

  test("megabytes go both ways", async () => {
    const host = await open().connect(at(main));
    const input = "0123456789abcde\n".repeat(100_000);
    const result = await host.locked("me", (shell) =>
      shell.run(`cat <<'EOF'\n${input}EOF\nhead -c 8000000 /dev/zero >&2`),
    );
    expect(result.stdout === input).toBe(true);
    expect([result.code, result.stderr.length]).toEqual([0, 8_000_000]);
  });

  test("two processes take turns, and leave nothing behind", async () => {
    const hosts = await Promise.all([open(), open()].map((hosts) => hosts.connect(at(main))));
    const log: string[] = [];
    const turn = (holder: string) => async (shell: { run(script: string): Promise<{ stdout: string }> }) => {
      log.push(`${holder} in`);
      expect((await shell.run("sleep 0.1; head -1 /run/overlay.holder")).stdout).toBe(`${holder}\n`);
      log.push(`${holder} out`);
    };
    await Promise.all(["a", "b", "c", "d"].map((holder, index) => hosts[index % 2]!.locked(holder, turn(holder))));
    expect(log.map((line) => line.slice(2))).toEqual(["in", "out", "in", "out", "in", "out", "in", "out"]);
    expect(
      log
        .filter((_, index) => index % 2 === 0)
        .map((line) => line[0])
        .sort(),
    ).toEqual(["a", "b", "c", "d"]);
    expect(new Set(log.map((line, index) => `${index >> 1}${line[0]}`)).size).toBe(4);
    expect((await hosts[0]!.exec("ls /run | grep overlay")).stdout).toBe("");
  });

  test("HOST_LOCKED names the holder and since when", async () => {
    const first = await open().connect(at(main));
    const second = await open({ operationTimeout: 2 }).connect(at(main));
    const error = await first.locked("acme/prod/it's $HOME", () => failure(second.locked("other", async () => {})));
    expect(error.message).toMatch(
      /^HOST_LOCKED: 127.0.0.1:\d+ is locked by acme\/prod\/it's \$HOME since \d{4}-\d\d-\d\dT[\d:]+Z; waited 1 s/,
    );
  });

  test("an error in the work passes through and frees the lock", async () => {
    const host = await open().connect(at(main));
    await expect(host.locked("a", () => Promise.reject(new Error("mine")))).rejects.toThrow("mine");
    expect((await host.locked("b", (shell) => shell.run("echo free"))).stdout).toBe("free\n");
  });

  test("work that hangs, or a script that does, loses the lock in time", async () => {
    const host = await open({ operationTimeout: 1 }).connect(at(main));
    const script = await failure(host.locked("a", (shell) => shell.run("sleep 77")));
    expect(script.message).toMatch(/^HOST_TIMEOUT: .*after 1 s with running `sleep 77`/);
    const nested = failure(host.locked("a", () => host.locked("b", async () => {})));
    expect((await nested).code).toBe("HOST_TIMEOUT");
    expect((await host.locked("c", (shell) => shell.run("echo free"))).stdout).toBe("free\n");
  });

  test("a background child does not keep the lock", async () => {
    const host = await open().connect(at(main));
    await host.locked("a", (shell) => shell.run("sleep 3 & echo started"));
    const start = Date.now();
    await host.locked("b", (shell) => shell.run("true"));
    expect(Date.now() - start).toBeLessThan(2500);
  });

  test("a client that is killed in the middle loses the lock when its script ends", async () => {
    const child = client(
      "await host.locked('killed', (shell) => { console.log('in'); return shell.run('sleep 1'); });",
    );
    await new Promise((resolve) => child.stdout.once("data", resolve));
    child.kill("SIGKILL");
    const host = await open().connect(at(main));
    expect((await host.locked("next", (shell) => shell.run("head -1 /run/overlay.holder"))).stdout).toBe("next\n");
  });

  test("a host whose sh is bash serves as well", async () => {
    const server = await serve({ setup: "mount --bind /bin/bash /bin/dash" });
    const host = await open({ operationTimeout: 2 }).connect(at(server));
    const script = "cat; set -e; [ -n \"$BASH_VERSION\" ]; cat <<'EOF'\nit's bash\nEOF\nfalse";
    expect(await host.exec(script)).toEqual({ code: 1, stdout: "it's bash\n", stderr: "" });
    const hung = await failure(host.locked("me", (shell) => shell.run("sleep 78")));
    expect(hung.code).toBe("HOST_TIMEOUT");
    const after = await host.locked("you", (shell) => shell.run("head -1 /run/overlay.holder"));
    expect(after).toEqual({ code: 0, stdout: "you\n", stderr: "" });
    expect((await host.exec("ls /run | grep overlay")).stdout).toBe("");
  });

  test("a host without flock or timeout says which package has it", async () => {
    const nothing = emptyFile(folder);
    for (const [tool, debian] of [
      ["flock", "util-linux"],
      ["timeout", "coreutils"],
    ]) {
      const server = await serve({ setup: `mount --bind ${nothing} /usr/bin/${tool}` });
      const error = await failure((await open().connect(at(server))).locked("me", async () => {}));
      expect(error.message).toMatch(new RegExp(`^HOST_TOOL_MISSING: .* has no \`${tool}\`.*apt-get install ${debian}`));
    }
  });

  test("the latency of a warm host, for the eye", async () => {
    const host = await open().connect(at(main));
    const timed = async (work: () => Promise<unknown>) => {
      const times: number[] = [];
      for (let left = 20; left > 0; left--) {
        const start = performance.now();
        await work();
        times.push(performance.now() - start);
      }
      return times.sort((a, b) => a - b)[10]!.toFixed(1);
    };
    const exec = await timed(() => host.exec("true"));
    const three = async (shell: { run(script: string): Promise<unknown> }) => {
      for (const script of ["true", "true", "true"]) await shell.run(script);
    };
    console.log(`warm exec ${exec} ms, three scripts under the lock ${await timed(() => host.locked("me", three))} ms`);
  });
});

/** A process of its own with a connected `host`. */
function client(code: string) {
  const path = join(folder, "client.mts");
  const root = join(__dirname, "../..");
  writeFileSync(
    path,
    `import ssh from ${JSON.stringify(join(root, "provider/host/ssh.ts"))};
    const host = await ssh.openHosts(${JSON.stringify(settings)}).connect(${JSON.stringify(at(main))});
    ${code}`,
  );
  const child = spawn(process.execPath, ["--import", "tsx", path], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  return child;
}

const sessionOf = (server: Sshd): number =>
  Number(execFileSync("pgrep", ["-P", String(server.pid)], { encoding: "utf8" }).split("\n")[0]);

interface Listener {
  port: number;
  server: Server;
  sockets: Socket[];
}

async function listen(greet: (socket: Socket) => void): Promise<Listener> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket.on("error", () => {}));
    greet(socket);
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  return { port: (server.address() as { port: number }).port, server, sockets };
}
