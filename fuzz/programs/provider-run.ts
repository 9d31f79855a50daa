import { isDeepStrictEqual } from "node:util";
import { RunPlan } from "../../provider/ipam/run-plan";
import type { Ipam, Store } from "../../provider/ipam/types";
import { readDeclared, readResources } from "../../provider/lifecycle/declared";
import type { Dependencies, EarlierOwner } from "../../provider/lifecycle/dependencies";
import { Lifecycle, PartialFailure } from "../../provider/lifecycle/lifecycle";
import { UNKNOWN } from "../../provider/lifecycle/values";
import { referencesOf } from "../../provider/resource";
import { resourceOf } from "../../provider/resources";
import { type DescribedProgram, describeProgram } from "../../sdk/declared";
import { isKnown } from "../../setup/generate/sdk";
import { type FakeFleet, fakeDependencies } from "../../test/unit/lifecycle/fake-fleet";
import type { EngineAnswer, EngineCall, EngineDeclaration } from "./engine-process";
import { type Arg, isResourceReference, type Program, referencesIn } from "./program";
import { DYNAMIC_TYPE, type Kill, type Values } from "./stack";

/** What the provider works on. */
export interface EngineGround {
  ipam: Store;
  fleet: FakeFleet;
}

export interface RunOptions {
  stack: string;
  program: Program;
  dryRun: boolean;
  /** Seconds. */
  offerTtl: number;
  kill?: Kill | undefined;
}

/** Addresses of the hosts that a lab would have. They exist in the fake fleet only. */
const HOSTS: Record<string, string> = { hub: "192.0.2.1", r1: "192.0.2.11", r2: "192.0.2.12" };

const CHANGES = ["create", "update", "delete"];

/** After how many accesses to the store, from the last change on, the provider is killed: for the milliseconds of `Kill`. */
const ACCESSES: Record<number, number> = { 0: 0, 5: 1, 20: 2, 60: 4, 150: 7 };

const never = new Promise<never>(() => {});

/** What the SDK and the process of the provider do in one run of Pulumi. */
export class ProviderRun {
  readonly warnings = new Set<string>();
  wasKilled = false;
  readonly #lifecycles = new Map<string, Lifecycle>();
  readonly #dependencies: Dependencies;
  readonly #described: DescribedProgram;
  #changes = 0;
  #accesses = 0;
  readonly #killed: Promise<EngineAnswer>;
  #end!: () => void;

