/** The plan of a lab with N runners: names, addresses, and the files that follow from them. Pure. */

export interface HostPlan {
  name: string;
  address: string;
  address6: string;
  /** Stays the same after a restart. */
  mac: string;
}

export const underlay = {
  cidr: "10.254.0.0/16",
  cidr6: "fd00:254::/64",
  mtu: 1500,
} as const;

/** A bridge of the kernel has 1023 ports; the hub and two controllers have three of them. */
export const maxRunners = 1020;

export const controllerPlan: HostPlan = host("controller", 255, 250);

/** A second controller, for tests that need two. */
export const secondControllerPlan: HostPlan = host("controller2", 255, 251);

/** hub 10.254.0.1; r1 10.254.1.1 … r250 10.254.1.250, r251 10.254.2.1 … */
export function hostPlans(runners: number): HostPlan[] {
  const runner = (_: unknown, i: number) => host(`r${i + 1}`, 1 + Math.floor(i / 250), 1 + (i % 250));
  return [host("hub", 0, 1), ...Array.from({ length: runners }, runner)];
}

/** The last two numbers are the same in all three; in the IPv6 address as they are written. */
export function host(name: string, high: number, low: number): HostPlan {
  const hex = (byte: number) => byte.toString(16).padStart(2, "0");
  return {
    name,
    address: `10.254.${high}.${low}`,
    address6: `fd00:254::${high}:${low}`,
    mac: `02:00:0a:fe:${hex(high)}:${hex(low)}`,
  };
}

export const addresses = (host: HostPlan, ipv6: boolean): string[] =>
  ipv6 ? [`${host.address}/16`, `${host.address6}/64`] : [`${host.address}/16`];

/** /etc/hosts of every host and of the controller; `machine` is this machine's name, which the controller has, too. */
export function hostsFile(hosts: HostPlan[], machine: string): string {
  const lines = [...hosts, controllerPlan].map((host) => `${host.address} ${host.name}`);
  return ["127.0.0.1 localhost", "::1 localhost", `127.0.1.1 ${machine}`, ...lines, ""].join("\n");
}

export function sshConfig(hosts: HostPlan[], identityFile: string, knownHosts: string): string {
  const each = hosts.map((host) => `Host ${host.name}\n  HostName ${host.address}\n`);
  const all = [
    "Host *",
    "  User root",
    `  IdentityFile ${identityFile}`,
    "  IdentitiesOnly yes",
    `  UserKnownHostsFile ${knownHosts}`,
    "  GlobalKnownHostsFile none",
    "  StrictHostKeyChecking yes",
    "  BatchMode yes",
    "",
  ];
  return each.join("") + all.join("\n");
}

export const knownHosts = (hosts: (HostPlan & { hostKey: string })[]): string =>
  hosts.map((host) => `${host.name},${host.address},${host.address6} ${host.hostKey}\n`).join("");
