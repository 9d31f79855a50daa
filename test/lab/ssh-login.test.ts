import { execFileSync, spawn } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Prompt, Server } from "ssh2";
import { describe, expect, test } from "vitest";
import type { Connection } from "../../provider/host/connection";
import { at, failure, folder, key, knownHosts, logins, main, open, ready, serve } from "./ssh-servers";
import { makeKey, USERS } from "./sshd";

/** Keys, passwords and fallbacks; and host keys. */

/** A server that asks for a password, and then for what it likes. Returns the answers that it got. */
async function answersTo(...rounds: Prompt[][]): Promise<string[][]> {
  const answers: string[][] = [];
  const hostKeyPath = makeKey(folder, `prompts-${rounds.length}`);
  const server = new Server({ hostKeys: [readFileSync(hostKeyPath)] }, (connection) => {
    connection.on("error", () => {});
    connection.on("authentication", (context) => {
      if (context.method !== "keyboard-interactive") return context.reject(["keyboard-interactive"]);
      const ask = ([prompts, ...more]: Prompt[][]): void => {
        if (!prompts) context.reject();
        else
          context.prompt(prompts, (given) => {
            answers.push(given);
            ask(more);
          });
      };
      ask(rounds);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const hostKey = readFileSync(`${hostKeyPath}.pub`, "utf8");
  await failure(open().connect(at({ port, hostKey }, { privateKeyPath: undefined, password: "secret" })));
  server.close();
  return answers;
}

describe.skipIf(!ready)("logging in (needs root and openssh-server)", () => {
  test.each<[string, string[], string | undefined]>([
    ["with SHA-2, to a server with its defaults", [], undefined],
    ["not with SHA-1, to a server that takes nothing else", ["PubkeyAcceptedAlgorithms=ssh-rsa"], "SSH_AUTH"],
  ])("an RSA key signs %s", async (_, options, refused) => {
    const rsa = makeKey(folder, `rsa-${options.length}`, "-t", "rsa", "-b", "3072");
    const server = await serve({ options });
    writeFileSync(join(server.folder, "authorized_keys"), readFileSync(`${rsa}.pub`));
    const connecting = open().connect(at(server, { privateKeyPath: rsa }));
    if (refused) expect((await failure(connecting)).code).toBe(refused);
    else expect((await (await connecting).exec("id -un")).stdout).toBe("root\n");
    expect(logins(server)).toBe(refused ? 0 : 1);
  });

  test("a server whose host key signs with SHA-1 only is refused, with a fix", async () => {
    const rsa = makeKey(folder, "rsa-host", "-t", "rsa", "-b", "3072");
    const server = await serve({ keys: [rsa], options: ["HostKeyAlgorithms=ssh-rsa"] });
    const { message } = await failure(open().connect(at(server)));
    expect(message).toMatch(/^SSH_UNREACHABLE: .*no SSH algorithm in common .*Allow a current one in its sshd_config/);
  });

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

  test("a password answers one hidden prompt, once", async () => {
    const [password, code, user] = [
      ["Password: ", false],
      ["Code: ", false],
      ["User: ", true],
    ].map(([prompt, echo]) => ({ prompt, echo }) as Prompt) as [Prompt, Prompt, Prompt];
    expect(await answersTo([user], [password], [code])).toEqual([[""], ["secret"], [""]]);
    expect(await answersTo([password, code])).toEqual([["", ""]]);
  });

  test("a password", async () => {
    const way = at(main, { user: "alice", password: USERS.alice.password, privateKeyPath: undefined, sudo: false });
    const error = await failure((await open().connect(way)).exec("id -un"));
    expect(error.message).toContain("SSH_SUDO: User alice is not root on");
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

  test("an encrypted key without its password has its own error", async () => {
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

describe.skipIf(!ready)("concurrent logins", () => {
  test("a fallback with another user is not preceded by the refused key in every command", async () => {
    const server = await serve();
    const old = at(server, { privateKeyPath: makeKey(folder, "older") });
    const alice = { user: "alice", password: USERS.alice.password, privateKeyPath: undefined, sudo: false };
    const host = await open().connect(old, [at(server, alice)]);
    for (const script of ["id -un", "id -un"])
      expect((await failure(host.exec(script))).message).toContain("SSH_SUDO: User alice is not root on");
    expect(server.log().match(/authenticating user root/g)).toHaveLength(1);
  });

  test("a caller with a good key is not refused because of the bad key of an earlier caller", async () => {
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

  test("an unknown one may be accepted, and is known from then on", async () => {
    writeFileSync(knownHosts, "# comment");
    const hosts = open({ unknownHostKey: "accept" });
    await hosts.connect(unpinned());
    expect((await (await open().connect(unpinned())).exec("echo in")).stdout).toBe("in\n");
    expect(readFileSync(knownHosts, "utf8").split("\n")).toHaveLength(3);
    const other = readFileSync(`${makeKey(folder, "another")}.pub`, "utf8");
    expect((await failure(hosts.connect({ ...unpinned(), hostKey: other }))).code).toBe("SSH_HOST_KEY");
  });

  test("of a server with several keys, the one in known_hosts is requested", async () => {
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
