import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Ipam, openIpam, type Store } from "../../../provider/ipam";
import { findSpec } from "../../../provider/ipam/interface";
import { RunPlan } from "../../../provider/ipam/run-plan";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import { resourceOf } from "../../../provider/resources";
import { FakeFleet, fakeDependencies } from "../lifecycle/fake-fleet";

/** Compiled: a process that compiles its own sources takes twice as long to start. */
export const OVERLAYCTL = join(__dirname, "../../../dist/cli/overlayctl.js");

export interface Answer {
  code: number | null;
  stdout: string;
  stderr: string;
  /** The objects of `--json`. */
  json: Record<string, unknown>[];
}

/** The real command line, as a separate process in a folder with a store. */
export class Ctl {
  readonly folder = mkdtempSync(join(tmpdir(), "overlay-ctl-"));
  readonly store = `sqlite:${join(this.folder, "pool.db")}`;

  start(args: string[], env: Record<string, string> = {}) {
    const child = spawn(process.execPath, [OVERLAYCTL, ...args], {
      cwd: this.folder,
      env: { PATH: process.env.PATH, HOME: this.folder, OVERLAY_STORE: this.store, ...env },
      stdio: ["pipe", "pipe", "pipe"],
    });
    let [stdout, stderr] = ["", ""];
    child.stdout.on("data", (data) => (stdout += data));
    child.stderr.on("data", (data) => (stderr += data));
    const ended = new Promise<Answer>((resolve) =>
      child.once("close", (code) => resolve({ code, stdout, stderr, json: objects(stdout) })),
    );
    return { child, ended, soFar: () => stdout };
  }

  run(...args: string[]): Promise<Answer> {
    const { child, ended } = this.start(args);
    child.stdin.end();
    return ended;
  }

  /** With `--json`; it must succeed. */
  async must(...args: string[]): Promise<Record<string, unknown>[]> {
    const { code, json, stdout, stderr } = await this.run(...args, "--json");
    if (code !== 0) throw new Error(`overlayctl ${args.join(" ")} ended with ${code}:\n${stdout}${stderr}`);
    return json;
  }

  /** Exit code and error code, as `1 IP_IN_USE`. */
  async refusal(...args: string[]): Promise<string> {
    const { code, json, stdout } = await this.run(...args, "--json");
    return `${code} ${json.at(-1)?.error ?? stdout}`;
  }

  async withPool<T>(act: (pool: Store) => Promise<T>, store = this.store): Promise<T> {
    const pool = await openIpam(store, { offerTtl: 3600, quarantine: 300 });
    return act(pool).finally(() => pool.end());
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export const objects = (text: string): Record<string, unknown>[] =>
  text
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .flatMap((line) => {
      try {
        return [JSON.parse(line)];
      } catch {
        return [];
      }
    });

export const ownerOf = (type: string, name: string): string =>
  `organization/urn:pulumi:dev::shop::overlay:index:${type}::${name}`;

/** The state that Pulumi would have. */
export interface Deployed {
  network: Values;
  runners: Record<string, Values>;
}

/** The lifecycles of both resources, on a fake fleet. */
export function lifecyclesOn(pool: Ipam): { networks: Lifecycle; runners: Lifecycle } {
  const deps = fakeDependencies(new FakeFleet(), new RunPlan(pool));
  return {
    networks: new Lifecycle(resourceOf("OverlayNetwork"), deps),
    runners: new Lifecycle(resourceOf("RunnerSubnet"), deps),
  };
}

/** Creates a resource as an up does, and returns its state. */
export async function make(lifecycle: Lifecycle, name: string, news: Values): Promise<Values> {
  const caller = { owner: ownerOf(lifecycle.def.type, name), dryRun: false };
  const { inputs, failures } = await lifecycle.check(caller, undefined, news);
  if (failures.length > 0) throw new Error(JSON.stringify(failures));
  return (await lifecycle.create(inputs)).props;
}

/** Creates a network and its runners as an up does. */
export async function deploy(pool: Ipam, names: string[], more: Values = {}): Promise<Deployed> {
  const { networks, runners } = lifecyclesOn(pool);
  const hubConnection = { host: "192.0.2.1" };
  const network = await make(networks, "training", { hubConnection, ...more });
  const settings = ((await findSpec(pool, "network/training"))!.data as unknown as { settings: Values }).settings;
  const made: Record<string, Values> = {};
  for (const [i, name] of names.entries()) {
    made[name] = await make(runners, name, {
      network: settings,
      connection: { host: `192.0.2.${10 + i}` },
      hubConnection,
    });
  }
  return { network, runners: made };
}
