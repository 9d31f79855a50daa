import { OverlayError } from "../errors";
import { type Draft, drafted, type Terms } from "./draft";
import { byTime, poolsFrom, version } from "./keys";
import type { Rule } from "./rule";
import type { Store, Tx } from "./store";

/** Layout of the keys. A change of `keys.ts` or `records.ts` that old programs cannot read adds a migration and one to this. */
export const VERSION = 2;

/** From version i + 1 to i + 2, each in one transaction. */
const MIGRATIONS: ((tx: Tx) => Rule<void>)[] = [withoutIdleTimes];

/** Who was last seen when is now kept only in pools that take back what was not seen for too long. */
function* withoutIdleTimes(tx: Tx): Rule<void> {
  yield* drafted(tx, { offerTtl: 0, quarantine: 0 }, function* (draft) {
    for (const { spec } of yield* draft.all(poolsFrom(""))) {
      if (spec.reclaimAfter !== undefined) continue;
      for (const [key] of yield* draft.allRows(byTime(spec.name, "h"))) draft.set(key, null);
    }
    yield* draft.flush();
  });
}

/** What the row says instead, once everything was moved to another store: behind this, where to. */
const MOVED = "moved to ";
export const movedTo = (place: string): string => MOVED + place;
export const whereTo = (text: string | undefined): string | undefined =>
  text?.startsWith(MOVED) ? text.slice(MOVED.length) : undefined;

/** A store that is new gets our version, an older one is brought up to it, and one that is not ours is left alone. */
export async function ensureVersion(store: Store, looking = false): Promise<void> {
  const text = await store.read(versionRow);
  if (looking && whereTo(text) !== undefined) return;
  // What older programs wrote can be read.
  if (ours(text) !== VERSION && !store.readOnly) await store.transact("", migrate);
}

/** A transaction that writes. Others may have moved the store, or brought it to a newer version, since it was opened. */
export function writing<T>(tx: Tx, terms: Terms, work: (draft: Draft) => Rule<T>): Rule<T> {
  return drafted(tx, terms, function* (draft) {
    ours(yield* draft.get(version));
    const result = yield* work(draft);
    yield* draft.flush();
    return result;
  });
}

/** The version that it is, unless it is none for this program. */
function ours(text: string | undefined): number | undefined {
  const place = whereTo(text);
  if (place !== undefined) throw moved(place);
  const found = text === undefined ? undefined : Number(text);
  if (found !== undefined && found > VERSION) throw tooNew(found);
  return found;
}

const moved = (place: string): OverlayError =>
  new OverlayError(
    "STORE_MOVED",
    `Everything in this store was moved to ${place}.`,
    "Set overlay:store (OVERLAY_STORE) to that place; `overlayctl store migrate` brings it back from there.",
  );

const tooNew = (found: number): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `The store has version ${found}; this program knows versions up to ${VERSION}.`,
    "Update pulumi-overlay.",
  );

export function* versionRow(tx: Tx): Rule<string | undefined> {
  return (yield tx.get(version.at)) as string | undefined;
}

function* migrate(tx: Tx): Rule<void> {
  // Somebody else may have been quicker.
  const found = ours(yield* versionRow(tx)) ?? VERSION;
  for (let from = found; from < VERSION; from++) yield* MIGRATIONS[from - 1]!(tx);
  yield tx.write([[version.at, String(VERSION)]]);
}
