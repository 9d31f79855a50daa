import { OverlayError } from "../errors";
import { type Draft, drafted, type Terms } from "./draft";
import { isCount, isText, isWhen, isWord, shape } from "./fields";
import { advance } from "./identity";
import { byTime, headKey, movement, poolKey, poolsFrom, version } from "./keys";
import { decodeRow, plainJson } from "./records";
import type { Row, Store, Tx, Write } from "./store";
import type { StoreVersion } from "./types";

/** Layout of the keys. A change of `keys.ts` or `records.ts` that old programs cannot read adds a migration and one to this. */
export const VERSION = 3;

/** From version i + 1 to i + 2, each in one transaction. */
const MIGRATIONS: ((tx: Tx) => Promise<void>)[] = [withoutIdleTimes, withCapacities];

/** Who was last seen when is now kept only in pools that take back what was not seen for too long. */
async function withoutIdleTimes(tx: Tx): Promise<void> {
  await drafted(tx, { offerTtl: 0, quarantine: 0 }, async (draft) => {
    for (const { spec } of await draft.all(poolsFrom(""))) {
      if (spec.reclaimAfter !== undefined) continue;
      for (const [key] of await draft.allRows(byTime(spec.name, "h"))) draft.set(key, null);
    }
    await draft.flush();
  });
}

/** Pools have their capacity beside them, for the views of SQL stores. */
async function withCapacities(tx: Tx): Promise<void> {
  await drafted(tx, { offerTtl: 0, quarantine: 0 }, async (draft) => {
    for (const record of await draft.all(poolsFrom(""))) draft.put(poolKey(record.spec.name), record);
    await draft.flush();
  });
}

/**
 * Past every program's version, also those of long ago: nobody writes to a store that says so. A row beside it says why:
 * everything went `to` another store, or is still on its way here `from` one.
 */
const CLOSED = String(Number.MAX_SAFE_INTEGER);

export interface State {
  /** Of the layout; undefined in a store that is new. */
  version?: number | undefined;
  to?: string;
  from?: string;
  /** Which of several moves that may have been started is under way; none once everything went `to` another store. */
  move?: string;
  /** When the source was closed for it, RFC 3339. */
  since?: string;
}

const stateCodec = plainJson<State>(
  shape<State>({}, { version: isCount, to: isText, from: isText, move: isWord, since: isWhen }),
);

export async function stateOf(tx: Tx): Promise<State> {
  const text = await tx.get(version.at);
  const why = text === CLOSED ? await tx.get(movement.at) : undefined;
  if (why !== undefined) return decodeRow(stateCodec, movement.at, why);
  return text === undefined ? {} : { version: Number(text) };
}

export const closed = (state: State): Write[] => [
  [version.at, CLOSED],
  [movement.at, JSON.stringify(state)],
];
export const opened = ({ version: layout = VERSION }: State): Write[] => [
  [version.at, String(layout)],
  [movement.at, null],
];
/** Neither of these is anybody's data. */
export const isState = ([key]: Row): boolean => key === version.at || key === movement.at;

/** A store that is new gets our version, an older one is brought up to it, and one that is not ours is left alone. */
export async function ensureVersion(store: Store, looking = false): Promise<void> {
  const state = await store.read(stateOf);
  if (looking && state.to !== undefined) return;
  // What older programs wrote can be read.
  if (ours(state) !== VERSION && !store.readOnly) await store.transact(migrate);
}

/**
 * A transaction that writes. Others may have moved the store, or brought it to a newer version, since it was opened. Returns the
 * version that its commit makes, if it writes anything.
 */
export function writing<T>(
  tx: Tx,
  terms: Terms,
  work: (draft: Draft) => Promise<T>,
): Promise<[result: T, version: StoreVersion | undefined]> {
  return drafted(tx, terms, async (draft) => {
    await draft.prefetch([version, headKey]);
    if ((await draft.get(version)) !== String(VERSION)) ours(await stateOf(tx));
    const result = await work(draft);
    const next = draft.hasWrites ? await advance(draft) : undefined;
    await draft.flush();
    return [result, next];
  });
}

/** The version that it is, unless it is none for this program. */
function ours({ version: found, to, from, move, since }: State): number | undefined {
  if (to !== undefined) throw move === undefined ? moved(to) : beingMoved(to, since);
  if (from !== undefined) throw unfinished(from);
  if (found !== undefined && !(found <= VERSION)) throw tooNew(found);
  return found;
}

const beingMoved = (place: string, since = "a while ago"): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `This store is being moved to ${place} since ${since}, and cannot be written meanwhile.`,
    "Go on with that place once the move is done. If the move was killed, the same `overlayctl store migrate` finishes it, and `overlayctl store reopen` calls it off.",
  );

export const moved = (place: string): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `Everything in this store was moved to ${place}.`,
    "Set overlay:store (OVERLAY_STORE) to that place; `overlayctl store migrate` brings it back from there.",
  );

export const unfinished = (place: string): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `A move from ${place} into this store was not finished.`,
    "Make it again with the same `overlayctl store migrate`.",
  );

const tooNew = (found: number): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `The store has version ${found}; this program knows versions up to ${VERSION}.`,
    "Update pulumi-overlay.",
  );

async function migrate(tx: Tx): Promise<void> {
  // Somebody else may have been quicker.
  const found = ours(await stateOf(tx)) ?? VERSION;
  for (let from = found; from < VERSION; from++) await MIGRATIONS[from - 1]!(tx);
  await tx.write([[version.at, String(VERSION)]]);
}
