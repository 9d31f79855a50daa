import { createHash } from "node:crypto";

/** Device of a runner on the hub: prefix + id in base 36, so that 65,535 runners need four characters. */
export const deviceName = (prefix: string, runnerId: number): string => prefix + runnerId.toString(36);

/** Only the canonical form is a name of ours: `vxkrA`, `vxkr0a` and `vxkr1_0` are not. */
export function runnerIdOf(prefix: string, device: string, maxRunners: number): number | undefined {
  if (!device.startsWith(prefix)) return undefined;
  const id = Number.parseInt(device.slice(prefix.length), 36);
  return id >= 1 && id <= maxRunners && deviceName(prefix, id) === device ? id : undefined;
}

/**
 * A fixed, locally administered MAC. A re-created device with a random one is unreachable until its neighbours' ARP
 * entries age (17 to 36 s were seen); with a fixed one nothing is lost.
 */
export function macOf(network: string, runnerId: number, role: "hub" | "runner" | "bridge"): string {
  const digest = createHash("sha256").update(`${network}\n${runnerId}\n${role}`).digest();
  return ["02", ...[...digest.subarray(0, 5)].map((byte) => byte.toString(16).padStart(2, "0"))].join(":");
}

/** A routing table of a network's own on its runners, far from the numbers that people give. */
export const tableOf = (network: string): number =>
  0xb7000000 + createHash("sha256").update(network).digest().readUIntBE(0, 3);

const DNS_LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** A word as a part of names that DNS and others must bear: itself, or 24 letters and digits that stand for it. */
export function labelOf(word: string): string {
  if (DNS_LABEL.test(word)) return word;
  const digest = createHash("sha256").update(word).digest("hex").slice(0, 30);
  return BigInt(`0x${digest}`).toString(32).padStart(24, "0");
}
