import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Lab } from "../../lab/lab";
import type { ProcessResult, RunOptions } from "../../lab/process";
import { fileBackend, pulumiBinDir } from "../../setup/tools.mjs";

const REPO = join(__dirname, "../..");

export interface Output {
  code: number;
  /** stdout and stderr, in that order. */
  text: string;
}

export interface PlannedStep {
  op: string;
  name: string;
  type: string;
  inputs: Record<string, unknown>;
}

/** A line of the provider's trace: a call, or a conversation with a host. */
export interface TraceEvent {
  at: number;
  pid: number;
  milliseconds?: number;
  /** CPU time of the provider since its start, in milliseconds. */
  cpu?: number;
  call?: string;
  type?: string;
  conversation?: { host: string; works: number; inspections: number; steps: number };
}

/** A folder for stacks that share a backend, a store and a Pulumi home, on one controller of the lab. */
export class Workspace {
  readonly folder = mkdtempSync(join(tmpdir(), "overlay-e2e-"));
  readonly store = `sqlite:${join(this.folder, "pool.db")}`;

  constructor(
    readonly lab: Lab,
    readonly controller?: string,
  ) {
    mkdirSync(join(this.folder, "state"));
  }

  async stack(name: string, options: { project?: string; env?: Record<string, string> } = {}): Promise<Stack> {
    const stack = new Stack(this, name, options.project ?? "e2e", options.env ?? {});
    await stack.init();
    return stack;
  }

  /** A stack of the program in examples/NAME, on these runners of the lab. */
  async example(
    name: string,
    runners: string[],
    options: { stack?: string; env?: Record<string, string>; config?: Record<string, string> } = {},
  ): Promise<Stack> {
    const stack = new Stack(this, options.stack ?? "dev", `overlay-${name.replaceAll("/", "-")}`, options.env ?? {});
    await stack.initExample(name, {
      hub: this.lab.host("hub").address,
      runners: JSON.stringify(Object.fromEntries(runners.map((runner) => [runner, this.lab.host(runner).address]))),
      ...options.config,
    });
    return stack;
  }

  /** On the store that the stacks share. */
  async overlayctl(...args: string[]): Promise<string> {
    const command = [join(REPO, "dist/cli/overlayctl.js"), ...args];
    const env = { ...process.env, OVERLAY_STORE: this.store };
    const { code, stdout, stderr } = await this.run(process.execPath, command, { env });
    if (code !== 0) throw new Error(`overlayctl ${args[0]} ${args[1]} ended with ${code}: ${stderr}`);
    return stdout;
  }

