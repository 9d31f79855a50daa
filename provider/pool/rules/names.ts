import { nameTakenError } from "../errors";
import { leaseKey, nameKey } from "../storage/keys";
import { replaceLease } from "../storage/leases";
import { isExpired } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import { isCommitted, type Lease } from "../types";
import { endLease, expireLease, isPreemptible, quarantineEnd } from "./end-lease";

/**
 * Makes the names of a lease free for it, and says which of them it will hold. An offer leaves a name with its owner's
 * firm lease, since nothing firm may move in a preview; a claim takes it over from there.
 */
export async function takeNames(tx: WriteBuffer, lease: Lease, formerOwner?: string): Promise<string[]> {
  const taken: string[] = [];
  for (const name of lease.names ?? []) {
    const place = await tx.get(nameKey(name));
    const holder = place && (await tx.get(leaseKey(place.pool, place.uid)));
    if (!holder || holder.uid === lease.uid || (await takeName(tx, holder, lease, name, formerOwner))) taken.push(name);
  }
  return taken;
}

async function takeName(
  tx: WriteBuffer,
  holder: Lease,
  to: Lease,
  name: string,
  formerOwner?: string,
): Promise<boolean> {
  if (isExpired(holder, tx.now)) await expireLease(tx, holder);
  else if (holder.owner === to.owner || holder.owner === formerOwner) {
    if (isCommitted(holder) && !isCommitted(to)) return false;
    await replaceLease(tx, holder, { ...holder, names: holder.names!.filter((other) => other !== name) });
  } else if (isPreemptible(tx, holder, to.owner))
    await endLease(tx, holder, quarantineEnd(tx, holder), { reason: "taken", takenBy: to.owner });
  else throw nameTakenError(name, holder);
  return true;
}
