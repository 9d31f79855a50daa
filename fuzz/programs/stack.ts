import { spawn } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import type { Lab } from "../../lab/lab";
import { descendantsOf, end, identityOf } from "../../lab/process";
import { fileBackend, pulumiEnv, root } from "../../setup/tools.mjs";
import type { Program } from "./program";

/** A stack under test: runs the `pulumi` CLI, kills it, and reads its output and state. */

export type Values = Record<string, unknown>;

/** What `pulumi preview` showed, by resource. */
export interface Shown {
  code: number;
  /** Everything it printed. */
  text: string;
  /** Resources that are created or changed, with their planned inputs. */
  planned: Map<string, { op: string; inputs: Values }>;
  /** Resources that are only deleted. */
  deleted: string[];
}

export interface Ended {
  code: number;
  text: string;
  wasKilled: boolean;
}

/** When and what to kill: after so many changes were made by the provider, and so many milliseconds. */
export interface Kill {
  afterChanges: number;
  milliseconds: number;
  target: "cli" | "provider" | "both";
}

/** A resource in Pulumi's state. */
export interface StateEntry {
  inputs: Values;
}

const planSchema = z.object({
  steps: z.array(
    z.object({
      op: z.string(),
      urn: z.string(),
      newState: z.object({ inputs: z.record(z.string(), z.unknown()).optional() }).optional(),
    }),
  ),
});

const stateSchema = z.object({
  checkpoint: z.object({
    latest: z
      .object({
        resources: z
          .array(
            z.object({
              urn: z.string(),
              type: z.string(),
              delete: z.boolean().optional(),
              pendingReplacement: z.boolean().optional(),
              inputs: z.record(z.string(), z.unknown()).optional(),
              outputs: z.record(z.string(), z.unknown()).optional(),
            }),
          )
          .nullish(),
      })
      .nullish(),
  }),
});

const traceSchema = z.object({ pid: z.number(), call: z.string().optional() });

const PROJECT = "fuzz";

/** What the types of our resources begin with. */
export const DYNAMIC_TYPE = "pulumi-nodejs:dynamic/overlay:";

/** One stack of the fixed program, driven through the real `pulumi` on a file backend. */
export class FuzzStack {
  readonly #folder: string;
  readonly #trace: string;
  readonly #env: NodeJS.ProcessEnv;

  constructor(
    private readonly home: string,
    readonly name: string,
    store: string,
    private readonly lab?: Lab,
  ) {
    this.#folder = join(home, name);
    this.#trace = join(this.#folder, "trace.jsonl");
    this.#env = {
      ...pulumiEnv(),
      HOME: home,
      PULUMI_HOME: join(home, "home"),
      PULUMI_BACKEND_URL: fileBackend(join(home, "state")),
      PULUMI_CONFIG_PASSPHRASE: "fuzz",
      PULUMI_SKIP_UPDATE_CHECK: "true",
      PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION: "true",
      OVERLAY_STORE: store,
      OVERLAY_SCOPE: "fuzz",
      OVERLAY_TRACE: this.#trace,
      NODE_OPTIONS: `--require ${JSON.stringify(join(root, "fuzz/programs/fixture/lean.js"))}`,
      FUZZ_PROGRAM: join(this.#folder, "program.json"),
      ...(lab && {
        OVERLAY_KNOWN_HOSTS: lab.knownHosts,
        FUZZ_HOSTS: JSON.stringify(Object.fromEntries(lab.hosts.map(({ name, address }) => [name, address]))),
        FUZZ_KEY: lab.privateKeyPath,
      }),
    };
  }

