import type { Lab } from "../../lab/lab";
import { OverlayError } from "../../provider/errors";
import { type Host, type Hosts, hostId } from "../../provider/host/connection";
import { createFleet, type Fleet } from "../../provider/host/fleet";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ConversationReport } from "../../provider/host/reconcile/requests";
import { openIpam } from "../../provider/ipam";
import { findSpec } from "../../provider/ipam/interface";
import { RunPlan } from "../../provider/ipam/run-plan";
import type { Store } from "../../provider/ipam/types";
import type { Dependencies } from "../../provider/lifecycle/dependencies";
import { Lifecycle, PartialFailure } from "../../provider/lifecycle/lifecycle";
import type { Values } from "../../provider/lifecycle/values";
import { resourceOf } from "../../provider/resources";
import { kohakuRiverNames } from "../../sdk/kohakuriver";
import { fakeDependencies } from "../unit/lifecycle/fake-fleet";

/** A lab host without SSH, which has its own tests: the same scripts are run by the same shell. */
export function labHost(lab: Lab, name: string, login = ""): Host {
  const exec: Host["exec"] = async (script) => {
    const { code, stdout, stderr } = await lab.exec(name, "exec sh -s", { input: login + script });
    return { code: code ?? -1, stdout, stderr };
  };
  return { name, id: name, exec, withLock: (_, work) => work({ run: exec }) };
}

/** All hosts of a lab by their addresses, with `SSH_CONNECTION` set. */
export function labHosts(lab: Lab, unreachable = new Set<string>(), elsewhere?: Hosts): Hosts {
  return {
    async connect(connection) {
      if (unreachable.has(connection.host))
        throw new OverlayError("SSH_UNREACHABLE", `${connection.host} does not answer.`, "Start it.");
      const found = lab.hosts.find(({ address }) => address === connection.host);
      if (!found && elsewhere) return elsewhere.connect(connection);
      const { name, address } = found!;
      const login = `export SSH_CONNECTION='${lab.controllerAddress} 1 ${address} 22'\n`;
      return { ...labHost(lab, name, login), name: connection.host, id: hostId(connection) };
    },
    end: async () => {},
  };
}

const ownerOf = (type: string, name: string): string => `lab/urn:pulumi:dev::lab::overlay:index:${type}::${name}`;

/** Lifecycle, pool and reconciler on hosts of a lab, as an up calls them. */
export class LabStack {
  readonly reports: ConversationReport[] = [];
  readonly warnings: string[] = [];
  /** Addresses at which no host answers. */
  readonly unreachable = new Set<string>();
  readonly deps: Dependencies;
  readonly #live = new Map<string, { type: string; id: string; props: Values }>();

  /** `elsewhere`: for hosts that are not the lab's. `hosts`: all hosts, instead of the lab's without SSH. */
  static async on(lab: Lab, store = "memory:", elsewhere?: Hosts, hosts?: Hosts): Promise<LabStack> {
    return new LabStack(lab, await openIpam(store, { offerTtl: 3600, quarantine: 0 }), elsewhere, hosts);
  }

  private constructor(
    readonly lab: Lab,
    readonly pool: Store,
    private readonly elsewhere?: Hosts,
    private readonly hosts?: Hosts,
  ) {
    this.deps = fakeDependencies(this.#openFleet(), new RunPlan(pool));
  }

  /** A run asks each host once: what has changed on a host since is seen by the next run. */
  nextRun(): void {
    this.deps.fleet = this.#openFleet();
  }

  #openFleet(): Fleet {
    const reconciler = new Reconciler((report) => this.reports.push(report), {
      warn: (text) => this.warnings.push(text),
    });
    const hosts = this.hosts ?? labHosts(this.lab, this.unreachable, this.elsewhere);
    return createFleet(hosts, reconciler, { privateKeyPath: this.lab.privateKeyPath });
  }

  at(host: string): { host: string } {
    return { host: this.lab.host(host).address };
  }

  network(inputs: Values = {}, hub = "hub"): Promise<Values> {
    return this.put("OverlayNetwork", "training", { hubConnection: this.at(hub), ...kohakuRiverNames, ...inputs });
  }

  /** Of the network as it is now, on the host of its name. */
  async runner(name: string, inputs: Values = {}, hub = "hub", network = "training"): Promise<Values> {
    const settings = await this.#settingsOf(network);
    const connection = inputs.connection ?? this.at(name);
    const connections = { connection, hubConnection: this.at(hub) };
    return this.put("RunnerSubnet", name, { network: settings, ...connections, ...inputs });
  }

