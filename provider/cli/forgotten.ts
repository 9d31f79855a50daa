import { OverlayError } from "../errors";
import { forgottenHosts } from "../lifecycle/delete";
import type { Lease } from "../pool";
import type { Output } from "./output";

/** Leases that stayed reserved because a host did not answer when its resource was deleted. */

/** Those among `leases` that only these hosts may still use; true: all of them. */
export function ofForgottenHosts(out: Output, leases: Lease[], hosts: true | string[]): Lease[] {
  if (hosts === true) return leases;
  const known = new Set(leases.flatMap((lease) => hostsOf(lease, leases)));
  const unknown = hosts.find((host) => !known.has(host));
  if (unknown !== undefined) throw noSuchHost(unknown, [...known]);
  const concerned = leases.filter((lease) => hostsOf(lease, leases).some((host) => hosts.includes(host)));
  const found = concerned.filter((lease) => hostsOf(lease, leases).every((host) => hosts.includes(host)));
  if (concerned.length > found.length)
    out.note(`Left alone, since other forgotten hosts may use them, too: ${concerned.length - found.length}.`);
  return found;
}

const noSuchHost = (host: string, known: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `No lease is reserved for a forgotten host ${host}; there are ${known.join(", ") || "none"}.`,
    "Check the name: `overlayctl gc --forgotten` lists all.",
  );

/** Hosts that may still use what a lease holds, or what others hold in the pool that it opens. */
export function hostsOf(lease: Lease, all: Lease[]): string[] {
  const within = all.filter(({ pool }) => pool === lease.opens).flatMap((each) => hostsOf(each, all));
  return [...new Set([...(forgottenHosts(lease) ?? [UNKNOWN]), ...within])];
}

/** Of leases that were reserved before their hosts were written to them. */
const UNKNOWN = "unknown";
