import { setTimeout as sleep } from "node:timers/promises";
import { expect } from "vitest";
import type { Ctl } from "../unit/cli/ctl";
import { EventClient } from "../unit/service/event-client";
import { Receiver } from "../unit/service/receiver";
import { createPool, openPool, ranges } from "./fixture";
import { type ServiceProcess, startService, waitFor } from "./service-process";

/**
 * Two instances of the service on one store. Clients reserve and release addresses in two pools through both, while subscribers follow; one
 * instance is killed and started again, and connections are cut.
 */
export class EventRun {
  readonly #instances: ServiceProcess[] = [];
  #token = "";
  #receiver!: Receiver;

  constructor(
    private readonly ctl: Ctl,
    private readonly store: string,
  ) {}

  async start(): Promise<void> {
    const pool = await openPool(this.store, SETTINGS);
    await createPool(pool, { name: "pool/p", ranges: ranges("10.0.0.0/18") });
    await createPool(pool, { name: "pool/q", ranges: ranges("10.64.0.0/18") });
    await pool.end();
    const [made] = await this.#must("access", "create", "run", "--scope", "admin");
    this.#token = String(made!.token);
    this.#receiver = await Receiver.start();
    await this.#must("webhook", "add", this.#receiver.url);
    for (let i = 0; i < 2; i++) this.#instances.push(await this.#startInstance());
  }

  async stop(): Promise<void> {
    await Promise.all(this.#instances.map((instance) => instance.stop()));
    await this.#receiver.stop();
  }

  /** Makes so many changes, and returns what there was to see. */
  async change(count: number): Promise<{ expected: number[]; subscribers: EventClient[]; delivered: number[] }> {
    const after = await this.#newest();
    const subscribers = [0, 1, 1].map(
      (i) => new EventClient(() => `${this.#instances[i]!.url}/api/overlay/events?after=${after}`, this.#token),
    );
    const disturbed = this.#disturb(subscribers);
    await Promise.all(Array.from({ length: CLIENTS }, (_, client) => this.#work(client, count / 2 / CLIENTS)));
    await disturbed;
    const last = await this.#newest();
    const expected = Array.from({ length: last - after }, (_, i) => after + 1 + i);
    await waitFor(() => (subscribers.every(({ events }) => (events.at(-1)?.id ?? 0) >= last) ? true : undefined), 60);
    await waitFor(() => (Math.max(0, ...this.#receiver.ids) >= last ? true : undefined), 60);
    await Promise.all(subscribers.map((subscriber) => subscriber.stop()));
    return { expected, subscribers, delivered: this.#receiver.ids };
  }

  /** The stream of the store itself: the truth. */
  async #newest(): Promise<number> {
    const pool = await openPool(this.store, SETTINGS);
    return (await pool.events({}).finally(() => pool.end())).last;
  }

  async #disturb(subscribers: EventClient[]): Promise<void> {
    const [first, second] = subscribers;
    await waitFor(() => (subscribers.every(({ events }) => events.length > 20) ? true : undefined), 60);
    first!.cut();
    const killed = this.#instances[1]!;
    process.kill(killed.pid, "SIGKILL");
    await killed.ended;
    this.#instances[1] = await this.#startInstance();
    await waitFor(() => (second!.connections > 1 ? true : undefined), 60);
    second!.cut();
  }

  /** Reserves and releases, one after the other; if an instance is gone, with the other one. */
  async #work(client: number, rounds: number): Promise<void> {
    for (let round = 0; round < rounds; round++) {
      const owner = `c${client}-${round}`;
      const { token } = await this.#post(client, `reserve?pool=${client % 2 === 0 ? "p" : "q"}&container=${owner}`);
      await this.#post(client + 1, `release?token=${token}`);
    }
  }

  async #post(client: number, path: string): Promise<{ token?: string }> {
    for (let attempt = 0; attempt < 200; attempt++, await sleep(50)) {
      const { url } = this.#instances[(client + attempt) % 2]!;
      const headers = { authorization: `Bearer ${this.#token}` };
      const answer = await fetch(`${url}/api/overlay/ip/${path}`, {
        method: "POST",
        headers,
        signal: AbortSignal.timeout(ANSWER_MS),
      }).catch(() => undefined);
      const body = (await answer?.json().catch(() => undefined)) as { token?: string; code?: string } | undefined;
      if (answer?.ok && body) return body;
      // The first attempt was committed, and its answer lost.
      if (path.startsWith("release") && body?.code !== undefined && GONE.includes(body.code)) return {};
      if (answer && answer.status < 500 && answer.status !== 429) throw new Error(`${path}: ${JSON.stringify(body)}`);
    }
    throw new Error(`No instance answers ${path}.`);
  }

  #startInstance(): Promise<ServiceProcess> {
    return startService(this.ctl, ["--log-level", "info"], { OVERLAY_STORE: this.store });
  }

  #must(...args: string[]): Promise<Record<string, unknown>[]> {
    return this.ctl.must(...args, "--store", this.store);
  }
}

const SETTINGS = { offerTtl: 60, quarantine: 0 };
const CLIENTS = 10;
/** An instance that answers later counts as gone. */
const ANSWER_MS = 20_000;
const GONE = ["LEASE_EXPIRED", "LEASE_FENCED", "TOKEN_EXPIRED", "TOKEN_USED"];

/** Each subscriber has every change once and in order; the webhook each at least once, in order where it is new. */
export async function expectAllSeen(run: EventRun, count: number): Promise<{ changes: number; duplicates: number }> {
  const { expected, subscribers, delivered } = await run.change(count);
  expect(expected.length).toBeGreaterThanOrEqual(count);
  for (const { ids, events } of subscribers) {
    expect(ids).toEqual(expected);
    expect(new Set(events.map(({ data }) => JSON.parse(data).pool))).toEqual(new Set(["pool/p", "pool/q"]));
  }
  expect(subscribers.map(({ connections }) => connections > 1)).toEqual([true, true, true]);
  const firsts = [...new Set(delivered)].filter((id) => id >= expected[0]!);
  expect(firsts).toEqual(expected);
  return { changes: expected.length, duplicates: delivered.length - new Set(delivered).size };
}
