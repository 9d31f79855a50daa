import { setTimeout as sleep } from "node:timers/promises";
import { OverlayClient, type Reservation } from "../../client";
import { type Ctl, deploy } from "../unit/cli/ctl";
import { type ServiceProcess, startService } from "./service-process";

/** Schedulers that run jobs over the service while its processes are killed, and what must hold all the time. */

export interface SimulationSettings {
  /** URL of the store. */
  store: string;
  jobs: number;
  runners: number;
  /** Schedulers that run jobs at the same time, each by a client of its own. */
  clients: number;
  /** Processes of the service on the store. */
  instances: number;
  /** At least so often is a process killed. */
  kills: number;
}

export interface SimulationResult {
  /** Whatever must not be. */
  violations: string[];
  /** Jobs that keep their address at the end. */
  kept: number;
  kills: number;
  /** Attempts beyond the first, of all calls. */
  retries: number;
  seconds: number;
}

/** 256 addresses for each of at most 15 runners: they are given out again and again. */
const LAYOUT = "10.128.0.0/20/4/8";

/** Every so many jobs, one does not release its address. */
const KEEP_EVERY = 10;

/** A restarted process may take long to listen on a busy machine. */
const RETRIES = 30;

const runnerNames = (count: number): string[] => Array.from({ length: count }, (_, i) => `node${i + 1}`);

/** The service as processes that are killed and started again on the same ports. */
class Instances {
  readonly #services: ServiceProcess[] = [];
  kills = 0;

  constructor(
    private readonly ctl: Ctl,
    private readonly env: Record<string, string>,
  ) {}

  async start(count: number): Promise<void> {
    for (let i = 0; i < count; i++) this.#services.push(await startService(this.ctl, [], this.env));
  }

  get urls(): string[] {
    return this.#services.map(({ url }) => url);
  }

  /** Kills one after the other, for as long as jobs run. On a busy machine too, each serves as long as it takes to start it. */
  async killUntil(isDone: () => boolean): Promise<void> {
    let startMs = 0;
    for (let i = 0; !isDone(); i = (i + 1) % this.#services.length) {
      await sleep(Math.max(500, startMs));
      const { pid, url, ended } = this.#services[i]!;
      process.kill(pid, "SIGKILL");
      await ended;
      this.kills++;
      const args = ["--listen", new URL(url).host];
      const started = performance.now();
      this.#services[i] = await startService(this.ctl, args, this.env);
      startMs = performance.now() - started;
    }
  }

  async stop(): Promise<void> {
    await Promise.all(this.#services.map((service) => service.stop()));
  }
}

/** What clients know for certain: the holder of each address from the answer to `reserve` until `release` is sent. */
class Ledger {
  readonly #holders = new Map<string, string>();
  readonly violations: string[] = [];

  take(ip: string, job: string): void {
    const other = this.#holders.get(ip);
    if (other !== undefined) this.violations.push(`${ip} was given to ${job} while ${other} had it`);
    this.#holders.set(ip, job);
  }

  giveBack(ip: string): void {
    this.#holders.delete(ip);
  }

  get size(): number {
    return this.#holders.size;
  }

