import { OverlayError } from "../../errors";
import { tryParseJson } from "../../json";
import type { LoggedEvent, StoreVersion } from "../types";
import { isCount, isText, isWhen, isWord, shape } from "./fields";
import { type Advance, advance } from "./identity";
import { byTime, headKey, layoutKey, moveKey, poolKey, poolsFrom, renamedRows } from "./keys";
import { decodeRow, plainJson } from "./records";
import type { Row, Store, Tx, Write } from "./store";
import { type PoolOptions, type WriteBuffer, withBuffer } from "./write-buffer";

/** Of keys and rows. A change of `keys.ts` or `records.ts` that older programs cannot read adds a migration and one to this. */
export const LAYOUT = 5;

/** From layout i + 1 to i + 2, each in one transaction. */
const MIGRATIONS: ((tx: Tx) => Promise<void>)[] = [removeIdleTimes, addCapacities, renameFields, startEventLog];

/** Leases are indexed by `lastSeen` only in pools with `reclaimAfter`. */
async function removeIdleTimes(tx: Tx): Promise<void> {
  await withBuffer(tx, { offerTtl: 0, quarantine: 0 }, async (buffer) => {
    for (const { spec } of await buffer.all(poolsFrom(""))) {
      if (spec.reclaimAfter !== undefined) continue;
      for (const [key] of await buffer.allRows(byTime(spec.name, "h"))) buffer.set(key, null);
    }
    await buffer.flush();
  });
}

/** Rows of pools have a capacity, for the views of SQL stores. */
async function addCapacities(tx: Tx): Promise<void> {
  await withBuffer(tx, { offerTtl: 0, quarantine: 0 }, async (buffer) => {
    for (const record of await buffer.all(poolsFrom(""))) buffer.put(poolKey(record.spec.name), record);
    await buffer.flush();
  });
}

const RENAMED_FIELDS = new Map([
  ["opens", "childPool"],
  ["resting", "quarantined"],
  ["restsUntil", "quarantinedUntil"],
  ["restsFor", "quarantinedFor"],
]);
const RENAMED_WORDS = new Map<unknown, string>([
  ["resting", "quarantined"],
  ["enrolled", "imported"],
]);

/** Fields and states have the words of their documentation. */
async function renameFields(tx: Tx): Promise<void> {
  await withBuffer(tx, { offerTtl: 0, quarantine: 0 }, async (buffer) => {
    for (const span of renamedRows) {
      for (const [key, text] of await buffer.allRows(span)) buffer.set(key, withNewNames(text));
    }
    await buffer.flush();
  });
}

/** Leases, counts and history: `state` and `what` hold words, the rest are names of fields. What is not JSON is left to its readers. */
function withNewNames(text: string): string {
  const row = tryParseJson(text);
  if (typeof row !== "object" || row === null) return text;
  const fields = Object.entries(row).map(([name, value]) => [
    RENAMED_FIELDS.get(name) ?? name,
    name === "state" || name === "what" ? (RENAMED_WORDS.get(value) ?? value) : value,
  ]);
  return JSON.stringify(Object.fromEntries(fields));
}

/** The event log begins empty. An older program must not write any more: its changes would be missing in it. */
async function startEventLog(): Promise<void> {}

/**
 * Higher than the layout of any program, so that none writes to the store. The row `v/move` says why: all rows were moved `to` another
 * store, or are being moved here `from` one.
 */
const CLOSED = String(Number.MAX_SAFE_INTEGER);

export interface MoveState {
  /** Of the layout; undefined in a store that is new. */
  version?: number | undefined;
  to?: string;
  from?: string;
  /** The id of the move that is under way; absent once all rows were moved `to` another store. */
  move?: string;
  /** When the source was closed for it, RFC 3339. */
  since?: string;
}

const moveStateCodec = plainJson<MoveState>(
  shape<MoveState>({}, { version: isCount, to: isText, from: isText, move: isWord, since: isWhen }),
);

