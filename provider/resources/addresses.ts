import { z } from "zod";
import { besideDocker } from "../addressing/docker-range";
import { type RunnerLayout, runnerLayout } from "../addressing/layout";
import type { Json, PoolSpec } from "../pool/types";
import { type DockerOverride, dockerFor, dockerRanges } from "./docker";
import { resourceName } from "./inputs";
import { layoutsOf, type NetworkSettings } from "./overlay-network";

/** The addresses of a runner: the pool that its lease opens, and what those who take addresses from it must know. */

/** Passed on by reference, or read from the pool by the name `NETWORK/RUNNER`. */
export const runnerSettings = z
  .object({
    networkName: resourceName.describe("Name of the runner's network."),
    runnerName: resourceName.describe("Name of the runner."),
    subnets: z.array(z.string()).describe("The ranges of its workloads, one for each address family."),
    gateways: z.array(z.string()).describe("The runner's own addresses in them."),
    dockerNetwork: z.string().optional().describe("Name of the Docker network on the runner, unless Docker is off."),
  })
  .meta({ id: "RunnerSettings" });

export type RunnerSettings = z.output<typeof runnerSettings>;

/** Also the name under which the store knows the runner. */
export const addressPool = (network: string, runner: string): string => `runner/${network}/${runner}`;

/** One address for each user on a network: the name that a lease in use holds. */
export const userName = (network: string, by: string): string => `user/${network}/${by}`;

/** What of a runner's inputs decides about its addresses. */
interface Runner {
  network: NetworkSettings;
  runnerName: string;
  docker?: DockerOverride | undefined;
}

/** Its subnets, one for each family, as the pool sees them. */
function addressesOf({ network, docker }: Runner, runnerId: number): { layouts: RunnerLayout[]; hasDocker: boolean } {
  const layouts = layoutsOf(network.subnets);
  const ranges = dockerRanges(dockerFor(network, docker), layouts, runnerId);
  return {
    layouts: layouts.map((layout, i) => besideDocker(runnerLayout(layout, runnerId), ranges[i])),
    hasDocker: ranges.length > 0,
  };
}

export function runnerSettingsOf(runner: Runner, runnerId: number): RunnerSettings {
  const { layouts, hasDocker } = addressesOf(runner, runnerId);
  return {
    networkName: runner.network.networkName,
    runnerName: runner.runnerName,
    subnets: layouts.map(({ subnet }) => subnet),
    gateways: layouts.map(({ gateway }) => gateway),
    ...(hasDocker && { dockerNetwork: dockerFor(runner.network, runner.docker).networkName }),
  };
}

/** It goes with the runner, and not while it has leases. */
export const addressPoolOf = (runner: Runner, runnerId: number): PoolSpec => ({
  name: addressPool(runner.network.networkName, runner.runnerName),
  kind: "address",
  extents: addressesOf(runner, runnerId).layouts.flatMap(({ usable }) => usable),
  allocation: "hashed",
  data: { settings: runnerSettingsOf(runner, runnerId) as Json },
});