  constructor(
    { ipam, fleet }: EngineGround,
    private readonly options: RunOptions,
  ) {
    const { offerTtl, program, kill } = options;
    const session = ipam.session({ offerTtl });
    const plan = new RunPlan(kill ? this.#untilKilled(session, kill) : session, { swapWait: 0.3 });
    this.#dependencies = { ...fakeDependencies(fleet, plan), warn: (text) => this.warnings.add(text) };
    this.#described = describeProgram(
      program.map(({ type, name, aliases = [], args }) => ({ type, names: [name, ...aliases], args })),
    );
    this.#killed = new Promise((resolve) => {
      this.#end = () => {
        this.wasKilled = true;
        resolve({ error: "the provider was killed" });
      };
    });
  }

  declarations(): EngineDeclaration[] {
    const { program } = this.options;
    return program.map(({ type, name, aliases = [], dependsOn = [], component = "", args }) => ({
      type,
      name,
      aliases,
      dependsOn: dependsOn.filter((other) => program.some((each) => each.name === other)),
      component,
      propertyDeps: Object.fromEntries(
        Object.entries(args)
          .map(([key, arg]): [string, string[]] => [key, [...new Set(referencesIn(arg))]])
          .filter(([, names]) => names.length > 0),
      ),
    }));
  }

  async answer({ method, args }: EngineCall): Promise<EngineAnswer> {
    if (method === "inputs") return { value: this.#inputs(String(args.name), args.outputs as Record<string, Values>) };
    const isChange = CHANGES.includes(method);
    const { kill } = this.options;
    if (kill?.milliseconds === 0 && isChange && this.#changes >= kill.afterChanges) this.#end();
    if (this.wasKilled) return this.#killed;
    const answer = await Promise.race([this.#killed, this.#call(method, args)]);
    if (isChange) this.#changes++;
    return answer;
  }

  async #call(method: string, args: Record<string, unknown>): Promise<EngineAnswer> {
    const type = String(args.urn).split("::").at(-2)!.split(DYNAMIC_TYPE).at(-1)!;
    const lifecycle = this.#lifecycles.get(type) ?? new Lifecycle(resourceOf(type), this.#dependencies);
    this.#lifecycles.set(type, lifecycle);
    const [olds, news] = [(args.olds ?? {}) as Values, (args.news ?? {}) as Values];
    try {
      if (method === "check") return { value: await this.#check(lifecycle, olds, news) };
      if (method === "diff") return { value: await lifecycle.diff(olds, news) };
      if (method === "create") return { value: await lifecycle.create(news) };
      if (method === "update") return { value: { props: await lifecycle.update(String(args.id), olds, news) } };
      await lifecycle.delete(olds);
      return {};
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      if (error instanceof PartialFailure) return { error: message, value: { id: error.id, props: error.properties } };
      return { error: message };
    }
  }

  #check(lifecycle: Lifecycle, olds: Values, news: Values) {
    const { owner, declared, program, resources, earlier, ...inputs } = news;
    const caller = {
      owner: String(owner),
      dryRun: this.options.dryRun,
      program: String(program),
      ...(typeof declared === "string" && readDeclared(declared)),
      declares: readResources(String(resources)),
      earlier: earlier as EarlierOwner[],
    };
    return lifecycle.check(caller, olds.owner === undefined ? undefined : olds, inputs);
  }

  /** The properties that the SDK makes of the arguments of a resource. `outputs`: of the resources that it depends on, by name. */
  #inputs(name: string, outputs: Record<string, Values>): Values {
    const { program, stack } = this.options;
    const declared = program.find((each) => each.name === name)!;
    const { type, args } = declared;
    const inputs = this.#resolve(args, outputs) as Values;
    for (const [key, references] of referencesOf(resourceOf(type))) {
      const arg = args[key];
      if (!isResourceReference(arg)) continue;
      const target = program.find((each) => each.name === arg.$resource)!;
      const { passes, fills = {} } = references.find(({ to }) => to === target.type)!;
      const given = this.#resolve(target.args, outputs) as Values;
      const passed = (property: string) =>
        isKnown(resourceOf(target.type), property)
          ? this.#orUnknown(outputs[target.name]?.[property])
          : given[property];
      inputs[key] = Object.fromEntries(passes.map((property) => [property, passed(property)]));
      for (const [input, property] of Object.entries(fills)) inputs[input] ??= given[property];
    }
    const ownerOf = (each: Program[number]) =>
      `fuzz/urn:pulumi:${stack}::fuzz::${each.component ? "fuzz:index:Group$" : ""}overlay:index:${type}::${each.name}`;
    return {
      ...inputs,
      owner: ownerOf(declared),
      earlier: this.#earlierThan(declared).map((each) => ({ owner: ownerOf(each) })),
      ...this.#described,
    };
  }

  /** The resources that the pool serves before this one: see `inOrder` of its definition. */
  #earlierThan(last: Program[number]): Program {
    const { program } = this.options;
    const { inOrder } = resourceOf(last.type);
    if (!inOrder || last.args[inOrder.unless] !== undefined) return [];
    const isServedAlike = ({ type, args }: (typeof program)[number]) =>
      type === last.type &&
      args[inOrder.unless] === undefined &&
      isDeepStrictEqual(args[inOrder.by], last.args[inOrder.by]);
    return program.slice(0, program.indexOf(last)).filter(isServedAlike);
  }

  #resolve(arg: Arg, outputs: Record<string, Values>): unknown {
    if (typeof arg !== "object") return arg;
    if (Array.isArray(arg)) return arg.map((each) => this.#resolve(each, outputs));
    if (isResourceReference(arg)) return arg.output ? this.#orUnknown(outputs[arg.$resource]?.[arg.output]) : arg;
    if ("$host" in arg) return { host: HOSTS[String(arg.$host)], user: "root" };
    return Object.fromEntries(Object.entries(arg).map(([key, each]) => [key, this.#resolve(each as Arg, outputs)]));
  }

  /** In a preview, the SDK calls every output unknown that is not there. */
  #orUnknown(value: unknown): unknown {
    return value === undefined && this.options.dryRun ? UNKNOWN : value;
  }

  /** The pool as the provider sees it: no call ends after the kill. */
  #untilKilled(ipam: Ipam, kill: Kill): Ipam {
    const access = async <T>(act: () => Promise<T>): Promise<T> => {
      const isDue = this.#changes >= kill.afterChanges;
      if (isDue && this.#accesses++ >= ACCESSES[kill.milliseconds]!) this.#end();
      if (this.wasKilled) return never;
      const result = await act();
      return this.wasKilled ? never : result;
    };
    return new Proxy(ipam, {
      get: (target, name) => {
        const member: unknown = Reflect.get(target, name);
        if (typeof member !== "function") return member;
        return (...args: unknown[]) => access(() => member.apply(target, args));
      },
    });
  }
}
