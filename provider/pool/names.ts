import type { Draft } from "./draft";
import { givesWay, lapse, restOf, vacate } from "./endings";
import { leaseKey, nameKey } from "./keys";
import { record } from "./ledger";
import { isOver } from "./rows";
import { isFirm, type Lease } from "./types";
import { nameTaken } from "./wording";

/**
 * Makes the names of a lease free for it, and says which of them it will hold. An offer leaves a name with its owner's
 * firm lease, since nothing firm may move in a preview; a claim takes it over from there.
 */
export async function takeNames(tx: Draft, lease: Lease, formerOwner?: string): Promise<string[]> {
  const taken: string[] = [];
  for (const name of lease.names ?? []) {
    const place = await tx.get(nameKey(name));
    const holder = place && (await tx.get(leaseKey(place.pool, place.uid)));
    if (!holder || holder.uid === lease.uid || (await passesOn(tx, holder, lease, name, formerOwner))) taken.push(name);
  }
  return taken;
}

async function passesOn(tx: Draft, holder: Lease, to: Lease, name: string, formerOwner?: string): Promise<boolean> {
  if (isOver(holder, tx.now)) await lapse(tx, holder);
  else if (holder.owner === to.owner || holder.owner === formerOwner) {
    if (isFirm(holder) && !isFirm(to)) return false;
    await record(tx, holder, { ...holder, names: holder.names!.filter((other) => other !== name) });
  } else if (givesWay(tx, holder, to.owner))
    await vacate(tx, holder, restOf(tx, holder), { reason: "taken", takenBy: to.owner });
  else throw nameTaken(name, holder);
  return true;
}
