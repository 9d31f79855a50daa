import { type Extent, formatCidr, formatIp } from "./ip";
import type { Layout, RunnerLayout } from "./layout";

/**
 * Docker assigns addresses itself to containers without a fixed one. It uses the end of a runner's subnet, and the pool
 * excludes that part, so the two need no coordination. The part is a share, not a range, so that one setting fits every
 * runner and both address families.
 */
export interface DockerRange {
  extent: Extent;
  cidr: string;
}

/**
 * The last `1/share` of a runner's subnet. In a /64 the one before: Docker counts to 2^64 - 1, and fails at a range that ends
 * there ("invalid bit range").
 */
export function dockerRange(layout: Layout, { extent }: RunnerLayout, share: number): DockerRange {
  const size = (1n << BigInt(layout.subnetBits)) / BigInt(share);
  const last = layout.subnetBits === 64 ? extent.last - size : extent.last;
  const first = last - size + 1n;
  return { extent: { first, last }, cidr: formatCidr(first, layout.runnerPrefix + Math.log2(share)) };
}

/** Below eight addresses too few would be usable, without network, hub and broadcast. */
export const maxDockerShare = ({ subnetBits }: Layout): number => 2 ** Math.min(subnetBits - 3, 30);

/**
 * Whether a Docker network can have these layouts: it must have IPv4, and it counts addresses in 64 bits, so that
 * in a larger IPv6 subnet it would assign wrong addresses. A network without IPv6 is no solution: Docker removes
 * the IPv6 addresses from the bridge of such a network.
 */
export const canUseDocker = (layouts: Layout[]): boolean =>
  layouts.some(({ family }) => family === 4) && layouts.every(({ subnetBits }) => subnetBits <= 64);

/** The runner's subnet without Docker's range, as the pool allocates from it. */
export function withoutDockerRange(runner: RunnerLayout, range: DockerRange | undefined): RunnerLayout {
  if (!range) return runner;
  const { first, last } = range.extent;
  const usable = runner.usable
    .flatMap((extent) => [
      { first: extent.first, last: extent.last < first ? extent.last : first - 1n },
      { first: extent.first > last ? extent.first : last + 1n, last: extent.last },
    ])
    .filter((extent) => extent.first <= extent.last);
  return { ...runner, usable, lastIp: formatIp(usable.at(-1)!.last) };
}
