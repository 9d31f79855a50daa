import { spawnSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { readUnderlay } from "../../provider/host/fleet";
import { holdAllAsUser } from "./lock-holder";
import { at, client, failure, folder, logins, main, open, ready, serve } from "./ssh-servers";
import { emptyFile, USERS } from "./sshd";

/** Scripts on a host: they run unchanged, as root, one at a time under the lock. */
const hasSudo = existsSync("/usr/bin/sudo");
const BUSYBOX = "/usr/bin/busybox";

describe.skipIf(!ready)("exec", () => {
  test("twenty commands at once, each with its own connect, share one connection", async () => {
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

  test.each([1, 2])("all calls succeed on a host that allows only %i sessions at a time", async (sessions) => {
    const server = await serve({ options: [`MaxSessions=${sessions}`] });
    const host = await open({ connectTimeout: 2 }).connect(at(server));
    const results = await Promise.all(Array.from({ length: 6 }, () => host.exec("sleep 1; echo here")));
    expect(results.map(({ stdout }) => stdout)).toEqual(Array(6).fill("here\n"));
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

  test("a script that hangs is ended, also on the host, with an error that names it", async () => {
    const host = await open({ operationTimeout: 1 }).connect(at(main));
    const error = await failure(host.exec("sleep 4321\necho never"));
    expect(error.message).toMatch(/^HOST_TIMEOUT: 127.0.0.1:\d+ did not finish running `sleep 4321` within 1 s/);
    const isRunning = (): boolean => spawnSync("pgrep", ["-f", "^sleep 4321"]).status === 0;
    for (const end = Date.now() + 30_000; isRunning() && Date.now() < end; ) await sleep(100);
    expect(isRunning()).toBe(false);
  });

  test("output of a login script is not part of the result", async () => {
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
    expect(error.message).toMatch(/^SSH_SUDO: User bob may not run `sudo -n` on .*NOPASSWD/);
  });

  test("a user without rights and with sudo: false is refused before anything is changed", async () => {
    const bob = { user: "bob", password: USERS.bob.password, privateKeyPath: undefined, sudo: false };
    const host = await open().connect(at(main, bob));
    const errors = [await failure(host.exec("id")), await failure(host.withLock("bob", (shell) => shell.run("id")))];
    for (const { message } of errors)
      expect(message).toMatch(
        /^SSH_SUDO: User bob is not root on .*, and the connection says sudo: false\. Leave sudo out/,
      );
  });

  // BusyBox as sh prefers its own ip to the one in PATH.
  test.skipIf(!existsSync(BUSYBOX)).each(["ip", "sh"])(
    "BusyBox as %s: the error names its ip, with a fix",
    async (tool) => {
      const server = await serve({ setup: `mount --bind ${BUSYBOX} "$(readlink -f "$(command -v ${tool})")"` });
      const host = await open().connect(at(server));
      const { message } = await failure(readUnderlay(host, {}));
      expect(message).toContain(`HOST_TOOL_MISSING: \`ip\` on ${host.name} is BusyBox's, which lacks options`);
      expect(message).toMatch(/Install iproute2 there .*If \/bin\/sh is BusyBox/);
    },
  );

  test.skipIf(!hasSudo)("a user with password-less sudo becomes root (needs sudo)", async () => {
    const alice = { user: "alice", password: USERS.alice.password, privateKeyPath: undefined };
    const host = await open().connect(at(main, alice));
    expect((await host.exec("id -un")).stdout).toBe("root\n");
    const script = "id -un; head -c 3000000 /dev/zero >&2";
    const { stdout, stderr } = await host.withLock("alice", (shell) => shell.run(script));
    expect([stdout, stderr.length]).toEqual(["root\n", 3_000_000]);
  });
});

describe.skipIf(!ready)("locked", () => {
  test("one shell runs what follows one another, with the lock and without; a failure ends it", async () => {
    const host = await open({ operationTimeout: 1 }).connect(at(await serve({ options: ["MaxSessions=1"] })));
    const shellId = async (): Promise<string> => (await host.exec("echo $$")).stdout;
    const first = await shellId();
    const parents = "ps -o ppid= -p $$ | xargs ps -o ppid= -p | xargs ps -o ppid= -p | xargs ps -o ppid= -p | xargs";
    expect((await host.withLock("me", (shell) => shell.run(parents))).stdout).toBe(first);
    expect(await shellId()).toBe(first);
    expect((await failure(host.exec("sleep 79"))).code).toBe("HOST_TIMEOUT");
    const second = await shellId();
    expect(second).not.toBe(first);
    process.kill(Number(second));
    await sleep(200);
    expect(await shellId()).not.toBe(second);
  });

  test("after the lock was lost in time no script runs without it", async () => {
    const server = await serve();
    const host = await open().connect(at(server));
    const work = host.withLock("me", async (shell) => {
      const timeout = Number((await shell.run("ps -o ppid= -p $PPID")).stdout);
      const hung = failure(shell.run("sleep 80"));
      await sleep(100);
      process.kill(timeout);
      await sleep(100);
      await shell.run("touch /run/ran");
      await hung;
    });
    expect((await failure(work)).code).toMatch(/HOST_TIMEOUT|HOST_COMMAND_FAILED/);
    await sleep(200);
    expect((await host.exec("ls /run/ran")).code).not.toBe(0);
  });

  test("results come back one for one, in order, whatever the scripts do", async () => {
    const host = await open().connect(at(main));
    const results = await host.withLock("me", async (shell) => [
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

  test("megabytes of input and output", async () => {
    const host = await open().connect(at(main));
    const input = "0123456789abcde\n".repeat(100_000);
    const result = await host.withLock("me", (shell) =>
      shell.run(`cat <<'EOF'\n${input}EOF\nhead -c 8000000 /dev/zero >&2`),
    );
    expect(result.stdout === input).toBe(true);
    expect([result.code, result.stderr.length]).toEqual([0, 8_000_000]);
  });

  test("two processes hold the lock one after the other, and leave no process or file", async () => {
    const hosts = await Promise.all([open(), open()].map((hosts) => hosts.connect(at(main))));
    const log: string[] = [];
    const logHolder = (holder: string) => async (shell: { run(script: string): Promise<{ stdout: string }> }) => {
      log.push(`${holder} in`);
      expect((await shell.run("sleep 0.1; head -1 /run/pulumi-overlay/holder")).stdout).toBe(`${holder}\n`);
      log.push(`${holder} out`);
    };
    await Promise.all(
      ["a", "b", "c", "d"].map((holder, index) => hosts[index % 2]!.withLock(holder, logHolder(holder))),
    );
    expect(log.map((line) => line.slice(2))).toEqual(["in", "out", "in", "out", "in", "out", "in", "out"]);
    expect(
      log
        .filter((_, index) => index % 2 === 0)
        .map((line) => line[0])
        .sort(),
    ).toEqual(["a", "b", "c", "d"]);
    expect(new Set(log.map((line, index) => `${index >> 1}${line[0]}`)).size).toBe(4);
    expect((await hosts[0]!.exec("ls /run/pulumi-overlay")).stdout).toBe("");
  });

  test("HOST_LOCKED names the holder and since when", async () => {
    const first = await open().connect(at(main));
    const second = await open({ operationTimeout: 2 }).connect(at(main));
    const error = await first.withLock("acme/prod/it's $HOME", () => failure(second.withLock("other", async () => {})));
    expect(error.message).toMatch(
      /^HOST_LOCKED: 127.0.0.1:\d+ is locked by acme\/prod\/it's \$HOME since \d{4}-\d\d-\d\dT[\d:]+Z; waited 1 s/,
    );
  });

  test("an unprivileged user who locks all files that it can open does not delay us", async () => {
    const host = await open({ operationTimeout: 4 }).connect(at(await serve()));
    await host.withLock("first", async () => {});
    await holdAllAsUser((script) => host.exec(script));
    expect((await host.withLock("second", (shell) => shell.run("echo here"))).stdout).toBe("here\n");
  });

  test.each([
    ["a symbolic link", "ln -s /tmp /run/pulumi-overlay"],
    ["a file", "touch /run/pulumi-overlay"],
    ["a directory that others can open", "mkdir -m 755 /run/pulumi-overlay"],
    ["another user's directory", "mkdir -m 700 /run/pulumi-overlay; chown bob /run/pulumi-overlay"],
  ])("%s in place of the lock's directory is refused before anything is run", async (_, setup) => {
    const host = await open().connect(at(await serve({ setup })));
    const error = await failure(host.withLock("me", (shell) => shell.run("touch /run/ran")));
    expect(error.message).toMatch(
      /^HOST_COMMAND_FAILED: \/run\/pulumi-overlay on 127\.0\.0\.1:\d+ is not a directory of root with mode 0700/,
    );
    expect((await host.exec("ls /run/ran")).code).not.toBe(0);
  });

  test("an error in the work passes through and frees the lock", async () => {
    const host = await open().connect(at(main));
    await expect(host.withLock("a", () => Promise.reject(new Error("mine")))).rejects.toThrow("mine");
    expect((await host.withLock("b", (shell) => shell.run("echo free"))).stdout).toBe("free\n");
  });

  test("work or a script that hangs loses the lock in time", async () => {
    const host = await open({ operationTimeout: 1 }).connect(at(main));
    const script = await failure(host.withLock("a", (shell) => shell.run("sleep 77")));
    expect(script.message).toMatch(/^HOST_TIMEOUT: .*running `sleep 77` within 1 s/);
    const nested = failure(host.withLock("a", () => host.withLock("b", async () => {})));
    expect((await nested).code).toBe("HOST_TIMEOUT");
    expect((await host.withLock("c", (shell) => shell.run("echo free"))).stdout).toBe("free\n");
  });

  test("a background child does not hold the lock", async () => {
    const host = await open().connect(at(main));
    const child = Number((await host.withLock("a", (shell) => shell.run("sleep 60 & echo $!"))).stdout);
    await host.withLock("b", (shell) => shell.run("true"));
    expect(process.kill(child, "SIGKILL"), "the child was still running").toBe(true);
  });

  test("a client that is killed in the middle loses the lock when its script ends", async () => {
    const child = client(
      "await host.withLock('killed', (shell) => { console.log('in'); return shell.run('sleep 1'); });",
    );
    await new Promise((resolve) => child.stdout.once("data", resolve));
    child.kill("SIGKILL");
    const host = await open().connect(at(main));
    expect((await host.withLock("next", (shell) => shell.run("head -1 /run/pulumi-overlay/holder"))).stdout).toBe(
      "next\n",
    );
  });

  test("a host whose sh is bash works as well", async () => {
    const server = await serve({ setup: "mount --bind /bin/bash /bin/dash" });
    const host = await open({ operationTimeout: 2 }).connect(at(server));
    const script = "cat; set -e; [ -n \"$BASH_VERSION\" ]; cat <<'EOF'\nit's bash\nEOF\nfalse";
    expect(await host.exec(script)).toEqual({ code: 1, stdout: "it's bash\n", stderr: "" });
    const hung = await failure(host.withLock("me", (shell) => shell.run("sleep 78")));
    expect(hung.code).toBe("HOST_TIMEOUT");
    const after = await host.withLock("you", (shell) => shell.run("head -1 /run/pulumi-overlay/holder"));
    expect(after).toEqual({ code: 0, stdout: "you\n", stderr: "" });
    expect((await host.exec("ls /run/pulumi-overlay")).stdout).toBe("");
  });

  test("the error for a host without flock or timeout names the package", async () => {
    const nothing = emptyFile(folder);
    for (const [tool, debian] of [
      ["flock", "util-linux"],
      ["timeout", "coreutils"],
    ]) {
      const server = await serve({ setup: `mount --bind ${nothing} /usr/bin/${tool}` });
      const error = await failure((await open().connect(at(server))).withLock("me", async () => {}));
      expect(error.message).toMatch(new RegExp(`^HOST_TOOL_MISSING: .* has no \`${tool}\`.*apt-get install ${debian}`));
    }
  });
});
