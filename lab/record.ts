/**
 * Records of labs. A lab is a folder under /run with a record of its owner process, and the identity of each process that holds a
 * part of it (record.sh). So a lab whose owner was killed can be removed without a search by name or pattern.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { end, guestsOf, type Identity, isAlive } from "./process";

const root = "/run/pulumi-overlay-lab";

export interface LabRecord {
  name: string;
  runners: number;
  ipv6: boolean;
  /** The boot id of this machine: identities of processes are valid until the next boot. */
  boot: string;
  /** Absent: the lab stays until `down`. */
  owner?: Identity;
}

export const folderOf = (name: string): string => join(root, name);

export const bootId = (): string => readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

/** Creates the lab's folder with its record, atomically. false: the name is taken. */
export function create(record: LabRecord): boolean {
  mkdirSync(root, { recursive: true, mode: 0o755 });
  const temporary = mkdtempSync(join(root, ".new-"));
  writeFileSync(join(temporary, "lab.json"), `${JSON.stringify(record, null, 2)}\n`);
  for (const folder of ["disks", "keys", "logs", "processes"]) mkdirSync(join(temporary, folder));
  try {
    renameSync(temporary, folderOf(record.name));
    return true;
  } catch (error) {
    rmSync(temporary, { recursive: true });
    if (["ENOTEMPTY", "EEXIST"].includes((error as NodeJS.ErrnoException).code ?? "")) return false;
    throw error;
  }
}

export function read(name: string): LabRecord | undefined {
  const text = unlessAbsent(() => readFileSync(join(folderOf(name), "lab.json"), "utf8"));
  return text === undefined ? undefined : JSON.parse(text);
}

export const list = (): LabRecord[] =>
  entries(root)
    .filter((name) => !name.startsWith("."))
    .map(read)
    .filter((record) => record !== undefined);

const entries = (folder: string): string[] => unlessAbsent(() => readdirSync(folder)) ?? [];

function unlessAbsent<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** Whether its owner was killed, or this machine has rebooted since. */
export const isLeftOver = (record: LabRecord): boolean =>
  record.boot !== bootId() || (record.owner !== undefined && !isAlive(record.owner));

/** The process that holds a part of the lab (`underlay`, `controller`, a host), if it is still there. */
export function holder(name: string, part: string): Identity | undefined {
  const text = unlessAbsent(() => readFileSync(join(folderOf(name), "processes", part), "utf8"));
  const [pid, start] = (text ?? "").trim().split(" ");
  const process = { pid: Number(pid), start: start ?? "" };
  return isAlive(process) ? process : undefined;
}

/**
 * Removes a lab. Namespaces, interfaces and mounts end with the processes that hold them. Processes in a controller are ended first,
 * while its holder still proves that the namespace is the right one.
 */
export async function remove(record: LabRecord): Promise<void> {
  const folder = folderOf(record.name);
  if (record.boot === bootId()) {
    const held = (part: string) => holder(record.name, part) ?? [];
    const parts = entries(join(folder, "processes"));
    const controllers = parts.filter((part) => part.startsWith("controller")).flatMap(held);
    const guests = () => controllers.filter(isAlive).flatMap(guestsOf);
    for (let some = guests(); some.length > 0; some = guests()) await end(some);
    await end(parts.flatMap(held));
  }
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 }); // another run may remove it, too
}
