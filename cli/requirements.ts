import { isOverlayError } from "../provider/errors";
import { type Connection, connectionName } from "../provider/host/connection";
import type { CliHosts } from "./hosts";

/** `overlayctl scan --check`: what a host needs, beside a login and root. docs/requirements.md explains each. */
interface Requirement {
  name: string;
  /** A shell command that succeeds if it is met. It changes nothing. */
  test: string;
  remedy: string;
  /** Only some networks need it. */
  isOptional?: true;
}

const hasTools = (...tools: string[]): string => tools.map((tool) => `command -v ${tool} >/dev/null`).join(" && ");
const hasModule = (name: string): string => `[ -e /sys/module/${name} ] || modprobe -n -q ${name} 2>/dev/null`;

export const REQUIREMENTS: Requirement[] = [
  {
    name: "iproute2",
    test: `${hasTools("ip", "bridge")} && ip -j link show dev lo >/dev/null 2>&1`,
    remedy: "apt-get install iproute2",
  },
  {
    name: "iptables",
    test: hasTools("iptables-save", "iptables-restore"),
    remedy: "apt-get install iptables",
  },
  {
    name: "ip6tables",
    test: hasTools("ip6tables-save", "ip6tables-restore"),
    remedy: "apt-get install iptables; only for networks with IPv6",
    isOptional: true,
  },
  {
    name: "coreutils",
    test: `${hasTools("timeout", "stat", "sha256sum", "sync")} && ! timeout --help 2>&1 | grep -q BusyBox`,
    remedy: "apt-get install coreutils",
  },
  {
    name: "util-linux",
    test: "flock --version 2>/dev/null | grep -q util-linux",
    remedy: "apt-get install util-linux",
  },
  { name: "awk", test: hasTools("awk"), remedy: "apt-get install mawk" },
  { name: "findutils", test: hasTools("find"), remedy: "apt-get install findutils" },
  { name: "grep and sed", test: hasTools("grep", "sed"), remedy: "apt-get install grep sed" },
  { name: "ping", test: hasTools("ping"), remedy: "apt-get install iputils-ping; only with verify", isOptional: true },
  { name: "kernel: vxlan", test: hasModule("vxlan"), remedy: "install the kernel package that has the module vxlan" },
  {
    name: "kernel: bridge",
    test: hasModule("bridge"),
    remedy: "install the kernel package that has the module bridge",
  },
  {
    name: "wireguard",
    test: `${hasTools("wg")} && { ${hasModule("wireguard")} || { ${hasTools("wireguard-go")} && [ -c /dev/net/tun ]; }; }`,
    remedy:
      "apt-get install wireguard-tools (before Linux 5.6 also wireguard-go); only for networks with tunnel wireguard",
    isOptional: true,
  },
  { name: "writable files", test: "[ -w /var/lib ] && [ -w /etc ]", remedy: "make /var/lib and /etc writable" },
  {
    name: "systemd",
    test: "[ -d /run/systemd/system ]",
    remedy: "without it, let init run `sh /var/lib/overlay/boot.sh`, or set persist: false",
    isOptional: true,
  },
];

export interface CheckedRequirement {
  host: string;
  requirement: string;
  result: "ok" | "missing" | "optional";
  fix?: string;
}

const SCRIPT = REQUIREMENTS.map(({ test }) => `if ${test}; then echo yes; else echo no; fi`).join("\n");

/** A host that cannot be reached, or on which the user is not root, has one row that says so. */
export async function checkRequirements(hosts: CliHosts, connection: Connection): Promise<CheckedRequirement[]> {
  const host = connectionName(connection);
  try {
    const { stdout } = await (await hosts.connect(connection)).exec(SCRIPT, "checking what it has");
    const answers = stdout.trim().split("\n");
    const login = { host, requirement: "ssh and root", result: "ok" as const };
    return [login, ...REQUIREMENTS.map((each, i) => judge(host, each, answers[i] === "yes"))];
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    return [{ host, requirement: "ssh and root", result: "missing", fix: error.message }];
  }
}

const judge = (host: string, { name, remedy, isOptional }: Requirement, isMet: boolean): CheckedRequirement =>
  isMet
    ? { host, requirement: name, result: "ok" }
    : { host, requirement: name, result: isOptional ? "optional" : "missing", fix: remedy };
