import { overlaps } from "../../addressing/line";
import type { Pool, PoolSpec } from "../../pool";
import { settingsIn } from "../../resource";
import { layoutsOf, type NetworkSettings } from "../../resources/overlay-network";
import type { Row } from "../rows";
import { type Runner, runnerNameOf, runnerOf } from "./runner";

/** Where an address lies: in which network, and on which runner. */

export const knownNetworks = (pool: Pool): Promise<PoolSpec[]> => pool.pools("network/");

/** The runner that the address belongs to, or why there is none. */
export async function atAddress(pool: Pool, networks: PoolSpec[], row: Row): Promise<Runner | string> {
  const spec = networks.find((spec) => layoutAt(spec, row.ip));
  if (!spec) return "it is in no network of this store";
  const network = spec.name.slice("network/".length);
  if (row.network !== undefined && row.network !== network) return `it is in network ${network}, not in ${row.network}`;
  const layout = layoutAt(spec, row.ip)!;
  const id = (row.ip - layout.base) >> BigInt(layout.subnetBits);
  const lease = id === 0n ? undefined : await pool.find(spec.name, { value: id });
  const name = lease && lease.state !== "offered" ? runnerNameOf(lease, network) : undefined;
  if (!lease || name === undefined) return `it is in the subnet of id ${id} of network ${network}, which no runner has`;
  if (row.runner !== undefined && row.runner !== name) return `it is on runner ${name}, not on ${row.runner}`;
  return runnerOf(spec, lease, network, name);
}

const layoutAt = (spec: PoolSpec, ip: bigint) =>
  layoutsOf(settingsIn<NetworkSettings>(spec).subnets).find(({ block }) => overlaps(block, { first: ip, last: ip }));
