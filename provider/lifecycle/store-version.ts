import { OverlayError } from "../errors";
import type { Lease, Pool, StoreIdentity } from "../pool/types";
import { describePool, SPACES } from "../pool-names";
import type { Definition } from "../resource";
import type { Values } from "./values";

/**
 * The state of each resource has the id of its store, and the version of the commit that changed it last. A store with another id, or
 * without that version, lacks leases of the stack: it is another store, or an older backup.
 */
export function makeStamp(pool: Pool, storeId: string, lease: Lease): Values {
  const commit = pool.versionOf(lease);
  return { storeId, ...(commit && { storeVersion: `${commit.version}-${commit.epoch}` }) };
}

/** undefined: a resource of an earlier release, which has neither. */
export function parseStamp({ storeId, storeVersion }: Values): StoreIdentity | undefined {
  const [, version, epoch] = /^(\d{1,15})-([0-9a-f]*)$/.exec(String(storeVersion)) ?? [];
  return typeof storeId === "string" && version !== undefined
    ? { id: storeId, version: Number(version), epoch: epoch! }
    : undefined;
}

export async function rejectOlderStore(pool: Pool, props: Values): Promise<void> {
  const seen = parseStamp(props);
  if (seen) await pool.mustInclude(seen);
}

/**
 * Whether a lease that is not in the store has ended. Not so in a store that was rebuilt since without this stack's export: leases of
 * the stack are missing there, and their values may be given to others.
 */
export async function hasEnded(pool: Pool, poolName: string, props: Values): Promise<boolean> {
  const seen = parseStamp(props);
  if (!seen) return false;
  const { recovered } = await pool.mustInclude(seen);
  if (!recovered || (await pool.endOf(poolName, String(props.uid)))) return true;
  return (await pool.find(poolName, { owner: String(props.owner) })) !== undefined; // found on hosts, under another lease id
}

/** A lost pool must not be taken for an empty one: a resource that is in the state but not in the store stops all allocation. */
export async function rejectLostStore(def: Definition, pool: Pool, olds: Values): Promise<void> {
  const { pool: from } = def.request(olds, String(olds.owner));
  if (await hasEnded(pool, from, olds)) return;
  if (parseStamp(olds)) throw notRecoveredError(def, olds, from);
  // An address space always exists; a resource in it has opened a pool.
  const name = from.startsWith(SPACES) ? def.opens!(olds, def.extentsFromProps(olds)).name : from;
  if (await pool.spec(name)) return;
  throw new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but the store does not have ${describePool(name)}. Nothing is given out.`,
    "Point overlay:store at the store that this stack was deployed with, or rebuild it with `overlayctl recover`.",
  );
}

const notRecoveredError = (def: Definition, olds: Values, pool: string): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but not in ${describePool(pool)} of the store, which was rebuilt since. Nothing is given out.`,
    "Run `overlayctl recover --stack-export FILE` with an export of this stack.",
  );
