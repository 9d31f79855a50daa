/**
 * An emulated Debian machine on a lab's switch, with its own kernel and modules, systemd, udev and networkd, for tests that are not
 * possible in namespaces. It takes minutes where namespaces take seconds.
 */
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { vmImageFolder } from "../setup/vm-image.mjs";
import type { Lab } from "./lab";
import { launchInUnderlay } from "./parts";
import { type HostPlan, host } from "./plan";
import { end, must, type ProcessResult } from "./process";
import { holder, read } from "./record";

/** Software emulation on a busy machine boots in minutes. */
const BOOT_TIMEOUT_MS = 15 * 60 * 1000;

export class Vm {
  readonly plan: HostPlan;
  readonly #folder: string;

  private constructor(
    private readonly lab: Lab,
    readonly name: string,
    number: number,
  ) {
    this.plan = host(name, 200, number);
    this.#folder = join(lab.folder, "vms");
  }

  get address(): string {
    return this.plan.address;
  }

  /** Creates a machine that is off, at 10.254.200.NUMBER. It accepts the lab's key. */
  static async make(lab: Lab, name: string, number: number): Promise<Vm> {
    const vm = new Vm(lab, name, number);
    await vm.#writeIdentity();
    return vm;
  }

  /** Starts it, and waits until it has booted and its sshd answers. */
  async start(): Promise<void> {
    const { name, plan, lab } = this;
    const args = [lab.folder, name, plan.mac, vmImageFolder()];
    await launchInUnderlay(read(lab.name)!, name, "vm.sh", args);
    const until = Date.now() + BOOT_TIMEOUT_MS;
    const booted = () => this.exec("systemctl is-system-running --wait 2>/dev/null; [ ! -e /run/nologin ]");
    while ((await booted()).code !== 0) {
      if (Date.now() > until) throw new Error(`${name} does not come up:\n${this.console().slice(-2000)}`);
      await sleep(2000);
    }
  }

  /** Cuts its power: what it had not yet written to its disk is lost. */
  async cutPower(): Promise<void> {
    const process = holder(this.lab.name, this.name);
    if (process) await end([process]);
  }

  /** Runs a shell command by SSH from the controller. */
  exec(script: string): Promise<ProcessResult> {
    const options = ["-F", this.lab.sshConfig, "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=20"];
    return this.lab.controller("ssh", [...options, `root@${this.address}`, script]);
  }

  /** The output of its serial console. */
  console(): string {
    return readFileSync(join(this.lab.folder, "logs", `${this.name}.console`), "utf8");
  }

  async #writeIdentity(): Promise<void> {
    const { name, plan, lab } = this;
    const root = join(this.#folder, name);
    const put = (path: string, text: string) => writeFileSync(join(root, path), text);
    for (const folder of ["etc/ssh", "etc/systemd/network", "root/.ssh"])
      mkdirSync(join(root, folder), { recursive: true });
    await must([
      "ssh-keygen",
      "-q",
      "-t",
      "ed25519",
      "-N",
      "",
      "-C",
      name,
      "-f",
      join(root, "etc/ssh/ssh_host_ed25519_key"),
    ]);
    put("root/.ssh/authorized_keys", readFileSync(`${lab.privateKeyPath}.pub`, "utf8"));
    put("etc/hostname", `${name}\n`);
    put("etc/hosts", `127.0.0.1 localhost\n127.0.1.1 ${name}\n`);
    put(
      "etc/systemd/network/10-eth0.network",
      `[Match]\nName=eth0\n\n[Network]\nAddress=${plan.address}/16\nAddress=${plan.address6}/64\nIPv6AcceptRA=no\n`,
    );
    await must(["tar", "--create", `--file=${root}.tar`, `--directory=${root}`, "etc", "root"]);
    const [type, key] = readFileSync(join(root, "etc/ssh/ssh_host_ed25519_key.pub"), "utf8").split(" ");
    appendFileSync(lab.knownHosts, `${plan.address} ${type} ${key}\n`);
  }
}
