/** Starting and stopping the parts of a lab: each a process in new namespaces that runs one of the scripts beside this file. */
import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { availableParallelism, hostname } from "node:os";
import { join } from "node:path";
import type { Readable } from "node:stream";
import * as plan from "./plan";
import { end, inParallel, must, run } from "./process";
import { folderOf, holder, type LabRecord } from "./record";

/** A host with the public key of its server as in known_hosts: `ssh-ed25519 AAAA…`. */
export interface LabHost extends plan.HostPlan {
  hostKey: string;
}

/** The whole lab: switch and disks, then hosts and controller side by side. */
export async function startAll(lab: LabRecord): Promise<void> {
  const folder = folderOf(lab.name);
  const hosts = plan.hostPlans(lab.runners);
  const identityFile = join(folder, "keys", "id");
  writeFileSync(join(folder, "hosts"), plan.hostsFile(hosts, hostname()));
  writeFileSync(join(folder, "ssh_config"), plan.sshConfig(hosts, identityFile, join(folder, "known_hosts")));
  await must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", `lab ${lab.name}`, "-f", identityFile]);

  await launch(lab, "underlay", ["unshare", "--net", "--mount"], "underlay.sh", [folder]);
  const rest = [() => startController(lab, plan.controllerPlan), ...hosts.map((host) => () => startHost(lab, host))];
  await inParallel(rest, 4 * availableParallelism());
  writeFileSync(join(folder, "known_hosts"), plan.knownHosts(hostsOf(lab)));
}

export function hostsOf(lab: LabRecord): LabHost[] {
  const hostKey = (name: string) => {
    const [type, key] = readFileSync(join(folderOf(lab.name), "keys", `${name}.pub`), "utf8").split(" ");
    return `${type} ${key}`;
  };
  return plan.hostPlans(lab.runners).map((host) => ({ ...host, hostKey: hostKey(host.name) }));
}

/** The controller has this machine's files, and sees later mounts, too. */
export async function startController(lab: LabRecord, controller: plan.HostPlan): Promise<void> {
  const args = [folderOf(lab.name), controller.name, controller.mac, ...plan.addresses(controller, lab.ipv6)];
  await launch(lab, controller.name, ["unshare", "--net", "--mount", "--propagation=slave"], "controller.sh", args);
}

/** Returns when the host's sshd listens; with `late`, when everything but its sshd is there. */
export async function startHost(lab: LabRecord, host: plan.HostPlan, late = 0): Promise<void> {
  const namespaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"];
  const args = [folderOf(lab.name), host.name, String(late), host.mac, ...plan.addresses(host, lab.ipv6)];
  await launch(lab, host.name, inUnderlay(lab, "mount", "unshare", ...namespaces), "host.sh", args);
}

/** A power cut: processes, network and /run are gone, the disk stays. */
export async function stopHost(lab: LabRecord, host: plan.HostPlan): Promise<void> {
  const process = holder(lab.name, host.name);
  if (process !== undefined) await end([process]);
  // The kernel removes a namespace with a delay; deleting the veth frees its name at once.
  const deleted = await run(inUnderlay(lab, "net", "ip", "link", "del", host.name));
  if (deleted.code !== 0 && !/Cannot find device|No such device/.test(deleted.stderr)) throw new Error(deleted.stderr);
}

export async function wipeDisk(lab: LabRecord, host: plan.HostPlan): Promise<void> {
  await must(inUnderlay(lab, "mount", "rm", "-rf", join(folderOf(lab.name), "disks", host.name)));
}

/** Starts a process with its own port on the lab's switch; it ends with the lab. */
export const launchInUnderlay = (lab: LabRecord, part: string, script: string, args: string[]): Promise<void> =>
  launch(lab, part, inUnderlay(lab, "net"), script, args);

function inUnderlay(lab: LabRecord, namespace: "net" | "mount", ...command: string[]): string[] {
  const process = holder(lab.name, "underlay");
  if (process === undefined) throw new Error(`The underlay of lab "${lab.name}" is gone.`);
  return ["nsenter", `--target=${process.pid}`, "--root", `--${namespace}`, "--", ...command];
}

/** Starts a script that outlives this process, and returns when it prints `ready` to descriptor 3. */
async function launch(
  lab: LabRecord,
  part: string,
  namespaces: string[],
  script: string,
  args: string[],
): Promise<void> {
  const folder = folderOf(lab.name);
  const record = ["sh", join(__dirname, "record.sh"), join(folder, "processes", part)];
  const [command, ...rest] = [...namespaces, ...record, "sh", join(__dirname, script), ...args];
  const logFile = join(folder, "logs", part);
  const log = openSync(logFile, "w");
  const child = spawn(command!, rest, { detached: true, cwd: "/", stdio: ["ignore", log, log, "pipe"] });
  closeSync(log);
  const ready = await isReady(child);
  if (!ready) throw new Error(`${part} of lab "${lab.name}" did not start: ${readFileSync(logFile, "utf8").trim()}`);
  child.unref();
}

function isReady(child: ChildProcess): Promise<boolean> {
  const pipe = child.stdio[3] as Readable;
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    pipe.once("end", () => resolve(false));
    pipe.once("data", () => {
      pipe.destroy();
      resolve(true);
    });
  });
}
