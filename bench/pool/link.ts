import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { Worker } from "node:worker_threads";

/** Ports on loopback that lead to servers over a slower link. */
export interface SlowLink {
  /** One for each server, in their order. */
  ports: number[];
  close(): void;
}

/**
 * A TCP proxy in front of servers on loopback. Data is delayed by half the round trip in each direction and stays in order; bandwidth
 * is not limited. The TCP handshake is not delayed.
 */
export async function openLink(servers: number[], roundTripMs: number): Promise<SlowLink> {
  const queue = new DelayQueue(roundTripMs / 2);
  const sockets = new Set<Socket>();
  const listeners = servers.map((port) =>
    createServer({ allowHalfOpen: true }, (client) => {
      const server = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
      forward(client, server, queue);
      forward(server, client, queue);
      for (const socket of [client, server]) sockets.add(socket.on("close", () => sockets.delete(socket)));
    }).listen(0, "127.0.0.1"),
  );
  await Promise.all(listeners.map((listener) => once(listener, "listening")));
  return {
    ports: listeners.map((listener) => (listener.address() as AddressInfo).port),
    close: () => {
      for (const listener of listeners) listener.close();
      for (const socket of sockets) socket.destroy();
      queue.close();
    },
  };
}

function forward(from: Socket, to: Socket, queue: DelayQueue): void {
  from.setNoDelay(true);
  from.on("data", (data) => queue.add(() => to.write(data)));
  from.on("end", () => queue.add(() => to.end()));
  from.on("error", () => to.destroy());
}

/**
 * Runs actions after a constant delay, in the order in which they were added. Timers of Node have a resolution of a millisecond, too
 * coarse for half of one: a thread waits instead, and posts a message.
 */
class DelayQueue {
  readonly #queue: { due: bigint; act(): unknown }[] = [];
  readonly #due = new BigInt64Array(new SharedArrayBuffer(8));
  readonly #delay: bigint;
  readonly #thread: Worker;

  constructor(delayMs: number) {
    this.#delay = BigInt(Math.round(delayMs * 1e6));
    this.#thread = new Worker(WAIT, { eval: true, workerData: this.#due });
    this.#thread.on("message", () => this.#run());
  }

  add(act: () => unknown): void {
    this.#queue.push({ due: process.hrtime.bigint() + this.#delay, act });
    if (this.#queue.length === 1) this.#wait();
  }

  close(): void {
    this.#queue.length = 0;
    void this.#thread.terminate();
  }

  #wait(): void {
    Atomics.store(this.#due, 0, this.#queue[0]!.due);
    Atomics.notify(this.#due, 0);
  }

  #run(): void {
    const now = process.hrtime.bigint();
    while (this.#queue.length > 0 && this.#queue[0]!.due <= now) this.#queue.shift()!.act();
    if (this.#queue.length > 0) this.#wait();
  }
}

/** Waits until the time in nanoseconds that it is given, posts a message, and waits for the next. */
const WAIT = `
  const { parentPort, workerData: due } = require("node:worker_threads");
  const idle = new Int32Array(new SharedArrayBuffer(4));
  for (;;) {
    Atomics.wait(due, 0, 0n);
    for (let left; (left = Number(due[0] - process.hrtime.bigint())) > 0; ) Atomics.wait(idle, 0, 0, left / 1e6);
    Atomics.store(due, 0, 0n);
    parentPort.postMessage(undefined);
  }`;
