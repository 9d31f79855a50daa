/** npm and Debian packages: only what is missing. */
import { existsSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { during, run, say } from "./progress.mjs";
import { folderOnPath, root } from "./tools.mjs";

/**
 * A Debian package, how to see that it is there, and the services that it would start at the next boot.
 * @typedef {{ name: string, command: string, services?: string[] }} DebianPackage
 */

/** @type {DebianPackage[]} */
const forLab = [
  { name: "iproute2", command: "ip" },
  { name: "iptables", command: "iptables" },
  { name: "nftables", command: "nft" },
  { name: "openssh-server", command: "sshd", services: ["ssh"] },
  { name: "openssh-client", command: "ssh" },
  { name: "iputils-ping", command: "ping" },
  { name: "procps", command: "sysctl" },
  { name: "util-linux", command: "nsenter" },
];

/** @type {DebianPackage[]} */
const forTests = [
  { name: "sudo", command: "sudo" },
  { name: "docker.io", command: "dockerd", services: ["docker", "containerd"] },
  { name: "busybox-static", command: "busybox" },
  { name: "conntrack", command: "conntrack" },
  { name: "openssl", command: "openssl" },
  { name: "python3-minimal", command: "python3" },
  { name: "arping", command: "arping" },
  { name: "postgresql", command: "pg_createcluster", services: ["postgresql"] },
  { name: "etcd-server", command: "etcd", services: ["etcd"] },
];

/** @type {DebianPackage[]} */
const forMachines = [
  { name: "qemu-system-x86", command: "qemu-system-x86_64" },
  { name: "qemu-utils", command: "qemu-img" },
  { name: "mmdebstrap", command: "mmdebstrap" },
  { name: "e2fsprogs", command: "mkfs.ext4" },
];

/** What each purpose needs; a new one is a line here. @type {Record<string, DebianPackage[]>} */
const packagesFor = {
  start: forLab,
  bench: [...forLab, ...forTests],
  test: [...forLab, ...forTests],
  vm: [...forLab, ...forMachines],
};

export async function ensureNpmPackages() {
  if (npmPackagesAreInstalled()) return;
  say("Installing the npm packages of package-lock.json into node_modules.");
  // Not `npm ci`: it refuses a lock file that was made where packages for other platforms could not be had.
  const args = ["install", "--no-save", "--include=dev", "--no-audit", "--no-fund"];
  await during("npm install", () => run("npm", args, { cwd: root }));
}

/** npm notes in node_modules what it has installed, at the very end: an interrupted installation does not pass. */
function npmPackagesAreInstalled() {
  const note = join(root, "node_modules", ".package-lock.json");
  if (!existsSync(note)) return false;
  const installed = JSON.parse(readFileSync(note, "utf8")).packages;
  const wanted = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")).packages;
  return Object.entries(wanted).every(
    ([path, { version, optional, devOptional }]) =>
      path === "" || installed[path]?.version === version || (!installed[path] && (optional || devOptional)),
  );
}

/** Pulumi resolves the provider's code from its own place in node_modules: there the package must find itself. */
export function linkItself() {
  const link = join(root, "node_modules", "pulumi-overlay");
  if (!existsSync(link)) symlinkSync("..", link);
}

/** @param {string} purpose */
export async function ensureDebianPackages(purpose) {
  const missing = (packagesFor[purpose] ?? []).filter(({ command }) => !isInstalled(command));
  if (missing.length === 0) return;
  const names = missing.map(({ name }) => name);
  if (!folderOnPath("apt-get"))
    throw new Error(
      `Missing: ${missing.map(({ command }) => command).join(", ")} (on Debian: apt-get install ${names.join(" ")}). ` +
        "What works without: `node setup/test.mjs --project unit --project contract`, and the provider itself.",
    );
  say(`Installing Debian packages that ${purpose === "test" ? "tests" : "lab hosts"} need: ${names.join(" ")}.`);
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  const options = ["-q", "-o", "DPkg::Lock::Timeout=120"];
  await during("apt-get update", () => run("apt-get", ["update", ...options], { env }));
  await withoutServices(async () => {
    const install = ["install", "-y", "--no-install-recommends", ...options, ...names];
    await during("apt-get install", () => run("apt-get", install, { env }));
  });
  for (const service of missing.flatMap(({ services = [] }) => services)) await disableService(service);
}

/**
 * Keeps a service from starting at the next boot. A service without an init script for this machine's init system cannot be
 * disabled; it does not start either, so that is only reported.
 * @param {string} service
 */
async function disableService(service) {
  try {
    await run("update-rc.d", [service, "disable"]);
  } catch (error) {
    const [, reason] = /** @type {Error} */ (error).message.trim().split("\n");
    say(`  Note: service ${service} was not disabled (${reason ?? "update-rc.d failed"}).`);
  }
}

/** @param {string} command */
const isInstalled = (command) =>
  folderOnPath(command) !== undefined || ["/usr/sbin", "/sbin"].some((folder) => existsSync(join(folder, command)));

/**
 * Debian starts the services of a package as it installs it, unless this file says no. Ours goes when the work is done or
 * interrupted; one that was there before stays.
 * @param {() => Promise<void>} work
 */
async function withoutServices(work) {
  const policy = "/usr/sbin/policy-rc.d";
  if (existsSync(policy)) return work();
  const remove = () => rmSync(policy, { force: true });
  const interrupted = () => process.exit(130);
  writeFileSync(policy, "#!/bin/sh\n# pulumi-overlay sets up its lab: no service is to be started\nexit 101\n", {
    mode: 0o755,
  });
  process.once("exit", remove);
  process.once("SIGINT", interrupted).once("SIGTERM", interrupted);
  try {
    await work();
  } finally {
    remove();
    process.off("exit", remove).off("SIGINT", interrupted).off("SIGTERM", interrupted);
  }
}