  async #settingsOf(network: string): Promise<Values> {
    const { data } = (await findSpec(this.pool, `network/${network}`))!;
    return (data as unknown as { settings: Values }).settings;
  }

  /** The checked inputs of a runner, as in a preview. */
  async checked(name: string, network = "training", host = name): Promise<{ inputs: Values }> {
    const settings = await this.#settingsOf(network);
    const news = { network: settings, connection: this.at(host), hubConnection: this.at("hub") };
    const lifecycle = new Lifecycle(resourceOf("RunnerSubnet"), this.deps);
    return lifecycle.check({ owner: ownerOf("RunnerSubnet", name), dryRun: true }, undefined, news);
  }

  /** create or update, as Pulumi would call them. */
  async put(type: string, name: string, news: Values): Promise<Values> {
    const lifecycle = new Lifecycle(resourceOf(type), this.deps);
    const live = this.#live.get(`${type} ${name}`);
    const owner = ownerOf(type, name);
    const { inputs, failures } = await lifecycle.check({ owner, dryRun: false }, live?.props, news);
    if (failures.length > 0) throw new Error(failures.map(({ reason }) => reason).join("; "));
    const making = live
      ? lifecycle.update(live.id, live.props, inputs).then((props) => ({ id: live.id, props }))
      : lifecycle.create(inputs);
    const made = await making.catch((error: unknown) => {
      // Pulumi keeps the state of a resource whose create failed after its claim.
      if (error instanceof PartialFailure)
        this.#live.set(`${type} ${name}`, { type, id: error.id, props: error.properties });
      throw error;
    });
    this.#live.set(`${type} ${name}`, { type, ...made });
    return made.props;
  }

  /** `--refresh`: drift is in the state from now on, and the next put repairs it. */
  async refresh(): Promise<void> {
    for (const live of this.#live.values()) {
      const { props } = await new Lifecycle(resourceOf(live.type), this.deps).read(live.id, live.props);
      live.props = props;
    }
  }

  /** Whether the next up would change it although its inputs are the same. */
  async diff(type: string, name: string): Promise<boolean> {
    const { props } = this.#live.get(`${type} ${name}`)!;
    return (await new Lifecycle(resourceOf(type), this.deps).diff(props, props)).changes;
  }

  async drift(type: string, name: string): Promise<unknown> {
    const { id, props } = this.#live.get(`${type} ${name}`)!;
    return (await new Lifecycle(resourceOf(type), this.deps).read(id, props)).props.drift;
  }

  /** In the form of `pulumi stack export --show-secrets`. */
  exported(): string {
    const secret = (value: unknown) => ({
      "4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270",
      plaintext: JSON.stringify(value),
    });
    const resources = [...this.#live].map(
      ([
        key,
        {
          type,
          props: { connection, hubConnection, ...props },
        },
      ]) => ({
        urn: `urn:pulumi:dev::lab::overlay:index:${type}::${key.split(" ")[1]}`,
        type: `overlay:index:${type}`,
        outputs: {
          ...props,
          ...(connection !== undefined && { connection: secret(connection) }),
          hubConnection: secret(hubConnection),
        },
      }),
    );
    return JSON.stringify({ version: 3, deployment: { resources } });
  }

  props(type: string, name: string): Values {
    return this.#live.get(`${type} ${name}`)!.props;
  }

  async remove(type: string, name: string): Promise<void> {
    const key = `${type} ${name}`;
    await new Lifecycle(resourceOf(type), this.deps).delete(this.props(type, name));
    this.#live.delete(key);
  }

  /** In reverse order of their dependencies, as Pulumi does. */
  async destroy(): Promise<void> {
    for (const [key, { type, props }] of [...this.#live].reverse()) {
      await new Lifecycle(resourceOf(type), this.deps).delete(props);
      this.#live.delete(key);
    }
  }

  /** How many changes were made, by host, since the last call of this. */
  steps(): Record<string, number> {
    const sum: Record<string, number> = {};
    for (const { host, steps } of this.reports.splice(0)) {
      const { name } = this.lab.hosts.find(({ address }) => address === host)!;
      sum[name] = (sum[name] ?? 0) + steps;
    }
    return sum;
  }
}

/** Runs a script on a host, and returns what it prints, without white space around it. Throws if the script fails. */
export async function must(lab: Lab, host: string, script: string): Promise<string> {
  const { code, stdout, stderr } = await lab.exec(host, `set -e\n${script}`);
  if (code !== 0) throw new Error(`${host}: ${stderr}`);
  return stdout.trim();
}
