/**
 * A lab: a hub, N runners and a controller on one switch, all on this machine, each host with a network stack, a disk,
 * processes and an OpenSSH server of its own. Nothing is faked; only the kernel is shared.
 *
 *   underlay    the switch and the disks             (underlay.sh: net, mount)
 *   controller  where pulumi, stores and tests run   (controller.sh: net, mount; this machine's files)
 *   hub, r1 …   the hosts                            (host.sh: net, mount, pid, uts, ipc)
 *
 * One process holds the namespaces of each part, so that ending the process removes the part.
 */
import { type ChildProcess, type SpawnOptions, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type ContainerOptions, containerScript } from "./container";
import { hostsOf, type LabHost, startAll, startController, startHost, stopHost, wipeDisk } from "./parts";
import * as plan from "./plan";
import { type Identity, identityOf, isListening, type ProcessResult, type RunOptions, run } from "./process";
import * as records from "./record";

export type { ContainerOptions } from "./container";
export type { LabHost } from "./parts";
export type { ProcessResult } from "./process";

export interface LabOptions {
  runners: number;
  /** Labs of different names do not see each other. Default: a name of this process. */
  name?: string;
  /** Keep the lab when this process ends. */
  keep?: boolean;
}

let made = 0;

export class Lab {
  readonly name: string;
  readonly folder: string;
  readonly hosts: LabHost[];
  readonly underlay = plan.underlay;
  /** The controller's own address on the underlay. */
  readonly controllerAddress = plan.controllerPlan.address;
  /** Private key that opens every host, for `root` and `ops`. */
  readonly privateKeyPath: string;
  readonly knownHosts: string;
  /** `ssh -F` this, in the controller. */
  readonly sshConfig: string;

  /** Starts a lab. Labs of killed runs are removed first. */
  static async up(options: LabOptions): Promise<Lab> {
    refuseWithoutRoot();
    const { runners, name = `run-${process.pid}-${++made}`, keep = false } = options;
    if (!Number.isInteger(runners) || runners < 0 || runners > plan.maxRunners)
      throw new Error(`A lab has 0 to ${plan.maxRunners} runners, not ${runners}.`);
    if (!/^[a-z0-9][a-z0-9-]{0,30}$/.test(name))
      throw new Error(`A lab's name is 1 to 31 of a-z, 0-9 and "-", not "${name}".`);
    for (const record of records.list()) if (records.isLeftOver(record)) await records.remove(record);

    const record: records.LabRecord = { name, runners, ipv6: existsSync("/proc/sys/net/ipv6"), boot: records.bootId() };
    if (!keep) record.owner = identityOf(process.pid)!;
    if (!records.create(record)) throw nameTakenError(name);
    try {
      await startAll(record);
      return new Lab(record);
    } catch (error) {
      await records.remove(record);
      throw error;
    }
  }

  /** An existing lab. */
  static open(name: string): Lab {
    refuseWithoutRoot();
    const record = records.read(name);
    if (record === undefined) throw new Error(`There is no lab "${name}". \`npm run lab -- up 3\` makes one.`);
    if (records.isLeftOver(record))
      throw new Error(
        `Lab "${name}" was left by a run that is gone. \`npm run lab -- down --name ${name}\` removes it.`,
      );
    return new Lab(record);
  }

  private constructor(private readonly record: records.LabRecord) {
    this.name = record.name;
    this.folder = records.folderOf(record.name);
    this.privateKeyPath = join(this.folder, "keys", "id");
    this.knownHosts = join(this.folder, "known_hosts");
    this.sshConfig = join(this.folder, "ssh_config");
    this.hosts = hostsOf(record);
  }

  get privateKey(): string {
    return readFileSync(this.privateKeyPath, "utf8");
  }

  host(name: string): LabHost {
    const host = this.hosts.find((host) => host.name === name);
    if (host === undefined) throw new Error(`Lab "${this.name}" has no host "${name}", only ${listNames(this.hosts)}.`);
    return host;
  }

  async down(): Promise<void> {
    await records.remove(this.record);
  }

  /** Ends a host like a power cut. `start` starts it again, at the same address and with the same key. */
  async stop(host: string): Promise<void> {
    await stopHost(this.record, this.host(host));
  }