export async function readMoveState(tx: Tx): Promise<MoveState> {
  const text = await tx.get(layoutKey.at);
  const why = text === CLOSED ? await tx.get(moveKey.at) : undefined;
  if (why !== undefined) return decodeRow(moveStateCodec, moveKey.at, why);
  return text === undefined ? {} : { version: Number(text) };
}

export const closingWrites = (state: MoveState): Write[] => [
  [layoutKey.at, CLOSED],
  [moveKey.at, JSON.stringify(state)],
];
export const openingWrites = ({ version: layout = LAYOUT }: MoveState): Write[] => [
  [layoutKey.at, String(layout)],
  [moveKey.at, null],
];
/** Whether the row says whether the store is open, rather than being data. */
export const isMoveState = ([key]: Row): boolean => key === layoutKey.at || key === moveKey.at;

/** Writes the layout to a new store, and migrates an older one. `allowMoved`: a store that was moved away can be read, too. */
export async function ensureLayout(store: Store, allowMoved = false): Promise<void> {
  const state = await store.read(readMoveState);
  if (allowMoved && state.to !== undefined) return mustBeReadable(state.to, state.version);
  const found = mustBeOpen(state);
  if (found === LAYOUT) return;
  if (!store.readOnly) await store.transact(migrateRows);
  else if (found !== undefined) throw tooOldError(found);
}

/** Layout of a store before a move of all its rows; rejects a newer one. The target of a move is migrated when it is opened. */
export async function ensureMovable(store: Store): Promise<void> {
  const state = await store.read(readMoveState);
  if (state.to === undefined) await ensureLayout(store);
  else if ((state.version ?? LAYOUT) > LAYOUT) throw tooNewError(state.version!);
}

function mustBeReadable(to: string, found = LAYOUT): void {
  if (found > LAYOUT) throw tooNewError(found);
  if (found < LAYOUT)
    throw new OverlayError(
      "STORE_VERSION",
      `This store was moved to ${to} with layout ${found}; this program reads layout ${LAYOUT}.`,
      "Read the store at its new place. If the move was killed, finish it with the same `overlayctl store migrate`.",
    );
}

export interface Written<T> {
  result: T;
  /** The version of the store that the commit makes; undefined: it writes nothing. */
  version: StoreVersion | undefined;
  /** The changes that it makes, as they are in the event log. */
  events: LoggedEvent[];
}

/** A transaction that writes. The store may have been moved or migrated since it was opened. */
export function writeWithBuffer<T>(
  tx: Tx,
  options: PoolOptions,
  work: (buffer: WriteBuffer) => Promise<T>,
): Promise<Written<T>> {
  return withBuffer(tx, options, async (buffer) => {
    await buffer.prefetch([layoutKey, headKey]);
    if ((await buffer.get(layoutKey)) !== String(LAYOUT)) {
      const found = mustBeOpen(await readMoveState(tx));
      if (found !== undefined) throw tooOldError(found);
    }
    const result = await work(buffer);
    const { version, events = [] }: Partial<Advance> = buffer.hasWrites ? await advance(buffer) : {};
    await buffer.flush();
    return { result, version, events };
  });
}

/** The layout of a store that is open for this program. */
function mustBeOpen({ version: found, to, from, move, since }: MoveState): number | undefined {
  if (to !== undefined) throw move === undefined ? movedError(to) : beingMovedError(to, since);
  if (from !== undefined) throw unfinishedError(from);
  if (found !== undefined && !(found <= LAYOUT)) throw tooNewError(found);
  return found;
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

const tooOldError = (found: number): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `The store has layout ${found}; this program reads and writes layout ${LAYOUT}.`,
    "Run `overlayctl store check` where the store can be written: that migrates it.",
  );

async function migrateRows(tx: Tx): Promise<void> {
  // Another process may have migrated it already.
  const found = mustBeOpen(await readMoveState(tx)) ?? LAYOUT;
  for (let from = found; from < LAYOUT; from++) await MIGRATIONS[from - 1]!(tx);
  await tx.write([[layoutKey.at, String(LAYOUT)]]);
}
