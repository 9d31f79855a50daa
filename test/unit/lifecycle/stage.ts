import { expect } from "vitest";
import { openIpam, type Store } from "../../../provider/ipam";
import { RunPlan } from "../../../provider/ipam/run-plan";
import { readDeclared } from "../../../provider/lifecycle/declared";
import type { Dependencies } from "../../../provider/lifecycle/dependencies";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import { resourceOf } from "../../../provider/resources";
import type { DescribedProgram } from "../../../sdk/declared";
import { FakeFleet, fakeDependencies } from "./fake-fleet";

export const ownerOf = (type: string, name: string, stack = "dev"): string =>
  `org/urn:pulumi:${stack}::p::overlay:index:${type}::${name}`;

/** A run whose store can be administered. */
export class RunOnStore extends RunPlan {
  constructor(
    override readonly ipam: Store,
    settings?: ConstructorParameters<typeof RunPlan>[1],
  ) {
    super(ipam, settings);
  }
}

/** A stack whose resources are called as Pulumi calls them, on a fake fleet and with a clock of its own. */
export class Stage {
  readonly fleet = new FakeFleet();
  readonly warnings: string[] = [];
  now = Date.UTC(2030, 0, 1);
  /** See `Request`. */
  program: string | undefined = "main";
  /** Whether the program declares an owner. */
  declares: ((owner: string) => boolean) | undefined;
  /** Runners in the order of the program. */
  order: string[] = [];
  /** What the SDK passes about the program. */
  described: DescribedProgram | undefined;
  deps!: Dependencies;
  #pool!: RunOnStore;
  /** Another run of Pulumi, which has a process of its own. */
  newRun!: () => void;

  static async up({
    store = "memory:",
    ...more
  }: {
    store?: string;
    quarantine?: number;
    tokenKeys?: string;
  } = {}): Promise<Stage> {
    const stage = new Stage();
    // A file is also opened by other processes, which use this machine's clock.
    const clock = store === "memory:" ? { clock: () => stage.now } : {};
    const settings = { offerTtl: 3600, quarantine: 300, ...clock, ...more };
    const opened = await openIpam(store, settings);
    stage.newRun = () => {
      stage.#pool = new RunOnStore(opened.session({ actor: "ops@controller" }), { swapWait: 0.3 });
    };
    stage.newRun();
    stage.deps = {
      ...fakeDependencies(stage.fleet, stage.#pool),
      pool: async () => stage.#pool,
      warn: (text) => stage.warnings.push(text),
    };
    return stage;
  }

  get pool(): RunOnStore {
    return this.#pool;
  }

  /** Seconds. */
  pass(seconds: number): void {
    this.now += seconds * 1000;
  }

  of = (type: string): Lifecycle => new Lifecycle(resourceOf(type), this.deps);

  async check(type: string, name: string, news: Values, olds?: Values, dryRun = false) {
    const { program = this.program, declared } = this.described ?? {};
    const requested = declared === undefined ? {} : readDeclared(declared);
    const before = this.order.slice(0, Math.max(0, this.order.indexOf(name)));
    const earlier = before.map((each) => ({ owner: ownerOf(type, each) }));
    const caller = { owner: ownerOf(type, name), dryRun, program, earlier, declares: this.declares, ...requested };
    return this.of(type).check(caller, olds, news);
  }

  /** The values that preview shows. */
  async preview(type: string, name: string, news: Values, olds?: Values): Promise<Values> {
    const { inputs, failures } = await this.check(type, name, news, olds, true);
    expect(failures).toEqual([]);
    return inputs;
  }

  /** The error of preview, or an empty text. */
  async refusal(type: string, name: string, news: Values, olds?: Values): Promise<string> {
    const { failures } = await this.check(type, name, news, olds, true);
    return failures.map(({ reason }) => reason).join("\n");
  }

  async make(type: string, name: string, news: Values, olds?: Values): Promise<Values> {
    const { inputs, failures } = await this.check(type, name, news, olds);
    expect(failures).toEqual([]);
    return (await this.of(type).create(inputs)).props;
  }

  async change(type: string, name: string, olds: Values, news: Values): Promise<Values> {
    const { inputs, failures } = await this.check(type, name, news, olds);
    expect(failures).toEqual([]);
    expect(await this.of(type).diff(olds, inputs)).toMatchObject({ changes: true, replaces: [] });
    return this.of(type).update("id", olds, inputs);
  }

  async network(name = "training", more: Values = {}): Promise<Values> {
    return this.make("OverlayNetwork", name, { hubConnection: { host: "192.0.2.1" }, ...more });
  }

  async runner(name: string, host: string, more: Values = {}): Promise<Values> {
    const hubConnection = { host: "192.0.2.1" };
    return this.make("RunnerSubnet", name, { network: "training", connection: { host }, hubConnection, ...more });
  }
}

/** The inputs of a resource in this pool. */
export const inPool = ({ poolName, addressSpace, type, ranges, tenant }: Values, more: Values = {}): Values => ({
  pool: { poolName, addressSpace, type, ranges, ...(tenant ? { tenant } : {}) },
  ...more,
});
