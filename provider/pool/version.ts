import { OverlayError } from "../errors";
import { drafted } from "./draft";
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

/** A store that is new gets our version, an older one is brought up to it, and a newer one is left alone. */
export async function ensureVersion(store: Store): Promise<void> {
  const found = await store.read(readVersion);
  if (found !== undefined && found > VERSION) throw tooNew(found);
  // What older programs wrote can be read.
  if (found !== VERSION && !store.readOnly) await store.transact("", migrate);
}

const tooNew = (found: number): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `The store has version ${found}; this program knows versions up to ${VERSION}.`,
    "Update pulumi-overlay.",
  );

function* readVersion(tx: Tx): Rule<number | undefined> {
  const text = (yield tx.get(version.at)) as string | undefined;
  return text === undefined ? undefined : Number(text);
}

function* migrate(tx: Tx): Rule<void> {
  const found = (yield* readVersion(tx)) ?? VERSION;
  // Somebody else was quicker.
  if (found > VERSION) throw tooNew(found);
  for (let from = found; from < VERSION; from++) yield* MIGRATIONS[from - 1]!(tx);
  yield tx.write([[version.at, String(VERSION)]]);
}
