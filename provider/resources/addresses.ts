import { z } from "zod";
import { runnerLayout } from "../addressing/layout";
import type { PoolSpec } from "../pool/types";
import { type Docker, dockerFor, dockerRanges } from "./docker";
import { resourceName } from "./inputs";
import { layoutsOf, type NetworkSettings } from "./overlay-network";

/** The addresses of a runner: the pool that its lease opens, and what those who take addresses from it must know. */

/** Passed on by reference, or read from the pool by the name `NETWORK/RUNNER`. */
export const runnerSettings = z
  .object({
    networkName: resourceName.describe("Name of the runner's network."),
    runnerName: resourceName.describe("Name of the runner."),
    subnets: z.array(z.string()).describe("The ranges of its workloads, one for each address family."),
    dockerNetwork: z.string().describe("Name of the Docker network on the runner; empty when Docker is off."),
  })
  .meta({ id: "RunnerSettings" });

export type RunnerSettings = z.output<typeof runnerSettings>;

/** Also the name under which the store knows the runner. */
export const addressPool = (network: string, runner: string): string => `runner/${network}/${runner}`;

export const dockerNetworkOf = ({ enabled, networkName }: Docker): string => (enabled === "off" ? "" : networkName);

/** It goes with the runner, and not while it has leases. Docker picks by itself from a part that it never gives out. */
export function addressPoolOf(
  network: NetworkSettings,
  runnerName: string,
  runnerId: number,
  docker = dockerFor(network),
): PoolSpec {
  const layouts = layoutsOf(network.subnets).map((layout) => runnerLayout(layout, runnerId));
  const reserved = dockerRanges(docker, layoutsOf(network.subnets), runnerId).map(({ block }) => block);
  const settings: RunnerSettings = {
    networkName: network.networkName,
    runnerName,
    subnets: layouts.map(({ subnet }) => subnet),
    dockerNetwork: dockerNetworkOf(docker),
  };
  return {
    name: addressPool(network.networkName, runnerName),
    kind: "address",
    extents: layouts.flatMap(({ usable }) => usable),
    ...(reserved.length > 0 && { reserved }),
    allocation: "hashed",
    data: { settings },
  };
}
