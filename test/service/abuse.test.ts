import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { OverlayClient, OverlayServiceError } from "../../client";
import { type ServiceProcess, startService, waitFor } from "../contract/service-process";
import { Ctl, deploy } from "../unit/cli/ctl";

/** Clients that send too much, too slowly, or nothing at all. Meanwhile an honest client is served; its latencies are printed. */
const ctl = new Ctl();
let service: ServiceProcess;
let token: string;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1"]));
  const [made] = await ctl.must("access", "create", "scheduler", "--scope", "reserve", "--scope", "read");
  token = String(made!.token);
  service = await startService(ctl);
});
afterAll(async () => {
  await service.stop();
  ctl.remove();
});

/** Starts an honest client. The result ends it, and prints and returns its latencies. */
async function honestClient(): Promise<(during: string) => Promise<number[]>> {
  const args = ["--import", "tsx", join(__dirname, "honest-client.ts"), service.url, token];
  const child = spawn(process.execPath, args, { stdio: ["pipe", "pipe", "inherit"] });
  const output = text(child.stdout);
  await once(child.stdout, "data");
  return async (during) => {
    child.stdin.end();
    const sorted = (JSON.parse(await output) as number[]).sort((a, b) => a - b);
    const at = (share: number) => sorted[Math.floor((sorted.length - 1) * share)]!.toFixed(1);
    console.log(
      `${during}: ${sorted.length * 3} requests, ms for each: median ${at(0.5)}, p99 ${at(0.99)}, most ${at(1)}`,
    );
    return sorted;
  };
}

const rssMb = async (): Promise<number> => {
  const metrics = await new OverlayClient({ baseUrl: service.url, token }).metrics();
  return Number(/^process_resident_memory_bytes (\S+)$/m.exec(metrics)![1]) / 2 ** 20;
};

const open = (): Socket => {
  const { hostname, port } = new URL(service.url);
  return connect(Number(port), hostname);
};

test("with nothing else, for comparison", async () => {
  const stop = await honestClient();
  await sleep(5000);
  expect((await stop("alone")).length).toBeGreaterThan(5);
});

test("bodies of 10 MB are refused before they are read, also without a length and without a token", async () => {
  const before = await rssMb();
  const stop = await honestClient();
  const send = async (headers: Record<string, string>, body: string | ReadableStream): Promise<number> => {
    const request = { method: "POST", headers: { "content-type": "application/json", ...headers }, body };
    const answer = await fetch(`${service.url}/api/overlay/ip/reserve`, {
      ...request,
      duplex: "half",
    } as RequestInit).catch(
      () => undefined, // the connection is closed while it sends
    );
    return answer?.status ?? 0;
  };
  const chunk = new Uint8Array(65_536).fill(0x20);
  const stream = (): ReadableStream => {
    let sent = 0;
    return new ReadableStream({
      pull: (controller) => (sent++ < 160 ? controller.enqueue(chunk) : controller.close()),
    });
  };
  const body = `"${"x".repeat(10 * 2 ** 20)}"`;
  const authorization = `Bearer ${token}`;
  const statuses: number[] = [];
  for (let round = 0; round < 20; round++)
    statuses.push(
      ...(await Promise.all([
        ...Array.from({ length: 4 }, () => send({ authorization }, body)),
        ...Array.from({ length: 4 }, () => send({ authorization }, stream())),
        send({}, body),
      ])),
    );
  const count = (status: number) => statuses.filter((each) => each === status).length;
  console.log(`413: ${count(413)}, 401: ${count(401)}, connection closed: ${count(0)}`);
  expect(count(413) + count(401) + count(0)).toBe(statuses.length);
  expect(count(413)).toBeGreaterThan(0);
  expect((await stop("bodies of 10 MB")).length).toBeGreaterThan(5);
  console.log(`memory: ${before.toFixed()} MB before, ${(await rssMb()).toFixed()} MB after`);
});

