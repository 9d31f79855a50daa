/**
 * Labs on record. A lab is a folder under /run; its record says who owns it, and each process that holds a part of it has
 * noted its own identity there (record.sh). That is all that is needed to remove a lab whose owner was killed: nothing is
 * ever looked for by name or pattern.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { end, guestsOf, type Identity, isAlive } from "./process";

const root = "/run/pulumi-overlay-lab";

export interface LabRecord {
  name: string;
  runners: number;
  ipv6: boolean;
  /** The machine's boot: identities of processes mean nothing after the next one. */
  boot: string;
  /** Absent: made to stay until `down`. */
  owner?: Identity;
}

export const folderOf = (name: string): string => join(root, name);

export const bootId = (): string => readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

/** The lab's folder, at once with its record in it; `false` if the name is taken. */
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

function unlessAbsent<T>(look: () => T): T | undefined {
  try {
    return look();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** Its owner was killed, or the machine has rebooted since. */
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
 * Takes the lab down. Namespaces, interfaces and mounts go with the processes that hold them; what runs in a controller
 * goes first, while its holder makes sure that the namespace is still the one meant.
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
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 }); // another run may be at it, too
}