  get addresses(): string[] {
    return [...this.#holders.keys()].sort();
  }
}

export async function simulateSchedulers(ctl: Ctl, settings: SimulationSettings): Promise<SimulationResult> {
  const started = performance.now();
  const env = { OVERLAY_STORE: settings.store, OVERLAY_QUARANTINE: "0" };
  await ctl.withPool((pool) => deploy(pool, runnerNames(settings.runners), { subnets: LAYOUT }), settings.store);
  const scopes = ["--scope", "reserve", "--scope", "read"];
  const [made] = await ctl.must("access", "create", "scheduler", ...scopes, "--store", settings.store);
  const token = String(made!.token);
  const instances = new Instances(ctl, env);
  const ledger = new Ledger();
  try {
    await instances.start(settings.instances);
    const counter = { attempts: 0, calls: 0 };
    let isDone = false;
    const killing = instances.killUntil(() => isDone && instances.kills >= settings.kills);
    await runJobs(settings, instances.urls, token, ledger, counter).finally(() => {
      isDone = true;
    });
    await killing;
    const clients = instances.urls.map((baseUrl) => new OverlayClient({ baseUrl, token }));
    for (const client of clients) ledger.violations.push(...(await compareWithService(client, ledger)));
    ledger.violations.push(...(await compareMetrics(ctl, settings.store, clients)));
    ledger.violations.push(...(await checkStore(ctl, settings.store)));
    return {
      violations: ledger.violations,
      kept: ledger.size,
      kills: instances.kills,
      retries: counter.attempts - counter.calls,
      seconds: Math.round((performance.now() - started) / 1000),
    };
  } finally {
    await instances.stop();
  }
}

async function runJobs(
  { jobs, clients, runners }: SimulationSettings,
  urls: string[],
  token: string,
  ledger: Ledger,
  counter: { attempts: number; calls: number },
): Promise<void> {
  const counting: typeof fetch = (...args) => {
    counter.attempts++;
    return fetch(...args);
  };
  let next = 0;
  const runClient = async (index: number): Promise<void> => {
    // A client has its own instance; what it was promised, it asks another one about.
    const [own, other] = [0, 1].map(
      (step) =>
        new OverlayClient({ baseUrl: urls[(index + step) % urls.length]!, token, retries: RETRIES, fetch: counting }),
    ) as [OverlayClient, OverlayClient];
    while (next < jobs) {
      const job = next++;
      const runner = job % 4 === 0 ? undefined : `training/node${1 + (job % runners)}`;
      await runJob({ own, other, ledger, name: `job-${job}`, runner, isKept: job % KEEP_EVERY === 0, counter }).catch(
        (error: Error) => ledger.violations.push(`job-${job}: ${error.message}`),
      );
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, i) => runClient(i)));
}

interface Job {
  own: OverlayClient;
  other: OverlayClient;
  ledger: Ledger;
  name: string;
  /** Any, if it is absent. */
  runner: string | undefined;
  isKept: boolean;
  counter: { calls: number };
}

async function runJob({ own, other, ledger, name, runner, isKept, counter }: Job): Promise<void> {
  const call = <T>(answer: Promise<T>): Promise<T> => {
    counter.calls++;
    return answer;
  };
  const place = runner === undefined ? { network: "training", anyRunner: true } : { runner };
  const { ip, token }: Reservation = await call(own.reserve({ ...place, ttl: 3600 }));
  ledger.take(ip, name);
  const validation = await call(other.validate({ token }));
  if (validation.ip !== ip) ledger.violations.push(`the token of ${name} is for ${validation.ip}, not ${ip}`);
  await call(own.use({ token, container: name }));
  const { reservations } = await call(other.reservations({ ip }));
  const users = reservations.map(({ usedBy }) => usedBy).join();
  if (users !== name) ledger.violations.push(`${ip} should be used by ${name}, and is used by '${users}'`);
  if (isKept) return;
  ledger.giveBack(ip); // as soon as this is sent, another job may get it
  const { released } = await call(own.release({ container: name }));
  // After a lost answer the list is empty; another address than its own must never be in it.
  if (released.some((lease) => lease.ip !== ip)) ledger.violations.push(`${name} released ${JSON.stringify(released)}`);
}

async function compareWithService(client: OverlayClient, ledger: Ledger): Promise<string[]> {
  const held: string[] = [];
  for await (const { ip, state } of client.allReservations({ limit: 50 })) held.push(`${ip} ${state}`);
  const expected = ledger.addresses.map((ip) => `${ip} used`).join();
  return held.sort().join() === expected ? [] : [`held: ${held.join()}; expected: ${expected}`];
}

/** Metrics are cached for some seconds. */
const METRICS_CACHE_MS = 5500;

async function compareMetrics(ctl: Ctl, store: string, clients: OverlayClient[]): Promise<string[]> {
  await sleep(METRICS_CACHE_MS);
  const pools = await ctl.must("pool", "list", "--store", store);
  const wanted = pools.map(({ pool, allocated, quarantined }) => `${pool} ${allocated} ${quarantined}`).sort();
  const violations: string[] = [];
  for (const client of clients) {
    const text = await client.metrics();
    const read = (name: string) =>
      new Map(
        Array.from(
          text.matchAll(new RegExp(`^overlay_ipam_pool_${name}\\{.*\\bpool="([^"]+)"\\} (\\S+)$`, "gm")),
          (m) => [m[1], m[2]],
        ),
      );
    const [allocated, quarantined] = [read("allocated"), read("quarantined")];
    const found = [...allocated.keys()].map((pool) => `${pool} ${allocated.get(pool)} ${quarantined.get(pool)}`).sort();
    if (found.join() !== wanted.join()) violations.push(`metrics: ${found.join()}; store: ${wanted.join()}`);
  }
  return violations;
}

async function checkStore(ctl: Ctl, store: string): Promise<string[]> {
  const { code, stdout, stderr } = await ctl.run("store", "check", "--store", store);
  return code === 0 ? [] : [`store check: ${stdout}${stderr}`];
}
