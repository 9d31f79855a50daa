import type { Layout, RunnerLayout } from "./layout";
import { type Block, cidrText, fromLine } from "./line";

/**
 * Docker picks addresses by itself for containers that ask for none. It keeps to the end of a runner's subnet, and the
 * pool keeps out of there: neither has to ask the other. A share, and not a range, so that one setting fits every
 * runner and both address families.
 */
export interface DockerRange {
  block: Block;
  cidr: string;
}

/** The last `1/share` of a runner's subnet. */
export function dockerRange(layout: Layout, { block }: RunnerLayout, share: number): DockerRange {
  const first = block.last + 1n - (1n << BigInt(layout.subnetBits)) / BigInt(share);
  return { block: { first, last: block.last }, cidr: cidrText(first, layout.runnerPrefix + Math.log2(share)) };
}

/** Fewer than eight addresses would be none worth the name, once network, hub and broadcast are taken off. */
export const largestShare = ({ subnetBits }: Layout): number => 2 ** Math.min(subnetBits - 3, 30);

/**
 * The layouts that a Docker network can carry: it cannot be without IPv4, and it counts addresses in 64 bits: in a larger
 * IPv6 subnet it would give out others than it was asked for.
 */
export const dockerLayouts = (layouts: Layout[]): Layout[] =>
  layouts.some(({ family }) => family === 4) ? layouts.filter(({ subnetBits }) => subnetBits <= 64) : [];

/** The runner's subnet as the pool sees it: what may be given out ends where Docker's range begins. */
export function besideDocker(runner: RunnerLayout, range: DockerRange | undefined): RunnerLayout {
  if (!range) return runner;
  const usable = runner.usable
    .map(({ first, last }) => ({ first, last: last < range.block.first ? last : range.block.first - 1n }))
    .filter(({ first, last }) => first <= last);
  return { ...runner, usable, lastIp: fromLine(usable.at(-1)!.last) };
}
