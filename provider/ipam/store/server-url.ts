import { readFileSync } from "node:fs";
import { BlockList, isIP } from "node:net";
import type { OverlayError } from "../../errors";

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet("127.0.0.0", 8, "ipv4");
LOOPBACK.addAddress("::1", "ipv6");

/** Whether packets to a server stay on this machine: a Unix socket or a loopback address. Names other than localhost may be anywhere. */
export function isLocalHost(host: string): boolean {
  const family = isIP(host);
  if (family === 0) return host.startsWith("/") || host === "localhost";
  return LOOPBACK.check(host, family === 6 ? "ipv6" : "ipv4");
}

/** A file that a store's address names in one of its parameters. */
export function fileNamed(parameter: string, path: string, invalid: (reason: string) => OverlayError): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw invalid(`${parameter} cannot be read: ${(cause as Error).message}.`);
  }
}
