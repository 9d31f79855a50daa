import { z } from "zod";
import { formatIp } from "../addressing/ip";
import { isOverlayError } from "../errors";
import { type Connection, hostId } from "../host/connection";
import { listSpecs } from "../ipam/interface";
import { type Ipam, isCommitted, type Lease } from "../ipam/types";
import type { OwnerKey } from "../network/model/record";
import { isForgotten } from "../owner";
import { DEFAULT_SPACE, IP_POOLS, NETWORKS, networkOfPool, runnerOfPool } from "../pool-names";
import { readCleanHosts } from "./target-hosts";

/**
 * The owners that have items on a host as far as the pool knows: leases of networks and runners name their host, and those of static
 * addresses name the network or runner that carries them. A hub has items of each runner of its networks.
 */
export async function findOwnersOn(ipam: Ipam, connection: Connection): Promise<OwnerKey[]> {
  const id = hostId(connection);
  const isHere = ({ names = [] }: Lease): boolean => names.some((name) => name.startsWith(`host/${id}/`));
  const leasesIn = async (name: string): Promise<Lease[]> =>
    (await ipam.leases(name).catch(ignoreEnded)).filter(
      (lease) => isCommitted(lease) && !isForgotten(lease.owner) && !readCleanHosts(lease).includes(id),
    );
  const owners: OwnerKey[] = [];
  const places = new Set<string>();
  for (const network of await leasesIn(DEFAULT_SPACE)) {
    if (!network.childPool?.startsWith(NETWORKS)) continue;
    const name = networkOfPool(network.childPool);
    const runners = await leasesIn(network.childPool);
    const here = isHere(network) ? [network, ...runners] : runners.filter(isHere);
    owners.push(...here.map(({ uid }) => ({ network: name, uid })));
    for (const { childPool = "" } of here) {
      const runner = runnerOfPool(childPool);
      if (!runner) places.add(name);
      else if (!isHere(network)) places.add(`${name}/${runner.runner}`);
    }
  }
  const pools = places.size > 0 ? (await listSpecs(ipam)).filter(({ name }) => name.startsWith(IP_POOLS)) : [];
  for (const lease of (await Promise.all(pools.map(({ name }) => leasesIn(name)))).flat())
    if (places.has(carrier.parse(lease.data)))
      owners.push({ network: formatIp(lease.ranges[0]!.first), uid: lease.uid });
  return owners;
}

/** As `leaseData` of a StaticIP has it: `NETWORK` or `NETWORK/RUNNER`. */
const carrier = z
  .object({ attach: z.string() })
  .catch({ attach: "" })
  .transform(({ attach }) => attach);

const ignoreEnded = (error: unknown): Lease[] => {
  if (isOverlayError(error, "POOL_NOT_FOUND")) return [];
  throw error;
};