  run(command: string, args: string[], options: RunOptions = {}): Promise<ProcessResult> {
    return this.lab.controller(command, args, { ...options, controller: this.controller });
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** One stack of a JavaScript program, driven through the real `pulumi` in the lab's controller. */
export class Stack {
  readonly folder: string;
  readonly traceFile: string;
  readonly log: string[] = [];
  #seen = 0;

  constructor(
    readonly workspace: Workspace,
    public name: string,
    readonly project: string,
    private readonly extra: Record<string, string>,
  ) {
    this.folder = join(workspace.folder, `${project}-${name}`);
    this.traceFile = join(this.folder, "trace.jsonl");
  }

  get env(): NodeJS.ProcessEnv {
    const { folder, store, lab } = this.workspace;
    return {
      PATH: `${pulumiBinDir()}:${process.env.PATH}`,
      HOME: folder,
      LANG: "C.UTF-8",
      PULUMI_HOME: join(folder, "home"),
      PULUMI_BACKEND_URL: fileBackend(join(folder, "state")),
      PULUMI_CONFIG_PASSPHRASE: "lab",
      PULUMI_SKIP_UPDATE_CHECK: "true",
      PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION: "true",
      OVERLAY_STORE: store,
      OVERLAY_KNOWN_HOSTS: lab.knownHosts,
      OVERLAY_TRACE: this.traceFile,
      ...this.extra,
    };
  }

  async init(): Promise<void> {
    this.#linkPackages();
    writeFileSync(
      join(this.folder, "Pulumi.yaml"),
      `name: ${this.project}\nruntime:\n  name: nodejs\n  options:\n    typescript: false\n`,
    );
    writeFileSync(join(this.folder, "package.json"), "{}");
    await this.must("stack", "init", this.name);
    await this.configure({});
  }

  async initExample(name: string, config: Record<string, string>): Promise<void> {
    cpSync(join(REPO, "examples", name), this.folder, { recursive: true });
    this.#linkPackages();
    await this.must("stack", "init", this.name);
    await this.configure(config);
  }

  /** The lab's key, as a secret, and plain values. */
  async configure(plain: Record<string, string>): Promise<void> {
    const values = Object.entries(plain).flatMap(([key, value]) => ["--plaintext", `${key}=${value}`]);
    const secret = ["--secret", `privateKey=${this.workspace.lab.privateKey}`];
    await this.must("config", "set-all", "--stack", this.name, ...secret, ...values);
  }

  #linkPackages(): void {
    const modules = join(this.folder, "node_modules");
    mkdirSync(join(modules, "@pulumi"), { recursive: true });
    symlinkSync(REPO, join(modules, "pulumi-overlay"));
    symlinkSync(join(REPO, "node_modules/@pulumi/pulumi"), join(modules, "@pulumi/pulumi"));
  }

  /**
   * The program's body; it sees `pulumi`, `overlay` and `at(HOST)`, the connection of a lab host, and may return
   * the stack's outputs.
   */
  program(body: string): void {
    const addresses = Object.fromEntries(this.workspace.lab.hosts.map(({ name, address }) => [name, address]));
    writeFileSync(
      join(this.folder, "index.js"),
      `const pulumi = require("@pulumi/pulumi"), overlay = require("pulumi-overlay");
const privateKey = new pulumi.Config().requireSecret("privateKey");
const hosts = ${JSON.stringify(addresses)};
const at = (host, more = {}) => ({ host: hosts[host] ?? host, user: "root", privateKey, ...more });
module.exports = (() => {\n${body}\n})();\n`,
    );
  }

  async pulumi(...args: string[]): Promise<Output> {
    const options = { cwd: this.folder, env: this.env };
    const { code, stdout, stderr } = await this.workspace.run("pulumi", ["--non-interactive", ...args], options);
    const text = stdout + stderr;
    this.log.push(text);
    return { code: code ?? -1, text };
  }

  async must(...args: string[]): Promise<string> {
    const { code, text } = await this.pulumi(...args);
    if (code !== 0) throw new Error(`pulumi ${args.join(" ")} ended with ${code}:\n${text}`);
    return text;
  }

  up(...args: string[]): Promise<Output> {
    return this.pulumi("up", "--yes", "--skip-preview", "--stack", this.name, "--color", "never", ...args);
  }

  async mustUp(...args: string[]): Promise<string> {
    const { code, text } = await this.up(...args);
    if (code !== 0) throw new Error(`up ended with ${code}:\n${text}`);
    return text;
  }

  /** Whether a text is anywhere in plain: in the state, in output, in traces. */
  async reveals(secret: string): Promise<boolean> {
    const state = await this.must("stack", "export", "--stack", this.name);
    const trace = existsSync(this.traceFile) ? readFileSync(this.traceFile, "utf8") : "";
    return [state, trace, ...this.log].some((text) => text.includes(secret));
  }

  /** What `pulumi preview` shows, as data. */
  async preview(...args: string[]): Promise<PlannedStep[]> {
    const text = await this.must("preview", "--json", "--stack", this.name, ...args);
    const { steps } = JSON.parse(text.slice(text.indexOf("{"), text.lastIndexOf("}") + 1));
    return steps
      .filter((step: { urn: string }) => step.urn.includes("dynamic/overlay"))
      .map((step: { op: string; urn: string; newState?: { inputs: object; type: string } }) => ({
        op: step.op,
        name: step.urn.split("::").at(-1),
        type: step.urn.split(":").at(-3),
        inputs: step.newState?.inputs ?? {},
      }));
  }

  async rename(to: string): Promise<void> {
    await this.must("stack", "rename", to, "--stack", this.name);
    this.name = to;
  }

  async destroy(): Promise<string> {
    return this.must("destroy", "--yes", "--skip-preview", "--stack", this.name, "--color", "never");
  }

  async outputs<T>(): Promise<T> {
    return JSON.parse(await this.must("stack", "output", "--json", "--show-secrets", "--stack", this.name)) as T;
  }

  /** Resources of ours in the state, by name. */
  async state(): Promise<
    Record<string, { id: string; inputs: Record<string, unknown>; outputs: Record<string, unknown> }>
  > {
    const text = await this.must("stack", "export", "--stack", this.name);
    const { deployment } = JSON.parse(text.slice(text.indexOf("{")));
    const ours = (deployment.resources ?? []).filter((r: { type: string }) => r.type.includes("dynamic/overlay"));
    return Object.fromEntries(ours.map((r: { urn: string }) => [r.urn.split("::").at(-1), r]));
  }

  /** The provider's trace since the last call of this. */
  trace(): TraceEvent[] {
    const events = this.peek();
    this.#seen += events.length;
    return events;
  }

  /** The same, but the next call returns it again. */
  peek(): TraceEvent[] {
    if (!existsSync(this.traceFile)) return [];
    const lines = readFileSync(this.traceFile, "utf8").split("\n").filter(Boolean);
    return lines.slice(this.#seen).map((line) => JSON.parse(line) as TraceEvent);
  }

  /** Host address → number of changes made there, for hosts that were contacted. */
  static writes(events: TraceEvent[]): Record<string, number> {
    const sum: Record<string, number> = {};
    for (const { conversation } of events) {
      if (conversation) sum[conversation.host] = (sum[conversation.host] ?? 0) + conversation.steps;
    }
    return sum;
  }

  /** From now on the program loads a later release of the package: other code, the same resources. */
  upgradePackage(): void {
    const target = join(this.folder, "node_modules/pulumi-overlay");
    rmSync(target);
    cpSync(join(REPO, "dist"), join(target, "dist"), { recursive: true });
    symlinkSync(join(REPO, "node_modules"), join(target, "node_modules"));
    const pkg = JSON.parse(readFileSync(join(REPO, "package.json"), "utf8"));
    writeFileSync(join(target, "package.json"), JSON.stringify({ ...pkg, version: "9.9.9" }));
    for (const file of ["sdk/dynamic.js", "sdk/resources.js", "sdk/index.js", "provider/runtime.js"]) {
      const path = join(target, "dist", file);
      writeFileSync(path, `"use strict";\nglobalThis.laterRelease = true;\n${readFileSync(path, "utf8")}`);
    }
  }
}
