import { hash, randomUUID } from "node:crypto";

/**
 * A uid begins with a mark of the owner that it was made for. So all that an owner was ever given lies side by side, and
 * finding it takes one look and no index; only a lease that has changed hands needs a row that points to it.
 */
export function ownerHash(owner: string): string {
  if (owner !== last.owner) last = { owner, mark: hash("sha256", owner, "hex").slice(0, 8) };
  return last.mark;
}
/** An operation asks for its owner's several times. */
let last = { owner: "", mark: hash("sha256", "", "hex").slice(0, 8) };

export const newUid = (owner: string): string => ownerHash(owner) + randomUUID().slice(0, 8);

/** A lease id begins with the uid, which is where the lease is found. */
export const newLeaseId = (uid: string): string => `${uid}.${randomDigits()}`;
export const uidOf = (leaseId: string): string => leaseId.split(".")[0]!;

/** 16 hexadecimal digits; the version in the middle of a UUID is left out. */
const randomDigits = (): string => randomUUID().replace(/-.*-/, "").slice(0, 16);
