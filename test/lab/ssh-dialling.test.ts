import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { at, client, failure, folder, knownHosts, logins, main, open, ready, serve } from "./ssh-servers";
import { freePort, makeKey, type Sshd } from "./sshd";

/** Hosts that boot late, are down, do not answer, are disconnected, or are behind a jump host. */
describe.skipIf(!ready)("dialling", () => {
  test("a host that comes up three seconds late is waited for", async () => {
    const port = await freePort();
    const late = sleep(3000).then(() => serve({ port }));
    writeFileSync(knownHosts, "");
    const host = await open({ unknownHostKey: "accept" }).connect(at({ port }));
    expect((await host.exec("echo up")).stdout).toBe("up\n");
    await late;
  });

  test("the error for a host that is down has the number of attempts and the time", async () => {
    const port = await freePort();
    const error = await failure(open().connect(at({ port }, { dialErrorLimit: 3 })));
    expect(error.message).toMatch(
      new RegExp(
        `^SSH_UNREACHABLE: 127.0.0.1:${port} .*dial failed with ECONNREFUSED: the port is closed \\(3 tries in [\\d.]+ s\\)`,
      ),
    );
  });

  test("a host name that does not exist fails at once", async () => {
    const start = Date.now();
    const error = await failure(open().connect(at(main, { host: "no-such-host.invalid" })));
    expect(error.message).toMatch(
      /^SSH_UNREACHABLE: no-such-host\.invalid.* (ENOTFOUND: no such|EAI_AGAIN: the) host name/,
    );
    expect(Date.now() - start).toBeLessThan(10_000);
  });

  test("the operation timeout ends it before the limit of dials is reached", async () => {
    const error = await failure(
      open({ operationTimeout: 2 }).connect(at({ port: await freePort() }, { dialErrorLimit: 0 })),
    );
    expect(error.message).toMatch(/SSH_UNREACHABLE: .*\(\d tries in/);
  });

  test("a server that accepts and sends nothing, or disconnects, fails in the handshake", async () => {
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

  test("a lost connection is dialled again by the next call", async () => {
    const server = await serve();
    const hosts = open();
    const host = await hosts.connect(at(server));
    process.kill(sessionOf(server), "SIGKILL");
    expect((await host.exec("echo again")).stdout).toBe("again\n");
    expect(logins(server)).toBe(2);
  });

  test("a host that stops answering is detected, and calls that wait for it fail", async () => {
    const server = await serve();
    const host = await open({}, { keepalive: 0.2 }).connect(at(server));
    const waiting = failure(host.exec("(\nsleep 60\n)", "changing it"));
    await sleep(300);
    const session = sessionOf(server);
    process.kill(session, "SIGSTOP");
    const error = await waiting;
    expect(error.message).toMatch(
      /^SSH_UNREACHABLE: The connection to .* was lost while changing it: the host stopped answering/,
    );
    process.kill(session, "SIGKILL");
  });

  test("a host that does not answer on an open connection is said not to answer, and not to lack sessions", async () => {
    const server = await serve();
    const host = await open({ connectTimeout: 1 }).connect(at(server));
    const session = sessionOf(server);
    process.kill(session, "SIGSTOP");
    const { message } = await failure(host.exec("true", "reading its state"));
    expect(message).toMatch(
      /^SSH_UNREACHABLE: 127.0.0.1:\d+ stopped answering on an open connection, before reading its state: no answer in 1 s\. Nothing was changed in this step\. Check that the host is up, and that neither a firewall/,
    );
    process.kill(session, "SIGKILL");
  });

  test("a host that does not answer a shell that is open from before is said not to answer", async () => {
    const server = await serve();
    const host = await open({}, { keepalive: 0.2 }).connect(at(server));
    await host.exec("true");
    const session = sessionOf(server);
    process.kill(session, "SIGSTOP");
    const { message } = await failure(host.exec("true", "reading its state"));
    process.kill(session, "SIGKILL");
    expect(message).toMatch(
      /^SSH_UNREACHABLE: The connection to .* was lost while reading its state: the host stopped answering/,
    );
  });

  test("end() stops dials in progress", async () => {
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
  test("fifteen hosts behind a jump host are reached by one connection to it, within its MaxStartups", async () => {
    const jump = await serve();
    const addresses = Array.from({ length: 15 }, (_, index) => `127.0.0.${index + 1}`);
    const listening = addresses.slice(1).map((address) => `ListenAddress=${address}`);
    const behind = await serve({ options: ["MaxStartups=12:100:12", ...listening] });
    const hosts = open({ parallelHosts: 20 });
    const connections = addresses.map((host) => at(behind, { host, proxy: at(jump) }));
    const results = await Promise.all(connections.map(async (way) => (await hosts.connect(way)).exec("echo here")));
    expect(new Set(results.map(({ stdout }) => stdout))).toEqual(new Set(["here\n"]));
    expect([logins(jump), logins(behind)]).toEqual([1, 15]);
    expect(behind.log()).not.toMatch(/MaxStartups|drop connection/);
  });

  test("errors of hosts behind a jump host name the jump host", async () => {
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
      hosts.connect(at(main, { proxy: at(jump, { privateKeyPath: makeKey(folder, "unknown"), user: "bob" }) })),
    );
    expect(refused.message).toMatch(/^SSH_AUTH: .* is behind a jump host that fails: .* refused to log in bob/);
  });
});

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
