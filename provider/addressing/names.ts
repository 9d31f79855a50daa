import { createHash } from "node:crypto";

/** Device of a runner on the hub: prefix + id in base 36, so that 65,535 runners need four characters. */
export const tunnelName = (prefix: string, runnerId: number): string => prefix + runnerId.toString(36);

/** Only the canonical form is one of our names: `vxkrA`, `vxkr0a` and `vxkr1_0` are not. */
export function parseTunnelName(prefix: string, device: string, maxRunners: number): number | undefined {
  if (!device.startsWith(prefix)) return undefined;
  const id = Number.parseInt(device.slice(prefix.length), 36);
  return id >= 1 && id <= maxRunners && tunnelName(prefix, id) === device ? id : undefined;
}

/** Whether it can be a device's name in a command. The kernel allows nearly any name of up to 15 bytes. */
export const isInterfaceName = (text: string): boolean => /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$/.test(text);

/** The MAC of a VM with this address: the same on any host and at any time. */
export const vmMac = (network: string, ip: string): string => formatLocalMac(digest(network, ip, "vm"));

/** Ten digits are enough to distinguish the taps of a host; a device's name has at most 15 characters. */
export const tapName = (network: string, ip: string): string =>
  `tap${digest(network, ip, "tap").toString("hex").slice(0, 10)}`;

const digest = (...parts: (string | number)[]): Buffer => createHash("sha256").update(parts.join("\n")).digest();

const formatLocalMac = (digest: Buffer): string =>
  ["02", ...[...digest.subarray(0, 5)].map((byte) => byte.toString(16).padStart(2, "0"))].join(":");

/**
 * A fixed, locally administered MAC. A re-created device with a random one is unreachable until its neighbours' ARP
 * entries age (17 to 36 s were seen); with a fixed one nothing is lost.
 */
export const deviceMac = (network: string, runnerId: number, role: "hub" | "runner" | "bridge"): string =>
  formatLocalMac(digest(network, runnerId, role));

/** The number of a network's routing table on its runners, far from the numbers that administrators use. */
export const routingTableId = (network: string): number =>
  0xb7000000 + createHash("sha256").update(network).digest().readUIntBE(0, 3);

const DNS_LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** A word as a DNS label: itself if it is one, else 24 letters and digits of its hash. */
export function dnsLabel(word: string): string {
  if (DNS_LABEL.test(word)) return word;
  const digest = createHash("sha256").update(word).digest("hex").slice(0, 30);
  return BigInt(`0x${digest}`).toString(32).padStart(24, "0");
}
