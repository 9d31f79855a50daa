import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { get } from "node:http";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { OverlayClient } from "../../client";
import { Ctl, deploy, OVERLAYCTL } from "../unit/cli/ctl";
import { waitFor } from "./service-process";

/**
 * The service is replaced as systemd does it with `overlayctl.socket`: the socket stays open in another process, the old service gets SIGTERM, and the new one is started
 * when the old one has ended. Clients send requests without a pause.
 */
const ctl = new Ctl();

beforeAll(() => ctl.withPool((pool) => deploy(pool, ["node1"])));
afterAll(() => ctl.remove());

/** A shell that has the listening socket as file 3, and starts the service on it for each line of its input. */
class SocketUnit {
  #output = "";

  static async listen(): Promise<SocketUnit> {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { fd } = (server as unknown as { _handle: { fd: number } })._handle;
    const { port } = server.address() as { port: number };
    const service = `LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" serve --no-auth`;
    const script = `while read -r line; do sh -c '${service}' sh "$@" </dev/null & done; wait`;
    const env = { PATH: process.env.PATH, HOME: ctl.folder, OVERLAY_STORE: ctl.store };
    const command = ["-c", script, "sh", process.execPath, OVERLAYCTL];
    const shell = spawn("/bin/sh", command, { env, stdio: ["pipe", "pipe", "inherit", fd] });
    server.close(); // only this process's copy
    return new SocketUnit(shell, `http://127.0.0.1:${port}`);
  }

  private constructor(
    private readonly shell: ChildProcess,
    readonly url: string,
  ) {
    shell.stdout!.on("data", (data) => (this.#output += data));
  }

  #count(text: string): number {
    return this.#output.split(text).length - 1;
  }

  async start(): Promise<void> {
    const before = this.#count("listening at");
    this.shell.stdin!.write("start\n");
    await waitFor(() => (this.#count("listening at") > before ? true : undefined), 120);
  }

  /** Ends the running service with SIGTERM. */
  async stop(): Promise<void> {
    const before = this.#count('"stopped"');
    const children = spawn("pgrep", ["-P", String(this.shell.pid), "-x", "node"], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    let pids = "";
    children.stdout.on("data", (data) => (pids += data));
    await once(children, "close");
    for (const pid of pids.trim().split("\n")) process.kill(Number(pid), "SIGTERM");
    await waitFor(() => (this.#count('"stopped"') > before ? true : undefined), 60);
  }

  async close(): Promise<void> {
    await this.stop();
    this.shell.stdin!.end();
    await once(this.shell, "exit");
  }
}

/** Calls a function without a pause until it is told to stop. Returns how often it succeeded, and all errors. */
function repeat(act: () => Promise<unknown>): () => Promise<{ done: number; errors: string[] }> {
  let isStopped = false;
  const result = { done: 0, errors: [] as string[] };
  const ended = (async () => {
    while (!isStopped)
      await act().then(
        () => result.done++,
        (error: Error) => result.errors.push(error.message),
      );
  })();
  return async () => {
    isStopped = true;
    await ended;
    return result;
  };
}

/** One request on a connection of its own. */
const getOnce = (url: string): Promise<void> =>
  new Promise((resolve, reject) => {
    get(url, { agent: false }, (answer) => {
      answer.resume();
      answer.once("end", () =>
        answer.statusCode === 200
          ? resolve()
          : reject(new Error(`${answer.statusCode} ${answer.headers["content-type"]}`)),
      );
    }).once("error", reject);
  });

test("clients that send requests without a pause see no failure while the service is replaced", {
  timeout: 300_000,
}, async () => {
  const unit = await SocketUnit.listen();
  await unit.start();
  const client = new OverlayClient({ baseUrl: unit.url });
  const plain = `${unit.url}/api/overlay/ip/reservations?runner=node1`;
  const clients = [
    repeat(() => client.withAddress("node1", async () => {})),
    repeat(() => client.withAddress("node1", async () => {})),
    repeat(() => client.stats()),
    repeat(() => getOnce(plain)), // without retries
    repeat(() => getOnce(plain)),
  ];
  for (let i = 0; i < 3; i++) {
    await sleep(500);
    await unit.stop();
    await sleep(200); // connections wait meanwhile
    await unit.start();
  }
  await sleep(500);
  const results = await Promise.all(clients.map((stop) => stop()));
  console.log(`requests: ${results.map(({ done }) => done).join(", ")}`);
  expect(results.flatMap(({ errors }) => errors)).toEqual([]);
  for (const { done } of results) expect(done).toBeGreaterThan(3);
  await unit.close();
  expect(await ctl.must("ip", "list")).toEqual([]);
});
