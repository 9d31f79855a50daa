/**
 * The disk of the emulated machines of `npm run test:vm`: a Debian with systemd, made once by mmdebstrap from the package
 * sources of this machine, and kept in the user's cache. It has no identity: each machine brings its own on a second disk.
 */
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { during, run, say } from "./progress.mjs";
import { cacheFolder } from "./tools.mjs";

/** Of Debian's package debian-archive-keyring. */
export const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg";

const packages = [
  ...["linux-image-cloud-amd64", "systemd-sysv", "udev", "dbus", "kmod"],
  ...["openssh-server", "iproute2", "iptables", "nftables", "iputils-ping", "procps"],
  ...["docker.io", "firewalld", "ufw", "wireguard-tools", "wireguard-go"],
];

/**
 * Up to Debian 12 docker.io has the client `docker`; later releases have it in docker-cli.
 * @param {string} suite
 */
export const imagePackages = (suite) =>
  ["bullseye", "bookworm"].includes(suite) ? packages : [...packages, "docker-cli"];

/** A machine's own files come as a tar archive on its second disk: name, keys, addresses. */
const identityUnit = `[Unit]
Description=What makes this machine itself
DefaultDependencies=no
After=systemd-remount-fs.service
Before=sysinit.target systemd-networkd.service ssh.service

[Service]
Type=oneshot
ExecStart=/bin/tar --extract --file=/dev/vdb --directory=/ --no-same-owner

[Install]
WantedBy=sysinit.target
`;

/** Started by tests where they are wanted; the first two only cost an emulated machine its time. */
const disabled = [
  "apt-daily.timer",
  "apt-daily-upgrade.timer",
  "docker",
  "docker.socket",
  "containerd",
  "firewalld",
  "ufw",
];

/** The recipe's own text is part of the name: another recipe is another image. */
export function vmImageFolder() {
  const recipe = createHash("sha256")
    .update(readFileSync(new URL(import.meta.url)))
    .digest("hex");
  return join(cacheFolder(), `vm-${recipe.slice(0, 12)}`);
}

export async function ensureVmImage() {
  const folder = vmImageFolder();
  if (existsSync(folder)) return;
  say(`Making a Debian disk for emulated machines in ${folder} (once; a few minutes).`);
  mkdirSync(cacheFolder(), { recursive: true });
  const staging = mkdtempSync(`${folder}-`);
  try {
    await during("mmdebstrap", (detail) => bootstrap(join(staging, "root"), detail));
    await during("disk image", () => makeDisk(staging));
    renameSync(staging, folder);
  } finally {
    rmSync(staging, { recursive: true, force: true });
  }
}

/** @param {string} target @param {(text: string) => void} detail */
async function bootstrap(target, detail) {
  const { suite, sources, keys = [] } = machineSources();
  const options = (await run("apt-config", ["dump"]))
    .split("\n")
    .filter((line) => /^Acquire::(https?::Proxy|Check-Valid-Until) /.test(line))
    .map((line) => `--aptopt=${line}`);
  const included = imagePackages(suite).join(",");
  const args = ["--variant=minbase", "--architectures=amd64", `--include=${included}`, ...keys, ...options];
  const onLine = (/** @type {string} */ line) => detail(line.slice(0, 60));
  await run("nice", ["-n", "15", "mmdebstrap", ...args, suite, target, ...sources], { onLine });
  configure(target);
  await run("chroot", [target, "systemctl", "enable", "systemd-networkd", "identity"]);
  await run("chroot", [target, "systemctl", "disable", ...disabled]);
}

/**
 * A Debian's own sources, which may be a mirror. Any other machine takes Debian's servers, which are mmdebstrap's default, and trusts
 * Debian's keys: its own apt trusts only its own archive's.
 */
function machineSources() {
  const release = readFileSync("/etc/os-release", "utf8");
  if (!/^ID=debian$/m.test(release)) return { suite: "bookworm", sources: [], keys: [`--keyring=${debianKeyring}`] };
  const folder = "/etc/apt/sources.list.d";
  const parts = existsSync(folder) ? readdirSync(folder).filter((name) => /\.(list|sources)$/.test(name)) : [];
  const files = ["/etc/apt/sources.list", ...parts.map((name) => join(folder, name))];
  const sources = files.filter((file) => existsSync(file) && /^(deb |Types:)/m.test(readFileSync(file, "utf8")));
  return { suite: /^VERSION_CODENAME=(.*)$/m.exec(release)?.[1] ?? "bookworm", sources };
}

/** @param {string} target */
function configure(target) {
  const put = (/** @type {string} */ path, /** @type {string} */ text) => writeFileSync(join(target, path), text);
  put("etc/fstab", "/dev/vda / ext4 defaults 0 1\n");
  put("etc/systemd/system/identity.service", identityUnit);
  put(
    "etc/ssh/sshd_config",
    "HostKey /etc/ssh/ssh_host_ed25519_key\nUsePAM no\nUseDNS no\nPermitRootLogin prohibit-password\n",
  );
  for (const name of readdirSync(join(target, "etc/ssh")).filter((name) => name.startsWith("ssh_host_")))
    rmSync(join(target, "etc/ssh", name));
  rmSync(join(target, "etc/machine-id"), { force: true });
  put("etc/machine-id", ""); // its own at every boot; none at all would mean to enable every service
}

/** @param {string} staging */
async function makeDisk(staging) {
  const tree = join(staging, "root");
  const disk = join(staging, "base.img");
  await run("truncate", ["-s", "4G", disk]);
  await run("mkfs.ext4", ["-q", "-F", "-d", tree, disk]);
  for (const [file, start] of [
    ["vmlinuz", "vmlinuz-"],
    ["initrd.img", "initrd.img-"],
  ]) {
    const found = readdirSync(join(tree, "boot")).find((name) => name.startsWith(/** @type {string} */ (start)));
    await run("cp", [join(tree, "boot", /** @type {string} */ (found)), join(staging, /** @type {string} */ (file))]);
  }
  rmSync(tree, { recursive: true });
}
