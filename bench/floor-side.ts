import type { CommandResult, Connection, Host, Hosts } from "../provider/host/connection";
import { createFleet, type Fleet } from "../provider/host/fleet";
import { Reconciler } from "../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../provider/host/reconcile/requests";
import { openHosts } from "../provider/host/ssh/hosts";
import { openIpam } from "../provider/ipam";
import { findSpec } from "../provider/ipam/interface";
import { RunPlan } from "../provider/ipam/run-plan";
import type { Dependencies } from "../provider/lifecycle/dependencies";
import { Lifecycle } from "../provider/lifecycle/lifecycle";
import type { Values } from "../provider/lifecycle/values";
import { LOCK_HOLDER_FILE } from "../provider/network/render/shell";
import { resourceOf } from "../provider/resources";
import { fakeDependencies } from "../test/unit/lifecycle/fake-fleet";
import { type Floors, measureTime, type Spent } from "./measure";
import type { Path } from "./networks";

/**
 * The part of `bench up` that runs in the lab's controller, on hosts without a network, and leaves them so. The floor is one plain SSH
 * connection to each host, all at once, which runs one script: all that the provider sends to this host for all resources, each part once.
 * Beside it, creates and refreshes of the same resources in this one process, without Pulumi.
 */
interface Options {
  path: Path;
  /** The hub first. */
  hosts: string[];
  key: string;
  knownHosts: string;
  rounds: number;
}

async function main(options: Options): Promise<void> {
  const bench = new FloorBench(options);
  await bench.prepare();
  await bench.clean();
  const rounds: Floors[] = [];
  for (let i = 0; i < options.rounds; i++) {
    await bench.restoreKeys();
    const connected = await bench.runOnAll();
    const created = await bench.runOnAll("questions", "create");
    const refreshed = await bench.runOnAll("refresh");
    await bench.clean();
    rounds.push({ connected, created, refreshed, withoutPulumi: await bench.measureWithoutPulumi() });
  }
  process.stdout.write(`${JSON.stringify(rounds)}\n`);
}

const FOLDER = "/var/lib/overlay/bench";
const KEYS = `${FOLDER}/*.key`;
const KEPT = "/run/bench-keys";

/** Scripts that the provider sends to the hosts: what it asks, what an up does in one conversation, and what a refresh does. */
type Phase = "questions" | "create" | "refresh";

class FloorBench {
  /** Host → the last request of each resource for it, by uid. */
  readonly #requests = new Map<string, Map<string, ApplyRequest>>();
  /** Phase and host → scripts, without copies. */
  readonly #scripts = new Map<string, Set<string>>();

  constructor(private readonly options: Options) {}

