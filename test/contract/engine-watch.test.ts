import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test } from "vitest";

/** The provider's process, as Pulumi starts it: with the address of its engine. It ends when that is gone. */
const runtime = join(__dirname, "../../dist/provider/runtime.js");
let folder: string;
let engine: Server;
let sockets: Socket[];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "overlay-engine-"));
  mkdirSync(join(folder, "dynamic-provider"));
  // Loading the module may take a moment, as on a busy machine.
  const text = `setTimeout(() => { require(${JSON.stringify(runtime)}); console.log("loaded"); }, 300); setInterval(() => {}, 1000);`;
  writeFileSync(join(folder, "dynamic-provider", "index.js"), text);
  sockets = [];
  engine = createServer((socket) => void sockets.push(socket.on("error", () => {}))).listen(0, "127.0.0.1");
  await once(engine, "listening");
});
afterEach(() => {
  die();
  rmSync(folder, { recursive: true });
});

function start(): ChildProcess {
  const { port } = engine.address() as AddressInfo;
  const args = [join(folder, "dynamic-provider", "index.js"), `127.0.0.1:${port}`];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  return child;
}

function die(): void {
  engine.close();
  for (const socket of sockets.splice(0)) socket.destroy();
}

test("it ends at once when the engine dies", async () => {
  const provider = start();
  await once(engine, "connection");
  die();
  expect(await once(provider, "exit")).toEqual([1, null]);
});

test("it ends if the engine has died before the module was loaded", async () => {
  const provider = start();
  die();
  expect(await once(provider, "exit")).toEqual([1, null]);
});

test("it stays while the engine only ends a silent connection", async () => {
  const provider = start();
  await once(engine, "connection");
  sockets.pop()!.destroy();
  await once(engine, "connection");
  expect(provider.exitCode).toBe(null);
});
