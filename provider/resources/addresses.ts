import { z } from "zod";
import { overlaps, parseIp, tryParseIp } from "../addressing/ip";
import { runnerLayout } from "../addressing/layout";
import type { Container } from "../network/model/facts";
import { containerOwner } from "../owner";
import type { Extent, Fact, PoolSpec } from "../pool/types";
import { addressPool } from "../pool-names";
import type { StoredSettings } from "../resource";
import { dockerFor, dockerNetworkName, dockerRanges } from "./docker";
import { cidr, plainName, resourceName } from "./inputs";
import { layoutsOf, type NetworkSettings } from "./overlay-network";

/** The addresses of a runner: the pool that its lease opens, and the settings that resources with addresses in it need. */

/** Passed by reference, or read from the pool by the name `NETWORK/RUNNER`. */
export const runnerSettings = z
  .object({
    networkName: resourceName.describe("Name of the runner's network."),
    runnerName: resourceName.describe("Name of the runner."),
    subnets: z.array(cidr).min(1).max(2).describe("The ranges of its workloads, one for each address family."),
    dockerNetwork: z
      .string()
      .refine(
        (name) => name === "" || dockerNetworkName.safeParse(name).success,
        "must be the name of a Docker network",
      )
      .describe("Name of the Docker network on the runner; empty when Docker is off."),
  })
  .meta({ id: "RunnerSettings" });

export type RunnerSettings = z.output<typeof runnerSettings>;

export const storedRunner: StoredSettings<typeof runnerSettings> = {
  schema: runnerSettings,
  poolOf: ({ networkName, runnerName }) => addressPool(networkName, runnerName),
};

/** A name of the lease that is used by `by`. Names are unique, so a user has one address on a network. */
export const userName = (network: string, by: string): string => `user/${network}/${by}`;

/** Leases for the addresses of containers outside the range from which Docker picks by itself. */
export function containerLeases(addresses: PoolSpec, containers: Container[]): Fact[] {
  const [, network, runner] = addresses.name.split("/") as [string, string, string];
  const isOurs = (address: Extent): boolean =>
    addresses.extents.some((extent) => overlaps(extent, address)) &&
    !addresses.reserved?.some((extent) => overlaps(extent, address));
  return containers.flatMap(({ name, addresses: has }) => {
    if (!plainName.safeParse(name).success) return [];
    const want = has
      .filter((text) => tryParseIp(text) !== undefined)
      .map(parseIp)
      .map((point) => ({ first: point, last: point }))
      .filter(isOurs);
    const owner = containerOwner(network, runner, name);
    return want.length > 0 ? [{ pool: addresses.name, owner, type: "IPReservation", want, usedBy: name }] : [];
  });
}

/** The pool of a runner's addresses. The range from which Docker picks by itself is reserved in it. */
export function addressPoolSpec(
  network: NetworkSettings,
  runnerName: string,
  runnerId: number,
  docker = dockerFor(network),
): PoolSpec {
  const cut = layoutsOf(network.subnets);
  const layouts = cut.map((layout) => runnerLayout(layout, runnerId));
  const ranges = dockerRanges(docker, cut, runnerId);
  const settings: RunnerSettings = {
    networkName: network.networkName,
    runnerName,
    subnets: layouts.map(({ subnet }) => subnet),
    dockerNetwork: ranges.length > 0 ? docker.networkName : "",
  };
  return {
    name: addressPool(network.networkName, runnerName),
    kind: "address",
    extents: layouts.flatMap(({ usable }) => usable),
    ...(ranges.length > 0 && { reserved: ranges.map(({ extent }) => extent) }),
    allocation: "hashed",
    data: { settings },
  };
}