  async init(): Promise<void> {
    const modules = join(this.#folder, "node_modules");
    mkdirSync(join(modules, "@pulumi"), { recursive: true });
    mkdirSync(join(this.home, "state"), { recursive: true });
    symlinkSync(root, join(modules, "pulumi-overlay"));
    symlinkSync(join(root, "node_modules/@pulumi/pulumi"), join(modules, "@pulumi/pulumi"));
    copyFileSync(join(root, "fuzz/programs/fixture/index.js"), join(this.#folder, "index.js"));
    writeFileSync(
      join(this.#folder, "Pulumi.yaml"),
      `name: ${PROJECT}\nruntime:\n  name: nodejs\n  options:\n    typescript: false\n`,
    );
    writeFileSync(join(this.#folder, "package.json"), "{}");
    const { code, text } = await this.#pulumi(["stack", "init", this.name]);
    if (code !== 0) throw new Error(`pulumi stack init ended with ${code}: ${text}`);
  }

  declare(program: Program): void {
    writeFileSync(join(this.#folder, "program.json"), JSON.stringify(program));
  }

  /** `offerTtl`: in seconds. */
  async preview({ offerTtl }: { offerTtl?: number } = {}): Promise<Shown> {
    const env = offerTtl === undefined ? {} : { OVERLAY_OFFER_TTL: String(offerTtl) };
    const { code, text } = await this.#pulumi(["preview", "--json"], false, env);
    const { steps } = code === 0 ? planSchema.parse(jsonIn(text)) : { steps: [] };
    const ours = steps.filter(({ urn }) => urn.includes(DYNAMIC_TYPE));
    return { code, text, ...planOf(ours.map(({ newState, ...step }) => ({ ...step, inputs: newState?.inputs }))) };
  }

  up(kill?: Kill): Promise<Ended> {
    return this.#pulumi(["up", "--yes", "--skip-preview", "--color", "never"], kill ?? false);
  }

  destroy(kill?: Kill): Promise<Ended> {
    return this.#pulumi(["destroy", "--yes", "--skip-preview", "--color", "never"], kill ?? false);
  }

  async pass(milliseconds: number): Promise<void> {
    await sleep(milliseconds);
  }

  /** Removes the lock that a killed CLI has left. Without a lock it fails, which does no harm. */
  async cancel(): Promise<void> {
    await this.#pulumi(["cancel", "--yes"]);
  }

  /** Resources of ours, by name. */
  state(): Map<string, StateEntry> {
    return stateOf(this.#resources());
  }

  /** Of all resources of ours, also of those that are yet to be deleted. */
  leaseIds(): string[] {
    return this.#resources().map(({ outputs }) => String(outputs?.leaseId));
  }

  #resources() {
    const file = join(this.home, "state/.pulumi/stacks", PROJECT, `${this.name}.json`);
    if (!existsSync(file)) return [];
    const { checkpoint } = stateSchema.parse(JSON.parse(readFileSync(file, "utf8")));
    const resources = checkpoint.latest?.resources ?? [];
    // `pendingReplacement`: it was deleted, and a failed up has not created it again.
    return resources.filter(({ urn, pendingReplacement }) => urn.includes(DYNAMIC_TYPE) && !pendingReplacement);
  }

  /** `kill` false: nothing is killed, and Pulumi need not write its state after every resource. */
  async #pulumi(args: string[], kill: Kill | false = false, env: NodeJS.ProcessEnv = {}): Promise<Ended> {
    const fast = kill ? {} : { PULUMI_EXPERIMENTAL: "true", PULUMI_SKIP_CHECKPOINTS: "true" };
    const named = args[0] === "stack" ? args : [...args, "--stack", this.name];
    const argv = ["pulumi", "--non-interactive", ...named];
    const [command, ...rest] = this.lab ? this.lab.controllerCommand(argv, this.#folder) : argv;
    const seen = this.#traceLines().length;
    const child = spawn(command!, rest, {
      cwd: this.#folder,
      env: { ...this.#env, ...fast, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let text = "";
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding("utf8").on("data", (part: string) => {
        text += part;
      });
    const ended = new Promise<number>((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code) => resolve(code ?? 255));
    });
    let isRunning = true;
    const finished = ended.finally(() => {
      isRunning = false;
    });
    const wasKilled = kill ? await this.#kill(child.pid!, kill, seen, () => isRunning) : false;
    return { code: await finished, text, wasKilled };
  }

  async #kill(cli: number, kill: Kill, seen: number, isRunning: () => boolean): Promise<boolean> {
    const changes = () =>
      this.#traceLines()
        .slice(seen)
        .map((line) => traceSchema.parse(JSON.parse(line)))
        .filter(({ call }) => call !== undefined && ["create", "update", "delete"].includes(call));
    const isDue = () => this.#traceLines().length > seen && changes().length >= kill.afterChanges;
    while (isRunning() && !isDue()) await sleep(5);
    await sleep(kill.milliseconds);
    if (!isRunning()) return false;
    const self = identityOf(cli);
    const processes = self ? [self, ...descendantsOf(cli)] : [];
    const providers = new Set(this.#providers(seen));
    const targets = processes.filter(({ pid }) =>
      kill.target === "both" ? true : kill.target === "cli" ? pid === cli : providers.has(pid),
    );
    await end(targets);
    // A provider whose CLI is gone exits by itself.
    for (const deadline = Date.now() + 5000; Date.now() < deadline && kill.target === "cli"; await sleep(20))
      if (processes.every(({ pid, start }) => identityOf(pid)?.start !== start)) break;
    if (kill.target === "cli") await end(processes);
    return targets.length > 0;
  }

  #providers(seen: number): number[] {
    return this.#traceLines()
      .slice(seen)
      .map((line) => traceSchema.parse(JSON.parse(line)).pid);
  }

  /** Whole lines only: the last one may be half written. */
  #traceLines(): string[] {
    if (!existsSync(this.#trace)) return [];
    return readFileSync(this.#trace, "utf8").split("\n").slice(0, -1);
  }
}

/** Warnings may be printed before and after it. */
const jsonIn = (text: string): unknown => JSON.parse(text.slice(text.indexOf("{"), text.lastIndexOf("\n}") + 2));

/** What the steps of a preview plan for our resources. */
export function planOf(
  steps: { op: string; urn: string; inputs?: Values | undefined }[],
): Pick<Shown, "planned" | "deleted"> {
  const planned: Shown["planned"] = new Map();
  const deleted = new Set<string>();
  for (const { op, urn, inputs } of steps) {
    if (op === "delete") deleted.add(nameIn(urn));
    else if (inputs && !op.startsWith("delete")) planned.set(nameIn(urn), { op, inputs: comparable(inputs) });
  }
  return { planned, deleted: [...deleted].filter((name) => !planned.has(name)) };
}

/** Our resources in a state, by name, without those that are yet to be deleted. */
export const stateOf = (
  resources: { urn: string; delete?: boolean | undefined; inputs?: Values | undefined }[],
): Map<string, StateEntry> =>
  new Map(
    resources
      .filter((each) => !each.delete)
      .map(({ urn, inputs = {} }) => [nameIn(urn), { inputs: comparable(inputs) }]),
  );

const nameIn = (urn: string): string => urn.split("::").at(-1)!;

/** Properties that are not values of the resource, or are encrypted differently each time. */
const NOT_COMPARED = new Set([
  "__provider",
  "dryRun",
  "secretInputs",
  "declared",
  "pool",
  "parent",
  "network",
  "runner",
  "attach",
  "connection",
  "hubConnection",
  "hosts",
]);

const comparable = (inputs: Values): Values =>
  Object.fromEntries(Object.entries(inputs).filter(([key]) => !NOT_COMPARED.has(key)));