test("requests whose headers or bodies arrive byte by byte are ended, and delay no other", async () => {
  const stop = await honestClient();
  const headers = `POST /api/overlay/ip/reserve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\nX: ${"y".repeat(2000)}`;
  const body = `${headers}\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{`;
  const started = performance.now();
  const lives = Array.from({ length: 500 }, (_, i) =>
    trickle(i % 2 === 0 ? headers : body, i % 2 === 0 ? 0 : body.length),
  );
  const seconds = (await Promise.all(lives)).map(({ closedAt }) => (closedAt - started) / 1000);
  const answers = (await Promise.all(lives)).map(({ answer }) => /^HTTP\/1\.1 (\d+)/.exec(answer)?.[1] ?? "none");
  expect(Math.max(...seconds)).toBeLessThan(120); // headers have 10 s, requests 30 s
  expect(answers.filter((status) => status === "408").length).toBeGreaterThan(400);
  expect((await stop("500 slow clients")).length).toBeGreaterThan(5);
});

/** Sends the first part at once, then a byte every 200 ms, until the server closes the connection. */
async function trickle(request: string, atOnce: number): Promise<{ answer: string; closedAt: number }> {
  const socket = open();
  let answer = "";
  socket.on("data", (data) => (answer += data));
  socket.on("error", () => {}); // reset, while a byte was under way
  socket.write(request.slice(0, Math.max(atOnce, 1)));
  let at = Math.max(atOnce, 1);
  const timer = setInterval(() => socket.write(request[at++] ?? "z"), 200);
  await once(socket, "close");
  clearInterval(timer);
  return { answer, closedAt: performance.now() };
}

/** A process that holds idle connections. */
interface Holder {
  /** How many are open now, after `request` was answered. */
  idle(): number;
  stop(): Promise<void>;
}

/**
 * Keeps `count` connections open that send `request` once, and opens a new one for each that the service closes. It is a process of its own, because
 * it needs a file for each, and so does the service.
 */
function holdConnections(count: number, request: string): Holder {
  const { hostname, port } = new URL(service.url);
  const script = `
    const { connect } = require("node:net");
    let open = 0, idle = 0;
    const openOne = () => {
      let isIdle = false;
      const becomeIdle = () => { if (!isIdle) { isIdle = true; idle++; } };
      const socket = connect(${port}, "${hostname}").on("error", () => {});
      open++;
      socket.on("close", () => { open--; if (isIdle) idle--; });
      if (${request === ""}) socket.on("connect", becomeIdle);
      else socket.on("data", becomeIdle).write(${JSON.stringify(request)});
    };
    setInterval(() => {
      for (let i = 0; i < 100 && open < ${count}; i++) openOne();
      console.log(idle);
    }, 50);`;
  const command = ["-c", 'ulimit -n 20000 && exec "$@"', "sh", process.execPath, "-e", script];
  const child = spawn("/bin/sh", command, { stdio: ["ignore", "pipe", "inherit"] });
  let idle = 0;
  createInterface(child.stdout).on("line", (line) => (idle = Number(line)));
  return {
    idle: () => idle,
    stop: async () => {
      const ended = once(child, "exit");
      child.kill();
      await ended;
    },
  };
}

/** The smallest result of calls while so many milliseconds pass. */
async function leastDuring(ms: number, count: () => number): Promise<number> {
  let least = count();
  for (const deadline = Date.now() + ms; Date.now() < deadline; await sleep(50)) least = Math.min(least, count());
  return least;
}

/** The service closes those that send nothing after 10 s, so more are opened than are counted. */
test.each([
  ["send nothing", "", 13_000],
  ["have sent one request and are kept alive", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 10_100],
])("10,000 open connections that %s do not keep others out", async (what, request, count) => {
  const holder = holdConnections(count, request);
  try {
    await waitFor(() => (holder.idle() >= 10_000 ? true : undefined), 240);
    const stop = await honestClient();
    const least = await leastDuring(10_000, holder.idle);
    expect((await stop(`10,000 connections that ${what}`)).length).toBeGreaterThan(5);
    console.log(`at least ${least} idle connections were open, memory: ${(await rssMb()).toFixed()} MB`);
    expect(least).toBeGreaterThanOrEqual(10_000);
  } finally {
    await holder.stop();
  }
});

test("afterwards it works as before", async () => {
  const client = new OverlayClient({ baseUrl: service.url, token });
  await client.withAddress("node1", async () => {});
  expect((await client.reservations()).reservations).toEqual([]);
  await expect(client.reserve({ runner: "none" })).rejects.toBeInstanceOf(OverlayServiceError);
  expect(await ctl.run("store", "check")).toMatchObject({ code: 0 });
});
