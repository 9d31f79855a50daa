import type { Lease, Pool, StoreIdentity } from "../pool/types";
import type { Values } from "./values";

/**
 * Every resource carries in its state which store it is from, and the version that the commit of its last change made. A store with
 * another id, or without that version, has not got what the stack was given: it is another one, or an older backup.
 */
export function stampOf(pool: Pool, storeId: string, lease: Lease): Values {
  const commit = pool.versionOf(lease);
  return { storeId, ...(commit && { storeVersion: `${commit.version}-${commit.epoch}` }) };
}

/** undefined: a resource of an earlier release, which carries neither. */
export function stampIn({ storeId, storeVersion }: Values): StoreIdentity | undefined {
  const [, version, epoch] = /^(\d{1,15})-([0-9a-f]*)$/.exec(String(storeVersion)) ?? [];
  return typeof storeId === "string" && version !== undefined
    ? { id: storeId, version: Number(version), epoch: epoch! }
    : undefined;
}

export async function refuseOlderStore(pool: Pool, props: Values): Promise<void> {
  const seen = stampIn(props);
  if (seen) await pool.mustInclude(seen);
}

/**
 * Whether a lease that the store does not have ended there. Not in a store that was rebuilt since without this stack's export: what
 * the stack held is missing from it, and may be given to others.
 */
export async function endedThere(pool: Pool, poolName: string, props: Values): Promise<boolean> {
  const seen = stampIn(props);
  if (!seen) return false;
  const { recovered } = await pool.mustInclude(seen);
  if (!recovered || (await pool.endOf(poolName, String(props.uid)))) return true;
  return (await pool.find(poolName, { owner: String(props.owner) })) !== undefined; // found on hosts, under another lease id
}
