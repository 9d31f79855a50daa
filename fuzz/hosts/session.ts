import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "../../lab/lab";
import { isOverlayError } from "../../provider/errors";
import { openHosts } from "../../provider/host/ssh/hosts";
import { LabStack, must } from "../../test/lab/lab-stack";
import type { Random } from "../random";
import { CHANGES, FAULTS } from "./changes";
import { FORWARDED, OTHER_OBJECTS, observe, SHOW_OTHER_OBJECTS, startWorkloads } from "./observe";

/** A network with two runners and a forward on lab hosts, over SSH; rounds of changes, faults and ups. */

/** Inputs of the network. */
export const NETWORKS = [
  { tunnel: "vxlan", topology: "hub" },
  { tunnel: "wireguard", topology: "hub" },
  { tunnel: "wireguard", topology: "mesh" },
] as const;

type Network = (typeof NETWORKS)[number];

const HOSTS = ["hub", "r1", "r2"] as const;
type HostName = (typeof HOSTS)[number];

const RESOURCES = [
  ["OverlayNetwork", "training"],
  ["RunnerSubnet", "r1"],
  ["RunnerSubnet", "r2"],
  ["StaticIP", "web"],
] as const;

export class Finding extends Error {}

interface Done {
  host: HostName;
  command: string;
  undo?: string;
}

export class HostSession {
  /** What was done in this round, to reproduce a finding. */
  readonly log: string[] = [];
  #done: Done[] = [];
  #others = "";

  private constructor(
    readonly lab: Lab,
    readonly stack: LabStack,
    readonly network: Network,
    private readonly end: () => Promise<void>,
  ) {}

  static async start(lab: Lab, network: Network): Promise<HostSession> {
    const hosts = openHosts(
      { connectTimeout: 3, operationTimeout: 30, parallelHosts: 16, knownHosts: [lab.knownHosts] },
      { keepalive: 1 },
    );
    const stack = await LabStack.on(lab, "memory:", undefined, hosts);
    const session = new HostSession(lab, stack, network, () => hosts.end());
    for (const host of HOSTS)
      for (const script of OTHER_OBJECTS) await must(lab, host, script.replaceAll("$LOCAL", lab.host(host).address));
    await session.#up();
    await startWorkloads(lab);
    session.#others = await session.#showOthers();
    const broken = await observe(lab);
    if (broken.length > 0) throw new Error(`a new network: ${broken.join(", ")}`);
    return session;
  }

  stop = (): Promise<void> => this.end();

  async round(random: Random): Promise<void> {
    this.log.length = 0;
    this.#done = [];
    for (let i = random.integer(1, 3); i > 0; i--) await this.#change(random);
    if (random.chance(0.3)) await this.#disturbedUp(random);
    if (random.chance(0.2)) await this.#change(random);
    await this.#requireNamed();
    await this.#repair();
    if ((await this.#showOthers()) !== this.#others) throw new Finding("objects of another program have changed");
  }

  async #change(random: Random): Promise<void> {
    const { on, command, undo } = random.pick(
      CHANGES.filter(({ tunnel = this.network.tunnel }) => tunnel === this.network.tunnel),
    )!;
    const host: HostName = on === "hub" || (on === "any" && random.chance(0.4)) ? "hub" : random.pickOne(["r1", "r2"]);
    const fill = this.#fillFor(host, random);
    const { code } = await this.lab.exec(host, fill(command));
    this.log.push(`${host}: ${fill(command)}${code === 0 ? "" : `   # exit code ${code}`}`);
    if (code === 0 && undo) this.#done.push({ host, command: fill(command), undo: fill(undo) });
  }

  #fillFor(host: HostName, random: Random): (text: string) => string {
    const number = host === "hub" ? random.integer(1, 2) : Number(host.slice(1));
    const { tunnel, topology } = this.network;
    const isDirect = topology === "mesh" && host !== "hub" && random.chance(0.5);
    const [device, port] =
      tunnel === "vxlan" ? [`vxkr${number}`, 4789] : isDirect ? ["vxkrM0", 51822] : ["vxkrW0", 51820];
    const peer = isDirect ? `r${3 - number}` : host === "hub" ? `r${number}` : "hub";
    const values: Record<string, string> = {
      GATEWAY: `10.128.${64 * number}.1`,
      HUBEND: `10.128.${64 * number + 63}.254`.replace(/\.\d+\.254$/, `.${64 * number}.254`),
      PEER: this.lab.host(peer).address,
      PORT: String(port),
      KEY: `$(wg show ${device} peers | head -n 1)`,
      LOCAL: this.lab.host(host).address,
      T: device,
      N: String(number),
      B: "kohaku-overlay",
    };
    return (text) => Object.entries(values).reduce((all, [name, value]) => all.replaceAll(`$${name}`, value), text);
  }

  /** An up with a real change, while a tool fails, a lock is held, or packets, sessions and processes are stopped. */
  async #disturbedUp(random: Random): Promise<void> {
    const fault = random.pick(FAULTS)!;
    const host = random.pickOne(HOSTS);
    const mtu = random.pickOne([1400, 1450]);
    const [before, during] = [random.integer(0, 400), random.integer(500, 4000)];
    this.log.push(`up with mtu ${mtu}; after ${before} ms, for ${during} ms on ${host}: ${fault.begin}`);
    this.stack.nextRun();
    const up = this.#put({ mtu }).catch(requireOverlayError);
    await sleep(before);
    await this.lab.exec(host, fault.begin);
    await sleep(during);
    await this.lab.exec(host, fault.end);
    const error = await up;
    if (error) this.log.push(`  it failed: ${error.slice(0, 200)}`);
  }