  /** `late`: seconds until its sshd answers. */
  async start(host: string, options: { late?: number } = {}): Promise<void> {
    if (this.state(host) !== "down") return;
    await stopHost(this.record, this.host(host)); // removes the rest of a host that has crashed
    await startHost(this.record, this.host(host), options.late);
  }

  /** Starts a host with an empty disk, at the same address and with the same host key. */
  async rebuild(host: string, options: { late?: number } = {}): Promise<void> {
    await this.stop(host);
    await wipeDisk(this.record, this.host(host));
    await this.start(host, options);
  }

  state(host: string): "up" | "sshd does not listen" | "down" {
    const holder = records.holder(this.name, this.host(host).name);
    if (holder === undefined) return "down";
    return isListening(holder.pid, 22) ? "up" : "sshd does not listen";
  }

  /**
   * A workload on a host: the network namespace `name` with an interface on one of the host's bridges, made with the host's
   * own tools. `lab.exec(host, "ip netns exec NAME …")` runs something in it; it ends with the host.
   */
  async container(host: string, name: string, options: ContainerOptions): Promise<void> {
    const { code, stderr } = await this.exec(host, containerScript(name, options));
    if (code !== 0) throw new Error(`container ${name} on ${host}: ${stderr.trim()}`);
  }

  /** Runs a shell command on a host without SSH, so that tests do not depend on the code under test. */
  async exec(host: string, script: string, options: { input?: string } = {}): Promise<ProcessResult> {
    return run(this.hostCommand(host, ["sh", "-c", script]), options);
  }

  /** Runs a command in the controller. With `stdio: "inherit"` its output is printed, and not captured. */
  async controller(
    command: string,
    args: readonly string[] = [],
    { controller, ...options }: RunOptions & { controller?: string | undefined } = {},
  ): Promise<ProcessResult> {
    return run(this.controllerCommand([command, ...args], options.cwd, controller), options);
  }

  /** Starts a controller that acts as another machine, with its own address. It has this machine's files, too. Returns its name. */
  async secondController(): Promise<string> {
    await startController(this.record, plan.secondControllerPlan);
    return plan.secondControllerPlan.name;
  }

  /** Starts a command in the controller. The child is the command itself, so signals reach it. */
  spawnInController(command: string, args: readonly string[] = [], options: SpawnOptions = {}): ChildProcess {
    const [enter, ...rest] = this.controllerCommand([command, ...args], options.cwd);
    return spawn(enter!, rest, options);
  }

  /** argv that runs a command on a host, as root after a login. */
  hostCommand(host: string, command: readonly string[]): string[] {
    const { pid } = this.holder(this.host(host).name);
    const enter = ["nsenter", `--target=${pid}`, "--root", "--mount", "--uts", "--ipc", "--net", "--pid", "--"];
    const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    const login = ["env", "-i", "--chdir=/root", "HOME=/root", "LANG=C.UTF-8", `PATH=${path}`];
    return [...enter, ...login, `TERM=${process.env.TERM ?? "dumb"}`, ...command];
  }

  /** argv that runs a command in the controller, in this process's environment and folder or another. */
  controllerCommand(
    command: readonly string[],
    folder: SpawnOptions["cwd"] = process.cwd(),
    controller = plan.controllerPlan.name,
  ): string[] {
    const { pid } = this.holder(controller);
    // Entering a mount namespace leads to its root folder, hence env.
    return ["nsenter", `--target=${pid}`, "--root", "--mount", "--net", "--", "env", `--chdir=${folder}`, ...command];
  }

  private holder(part: string): Identity {
    const holder = records.holder(this.name, part);
    if (holder === undefined) throw new Error(`${part} of lab "${this.name}" is down.`);
    return holder;
  }
}

export function refuseWithoutRoot(): void {
  if (process.platform !== "linux" || process.getuid?.() !== 0)
    throw new Error("A lab is made of namespaces of the Linux kernel: it needs Linux, and root.");
}

function nameTakenError(name: string): Error {
  const owner = records.read(name)?.owner;
  const by = owner === undefined ? "It was made to stay" : `Process ${owner.pid} uses it`;
  return new Error(`There is a lab "${name}" already. ${by}; \`npm run lab -- down --name ${name}\` removes it.`);
}

const listNames = (hosts: plan.HostPlan[]) => hosts.map((host) => host.name).join(", ");
