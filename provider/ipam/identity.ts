import { OverlayError } from "../errors";
import type { Head, Query, Rows } from "./store/store";
import type { SeenEpoch, StoreIdentity } from "./types";

/**
 * Which store this is, and its version: the number of its commits. A move to another engine copies both. A store whose version is lower than
 * one that was seen has lost commits. After an older backup was restored, new commits take the numbers of the lost ones: so every second with
 * commits begins an epoch with a random tag, and a version that was seen comes with the tag of its epoch.
 */

/** The epoch of versions that were recovered from what stacks have seen. */
export const ANY = "";
/** The same, after an operator has confirmed that all leases up to a version were recovered. */
export const COMPLETE = "00000000";

export const epochOf = ({ version }: Pick<StoreIdentity, "version">): Query => ({ of: "epoch", version });

/** Rejects with `STORE_LOST` unless the store is the one that was `seen`, with all commits up to then. `epochs`: the answer to `epochOf(seen)`. */
export function findSeen(
  head: Head,
  recovered: string[],
  { epochs = [] }: Pick<Rows, "epochs">,
  seen: StoreIdentity,
  place: string,
): SeenEpoch {
  if (head.id !== seen.id && !recovered.includes(seen.id)) throw anotherStoreError(place, head, seen);
  if (head.version < seen.version) throw behindError(place, head.version, seen);
  const epoch = epochs.filter(({ first }) => first <= seen.version).sort((a, b) => b.first - a.first)[0];
  if (!epoch) return { first: 0, last: seen.version, recovered: false }; // older than the epochs that are kept
  if (![seen.epoch, ANY, COMPLETE].includes(epoch.tag)) throw divergedError(place, seen);
  return { first: epoch.first, last: seen.version, recovered: epoch.tag === ANY && seen.epoch !== ANY };
}

const RESTORE =
  "Restore the newer store, or bring this one up to date with `overlayctl recover --stack-export FILE…` and exports of all its stacks.";

const behindError = (place: string, version: number, seen: StoreIdentity): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The store at ${place} is at version ${version}, but version ${seen.version} of it was seen: an older backup was restored, or commits were lost in a failover. Nothing is given out.`,
    RESTORE,
  );

const divergedError = (place: string, seen: StoreIdentity): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The store at ${place} does not have version ${seen.version} as it was seen: an older backup was restored, and others have written to it since. Nothing is given out.`,
    RESTORE,
  );

const anotherStoreError = (place: string, { id, version }: Head, seen: StoreIdentity): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The store at ${place} is ${version === 0 ? "new" : `store ${id}`}, but this stack was deployed with store ${seen.id}. Nothing is given out.`,
    "Point overlay:store at the store that this stack was deployed with, or rebuild it with `overlayctl recover`.",
  );