  /** If anything is not as promised, a refresh says so. */
  async #requireNamed(): Promise<void> {
    const broken = await observe(this.lab);
    this.stack.nextRun();
    const named = await this.#drift();
    this.log.push(...named.map((line) => `  drift: ${line.slice(0, 240)}`));
    if (broken.length > 0 && named.length === 0) throw new Finding(`refresh names nothing, but ${broken.join(", ")}`);
  }

  /** After `up --refresh`, and what other programs' administrators take back, all is as promised. */
  async #repair(): Promise<void> {
    const first = await this.#up().then(() => undefined, requireOverlayError);
    this.log.push(`up --refresh${first ? ` failed: ${first.slice(0, 300)}` : ""}`);
    const taken = this.#done.splice(0).reverse();
    for (const { host, undo } of taken) {
      this.log.push(`${host}: ${undo}`);
      await this.lab.exec(host, undo!);
    }
    if (first && taken.length === 0) throw new Finding(`up --refresh failed: ${first}`);
    if (taken.length > 0) {
      const second = await this.#up().then(() => undefined, requireOverlayError);
      if (second) throw new Finding(`up --refresh failed although all conflicts are gone: ${second}`);
    }
    const broken = await observe(this.lab);
    const named = await this.#drift();
    if (broken.length + named.length > 0)
      throw new Finding(`after up --refresh: ${[...broken, ...named].join("\n  ")}`);
  }

  async #up(): Promise<void> {
    this.stack.nextRun();
    await this.stack.refresh();
    await this.#put({});
  }

  async #put(runner: Record<string, unknown>): Promise<void> {
    const { stack } = this;
    const failures: unknown[] = [];
    const attempt = (work: Promise<unknown>) => work.catch((error: unknown) => failures.push(error));
    await attempt(stack.network(this.network));
    await Promise.all(["r1", "r2"].map((name) => attempt(stack.runner(name, runner))));
    await attempt(stack.put("IPPool", "lb", { ranges: ["10.254.200.0/28"] }));
    const forwards = [{ protocol: "tcp", port: FORWARDED.port, to: "10.128.64.5" }];
    const where = { pool: "lb", attach: "training", connection: stack.at("hub"), ip: FORWARDED.ip };
    await attempt(stack.put("StaticIP", "web", { ...where, forwards }));
    if (failures.length > 0) throw failures[0];
  }

  async #drift(): Promise<string[]> {
    const all = await Promise.all(RESOURCES.map(([type, name]) => this.stack.drift(type, name)));
    return [...new Set((all as string[][]).flat())];
  }

  async #showOthers(): Promise<string> {
    const shown = await Promise.all(HOSTS.map((host) => this.lab.exec(host, SHOW_OTHER_OBJECTS)));
    return shown.map(({ stdout }) => stdout).join("\n");
  }
}

/** An error that a user would get; any other one is a fault of the program. */
function requireOverlayError(error: unknown): string {
  const reason = (error as { reason?: unknown }).reason ?? error;
  if (isOverlayError(reason)) return reason.message;
  throw new Finding(`an error without a code: ${error instanceof Error ? error.stack : String(error)}`);
}
