import { z } from "zod";
import { OverlayError } from "../errors";
import { tryParseJson } from "../json";
import { type Head, LAYOUT } from "./store/store";

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
