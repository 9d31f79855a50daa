import { isCommitted, type Lease, type Pool, type PoolSpec } from "../pool/types";
import { addressPool, RUNNERS } from "../pool-names";
import { addressPools, findNamedPool, hasInRange } from "./address-pools";
import type { SearchInput } from "./inputs";
import { isHeldBy } from "./leases";
import { requireNetwork } from "./runners";

/** Leases on addresses and ports that have all of these properties. Without `state`: those that are held, reserved or used. */
export async function findLeases(pool: Pool, search: Partial<SearchInput> = {}): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const spec of await poolsFor(pool, search)) {
    const leases = search.ip === undefined ? await pool.leases(spec.name) : await leasesAt(pool, spec, search.ip);
    found.push(...leases.filter((lease) => lease.childPool === undefined && matches(lease, search)));
  }
  return found;
}

/** All that share an address, quarantined ones too. */
const leasesAt = async (pool: Pool, spec: PoolSpec, ip: bigint): Promise<Lease[]> => {
  const next = await pool.leases(spec.name, { after: ip - 1n, limit: 1 });
  return next.filter(({ extents }) => extents.some(({ first, last }) => first <= ip && ip <= last));
};

async function poolsFor(pool: Pool, search: Partial<SearchInput>): Promise<PoolSpec[]> {
  const { network, runner, ip } = search;
  const isSomeOfNetwork = search.pool === undefined && (network === undefined) !== (runner === undefined);
  if (network !== undefined) await requireNetwork(pool, network);
  const place = isSomeOfNetwork ? undefined : await findNamedPool(pool, search);
  const prefix =
    place?.pool ?? (network === undefined ? (runner === undefined ? "" : RUNNERS) : addressPool(network, ""));
  return (await addressPools(pool, prefix)).filter(
    (spec) =>
      (place === undefined || spec.name === place.pool) &&
      (runner === undefined || spec.name.split("/")[2] === runner) &&
      (ip === undefined || (spec.kind === "address" && hasInRange(spec, ip))),
  );
}

function matches(lease: Lease, { owner, by, labels = [], tenant, state }: Partial<SearchInput>): boolean {
  const isAsked = state === undefined ? isCommitted(lease) : lease.state === state;
  return (
    isAsked &&
    (owner === undefined || lease.owner.includes(owner)) &&
    (by === undefined || isHeldBy(lease, by)) &&
    (tenant === undefined || (lease.tenant?.org === tenant.org && lease.tenant.project === tenant.project)) &&
    labels.every((label) => hasLabel(lease, label))
  );
}

function hasLabel({ labels = {} }: Lease, label: string): boolean {
  const at = label.indexOf("=");
  return labels[label.slice(0, at)] === label.slice(at + 1);
}
