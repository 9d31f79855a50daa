/** npm and Debian packages: only what is missing. */
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { during, run, say } from "./progress.mjs";
import { folderOnPath, root } from "./tools.mjs";
import { debianKeyring } from "./vm-image.mjs";

/**
 * A Debian package, what must be there once it is installed, and the services that it would start at the next boot. What is
 * checked is what gets used, not whether dpkg knows the package: Docker, for one, may come from elsewhere.
 * @typedef {{ name: string, isInstalled: () => boolean, services?: string[] }} DebianPackage
 */

/** @param {string} command @returns {() => boolean} whether it is on PATH, or where only root's PATH looks */
const hasCommand = (command) => () =>
  folderOnPath(command) !== undefined || ["/usr/sbin", "/sbin"].some((folder) => existsSync(join(folder, command)));

/** Debian's own Python: another one may come first on PATH. @param {string} modules @returns {() => boolean} */
const hasPython = (modules) => () => spawnSync("/usr/bin/python3", ["-c", `import ${modules}`]).status === 0;

/** Each version has a folder of its own; `pg_createcluster` may be there without any. */
const hasPostgres = () => {
  const folder = "/usr/lib/postgresql";
  return existsSync(folder) && readdirSync(folder).some((version) => existsSync(join(folder, version, "bin/initdb")));
};

/** @type {DebianPackage[]} */
const forLab = [
  { name: "iproute2", isInstalled: hasCommand("ip") },
  { name: "iptables", isInstalled: hasCommand("iptables") },
  { name: "nftables", isInstalled: hasCommand("nft") },
  { name: "openssh-server", isInstalled: hasCommand("sshd"), services: ["ssh"] },
  { name: "openssh-client", isInstalled: hasCommand("ssh") },
  { name: "iputils-ping", isInstalled: hasCommand("ping") },
  { name: "procps", isInstalled: hasCommand("sysctl") },
  { name: "util-linux", isInstalled: hasCommand("nsenter") },
  { name: "mount", isInstalled: hasCommand("mount") },
];

/** For programs from PyPI. @type {DebianPackage} */
const pythonVenv = { name: "python3-venv", isInstalled: hasPython("venv, ensurepip") };

/** @type {DebianPackage} */
const etcd = { name: "etcd-server", isInstalled: hasCommand("etcd"), services: ["etcd"] };

/** @type {DebianPackage} */
const postgres = { name: "postgresql", isInstalled: hasPostgres, services: ["postgresql"] };

/** Prometheus, with promtool; schemathesis and hadolint are from PyPI; systemd checks its units. @type {DebianPackage[]} */
const forService = [
  postgres,
  etcd,
  pythonVenv,
  { name: "systemd", isInstalled: hasCommand("systemd-analyze") },
  { name: "strace", isInstalled: hasCommand("strace") },
  { name: "openssl", isInstalled: hasCommand("openssl") },
  {
    name: "prometheus",
    isInstalled: () => hasCommand("prometheus")() && hasCommand("promtool")(),
    services: ["prometheus"],
  },
];

/** @type {DebianPackage[]} */
const forTests = [
  { name: "sudo", isInstalled: hasCommand("sudo") },
  { name: "docker.io", isInstalled: hasCommand("dockerd"), services: ["docker", "containerd"] },
  { name: "docker-cli", isInstalled: hasCommand("docker") },
  { name: "busybox-static", isInstalled: hasCommand("busybox") },
  { name: "conntrack", isInstalled: hasCommand("conntrack") },
  { name: "openssl", isInstalled: hasCommand("openssl") },
  { name: "curl", isInstalled: hasCommand("curl") },
  { name: "python3-minimal", isInstalled: hasPython("socket, struct, threading") },
  { name: "arping", isInstalled: hasCommand("arping") },
  { name: "tcpdump", isInstalled: hasCommand("tcpdump") },
  { name: "wireguard-tools", isInstalled: hasCommand("wg") },
  { name: "wireguard-go", isInstalled: hasCommand("wireguard-go") },
  postgres,
  etcd,
];

/** `bench -- up` compares with Ansible, which it installs from PyPI. @type {DebianPackage[]} */
const forBenchmarks = [pythonVenv, { name: "iperf3", isInstalled: hasCommand("iperf3") }];

/** @type {DebianPackage[]} */
const forMachines = [
  { name: "qemu-system-x86", isInstalled: hasCommand("qemu-system-x86_64") },
  { name: "qemu-utils", isInstalled: hasCommand("qemu-img") },
  { name: "mmdebstrap", isInstalled: hasCommand("mmdebstrap") },
  { name: "debian-archive-keyring", isInstalled: () => existsSync(debianKeyring) },
  { name: "e2fsprogs", isInstalled: hasCommand("mkfs.ext4") },
];

/** The packages that each purpose needs, and what uses them, for the message. @type {Record<string, { packages: DebianPackage[], users: string }>} */
const purposes = {
  start: { packages: forLab, users: "lab hosts" },
  lab: { packages: forLab, users: "lab hosts" },
  bench: { packages: [...forLab, ...forTests, ...forBenchmarks], users: "the benchmarks and chaos tests" },
  test: { packages: [...forLab, ...forTests], users: "the tests" },
  service: { packages: forService, users: "the tests of the service" },
  vm: { packages: [...forLab, ...forMachines], users: "emulated machines" },
};

export async function ensureNpmPackages() {
  if (npmPackagesAreInstalled()) return;
  say("Installing the npm packages of package-lock.json into node_modules.");
  const args = ["ci", "--include=dev", "--no-audit", "--no-fund"];
  await during("npm ci", () => run("npm", args, { cwd: root }));
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
  const { packages, users } = purposes[purpose] ?? { packages: [], users: purpose };
  const missing = packages.filter(({ isInstalled }) => !isInstalled());
  if (missing.length === 0) return;
  const names = missing.map(({ name }) => name);
  if (!folderOnPath("apt-get"))
    throw new Error(
      `Missing (by the names of Debian's packages): ${names.join(" ")}. Install them. ` +
        "What works without: `node setup/test.mjs --project unit --project contract`, and the provider itself.",
    );
  say(`Installing Debian packages that ${users} need: ${names.join(" ")}.`);
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  const options = ["-q", "-o", "DPkg::Lock::Timeout=120"];
  await during("apt-get update", () => run("apt-get", ["update", ...options], { env }));
  await withoutServices(async () => {
    const install = ["install", "-y", "--no-install-recommends", ...options, ...(await knownToApt(names))];
    await during("apt-get install", () => run("apt-get", install, { env }));
  });
  const left = missing.filter(({ isInstalled }) => !isInstalled()).map(({ name }) => name);
  if (left.length > 0) throw new Error(`apt-get installed ${left.join(" ")}, but what we need of it is not there.`);
  for (const service of missing.flatMap(({ services = [] }) => services)) await disableService(service);
}

/**
 * Leaves out packages that this release of Debian does not have: up to Debian 12 docker-cli is a part of docker.io.
 * @param {string[]} names
 */
async function knownToApt(names) {
  const policies = await run("apt-cache", ["policy", ...names], { env: { ...process.env, LC_ALL: "C" } });
  const known = policies.matchAll(/^(\S+):\n {2}Installed: .*\n {2}Candidate: (?!\(none\))/gm);
  const available = new Set(Array.from(known, ([, name]) => name));
  return names.filter((name) => available.has(name));
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

/**
 * Debian starts the services of a package as it installs it, unless this file forbids it. Ours is removed when the work is done or
 * interrupted; one that existed before stays.
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
