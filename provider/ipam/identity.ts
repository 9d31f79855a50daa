import { z } from "zod";
import { OverlayError } from "../errors";
import { tryParseJson } from "../json";
import { type Head, LAYOUT, type Query, type Rows } from "./store/store";
import type { SeenEpoch, StoreIdentity } from "./types";

/**
 * Whether a store is the one that is meant, and open.
 *
 * Its id, and its version: the number of its commits. A move to another engine copies both. A store whose version is lower than
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

/** Why a store takes no writes: all rows were moved `to` another store, or are being moved here `from` one. */
const moveState = z.object({
  to: z.string().optional(),
  from: z.string().optional(),
  /** The id of the move that is under way; absent once all rows were moved `to` another store. */
  move: z.string().optional(),
  /** When the source was closed for it, RFC 3339. */
  since: z.string().optional(),
});
export type MoveState = z.output<typeof moveState>;

export function readMoveState({ move }: Pick<Head, "move">): MoveState {
  if (move === undefined) return {};
  const { data, success } = moveState.safeParse(tryParseJson(move));
  if (success) return data;
  const fix = "It was damaged, or written by another program: restore the store from a backup.";
  throw new OverlayError("STORE_CORRUPT", "What the store says about a move of it is not valid.", fix);
}

/** Rejects a store that this program cannot read, or that was moved. */
export function mustBeOpen(head: Head, { isWrite, allowMoved }: { isWrite: boolean; allowMoved: boolean }): void {
  if (head.layout > LAYOUT) throw tooNewError(head.layout);
  const { to, from, move, since } = readMoveState(head);
  if (to !== undefined && (isWrite || !allowMoved))
    throw move === undefined ? movedError(to) : beingMovedError(to, since);
  if (from !== undefined) throw unfinishedError(from);
}

const beingMovedError = (place: string, since = "a while ago"): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `This store is being moved to ${place} since ${since}, and cannot be written meanwhile.`,
    "Go on with that place once the move is done. If the move was killed, the same `overlayctl store migrate` finishes it, and `overlayctl store reopen` cancels it.",
  );

export const movedError = (place: string): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `Everything in this store was moved to ${place}.`,
    "Set overlay:store (OVERLAY_STORE) to that place; `overlayctl store migrate` brings it back from there.",
  );

export const unfinishedError = (place: string): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `A move from ${place} into this store was not finished.`,
    "Make it again with the same `overlayctl store migrate`.",
  );

const tooNewError = (found: number): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `The store has layout ${found}; this program knows layouts up to ${LAYOUT}.`,
    "Update pulumi-overlay.",
  );