  /** Finds all scripts. Afterwards the hosts have the network. */
  async prepare(): Promise<void> {
    const seen = { differences: [], foreign: [], neighbours: [], containers: [], tunnels: [], peerMoves: false };
    const everyId = this.options.hosts.map((_, id) => id).join("\n"); // in a mesh, direct routes to all
    const made = await this.#withFleet("questions", (fleet) =>
      createAll(this.options, {
        ...fleet,
        check: async () => seen,
        apply: async ({ host }, request) => {
          const requests = this.#requests.get(host) ?? new Map();
          this.#requests.set(host, requests.set(request.record.uid, request));
          return seen;
        },
        run: async () => ({ code: 0, stdout: everyId, stderr: "" }),
      }),
    );
    await this.#onAll("create", (host, requests) => applyAll(host, requests));
    await this.#withFleet("refresh", (fleet) => readAll(fleet, made));
    await this.#runOnAll(`mkdir -p ${KEPT} && cp ${KEYS} ${KEPT} 2>/dev/null || :`);
  }

  /** The scripts have the public keys, so all rounds need the same ones. */
  restoreKeys = (): Promise<void> => this.#runOnAll(`mkdir -p ${FOLDER} && cp ${KEPT}/* ${FOLDER} 2>/dev/null || :`);

  #runOnAll = (script: string): Promise<void> => this.#onAll(undefined, (host) => host.exec(script));

  clean = (): Promise<void> =>
    this.#onAll(undefined, (host, requests) =>
      applyAll(
        host,
        requests.map((each) => ({ ...each, items: [] })),
      ),
    );

  /** The milliseconds of all scripts of these phases, on new connections. */
  runOnAll = (...phases: Phase[]): Promise<number> =>
    measureTime(() =>
      this.#onAll(undefined, async (host) => {
        const scripts = phases.flatMap((phase) => [...(this.#scripts.get(`${phase} ${host.name}`) ?? [])]);
        const { code, stderr } = await host.exec(scripts.map((script) => `(\n${script}\n) || exit 1`).join("\n"));
        if (code !== 0) throw new Error(`${host.name}: ${stderr}`);
      }),
    );

  async measureWithoutPulumi(): Promise<Floors["withoutPulumi"]> {
    return this.#withFleet(undefined, async (fleet) => {
      let made: Made[] = [];
      const created = await measureSpent(async () => {
        made = await createAll(this.options, fleet);
      });
      const refreshed = await this.#withFleet(undefined, (later) => measureSpent(() => readAll(later, made)));
      const [network, ...runners] = made;
      await Promise.all(runners.map(remove));
      await remove(network!);
      return { created, refreshed };
    });
  }

  async #withFleet<T>(phase: Phase | undefined, act: (fleet: Fleet) => Promise<T>): Promise<T> {
    const hosts = this.#open(phase);
    return act(createFleet(hosts, new Reconciler(), {})).finally(() => hosts.end());
  }

  async #onAll(phase: Phase | undefined, act: (host: Host, requests: ApplyRequest[]) => Promise<unknown>) {
    const hosts = this.#open(phase);
    const work = [...this.#requests].map(async ([address, requests]) =>
      act(await hosts.connect(connectionTo(this.options, address)), [...requests.values()]),
    );
    await Promise.all(work).finally(() => hosts.end());
  }

  /** Hosts over SSH. Their scripts are recorded for this phase. */
  #open(phase: Phase | undefined): Hosts {
    const { knownHosts } = this.options;
    const settings = { connectTimeout: 60, operationTimeout: 120, parallelHosts: 16, knownHosts: [knownHosts] };
    const hosts = openHosts(settings);
    if (!phase) return hosts;
    return {
      connect: async (connection, fallbacks) => {
        const host = await hosts.connect(connection, fallbacks);
        const key = `${phase} ${host.name}`;
        const scripts = this.#scripts.get(key) ?? new Set();
        this.#scripts.set(key, scripts);
        const recorded =
          (run: (script: string, step?: string) => Promise<CommandResult>) => (script: string, step?: string) => {
            if (!script.includes(LOCK_HOLDER_FILE)) scripts.add(script); // asked only while it waits for the lock
            return run(script, step);
          };
        return {
          name: host.name,
          id: host.id,
          exec: recorded((script, step) => host.exec(script, step)),
          withLock: (holder, work) =>
            host.withLock(holder, (shell) => work({ run: recorded((script, step) => shell.run(script, step)) })),
        };
      },
      end: () => hosts.end(),
    };
  }
}

const connectionTo = ({ key }: Options, host: string): Connection => ({ host, user: "root", privateKeyPath: key });

async function applyAll(host: Host, requests: ApplyRequest[]): Promise<void> {
  const reconciler = new Reconciler();
  await Promise.all(requests.map((request) => reconciler.apply(host, request)));
}

interface Made {
  type: string;
  deps: Dependencies;
  id: string;
  props: Values;
}

/** A network on the first host, and then a runner on each of the others at the same time. */
async function createAll(options: Options, fleet: Fleet): Promise<Made[]> {
  const pool = await openIpam("memory:", { offerTtl: 3600, quarantine: 0 });
  const deps = fakeDependencies(fleet, new RunPlan(pool));
  const create = async (type: string, name: string, news: Values): Promise<Made> => {
    const lifecycle = new Lifecycle(resourceOf(type), deps);
    const owner = `bench/urn:pulumi:bench::bench::overlay:index:${type}::${name}`;
    const { inputs, failures } = await lifecycle.check({ owner, dryRun: false }, undefined, news);
    if (failures.length > 0) throw new Error(JSON.stringify(failures));
    return { type, deps, ...(await lifecycle.create(inputs)) };
  };
  const [hub, ...runners] = options.hosts.map((host) => connectionTo(options, host));
  const network = await create("OverlayNetwork", "bench", { hubConnection: hub, ...options.path });
  const { settings } = (await findSpec(pool, "network/bench"))!.data as { settings: Values };
  const made = runners.map((connection, i) =>
    create("RunnerSubnet", `r${i + 1}`, { network: settings, connection, hubConnection: hub }),
  );
  return [network, ...(await Promise.all(made))];
}

async function readAll(fleet: Fleet, made: Made[]): Promise<void> {
  const read = made.map(async ({ type, deps, id, props }) => {
    const { drift } = (await new Lifecycle(resourceOf(type), { ...deps, fleet }).read(id, props)).props;
    if ((drift as string[]).length > 0) throw new Error(`${id}: ${drift}`);
  });
  await Promise.all(read);
}

const remove = ({ type, deps, props }: Made): Promise<void> => new Lifecycle(resourceOf(type), deps).delete(props);

async function measureSpent(act: () => Promise<void>): Promise<Spent> {
  const before = process.cpuUsage();
  const wall = await measureTime(act);
  const { user, system } = process.cpuUsage(before);
  return { wall, node: Math.round((user + system) / 1000) };
}

void main(JSON.parse(process.argv[2]!) as Options);
