import { withKeptMacs } from "./adopt";
import { listenersOn, listening } from "./advertised";
import { fits } from "./compare";
import type { Facts } from "./facts";
import { type Item, keyOf } from "./items";
import { withLocalRules } from "./local-rules";
import { isMine } from "./ownership";
import { scriptPath } from "./paths";
import { isScriptOf, lasting } from "./persist";
import { tunnelRulesOn } from "./shared-items";
import type { Want } from "./steps";

/** What is wanted of this very machine: what fits it, devices as they were found, and what brings it all back. */
export function onThisHost<W extends Want>(want: W, facts: Facts): W {
  if (want.items.length > 0) return { ...want, items: itemsOn(want, facts) };
  if (!want.planned) return want;
  // Devices that were taken over have MACs of their own. Without a record only the owner's script shows that they were.
  const adopt = want.adopt === true && facts.files.has(scriptPath(want.record));
  const planned = itemsOn({ ...want, items: want.planned, adopt, persist: true }, facts);
  const isListed = facts.records.some((record) => isMine(record, want));
  const tunnelRules = isListed ? [] : tunnelRulesOn(want.record.network, facts);
  const all = [...planned, ...listenersOn(facts), ...tunnelRules].map((item): [string, Item] => [keyOf(item), item]);
  return { ...want, planned: [...new Map(all).values()] };
}

function itemsOn(want: Want, facts: Facts): Item[] {
  const items = listening(
    withLocalRules(
      want.items.filter((item) => fits(item, facts)),
      facts,
      facts.records.filter((record) => isMine(record, want)).flatMap(({ items }) => items),
      want.record.network,
    ),
    facts,
  );
  const isListed = facts.records.some(({ uid }) => uid === want.record.uid);
  const adopted = isListed ? undefined : withKeptMacs({ ...want, items, adopt: true }, facts);
  const fitting = adopted && isScriptOf(want, adopted.items, facts) ? adopted : withKeptMacs({ ...want, items }, facts);
  return lasting(fitting, facts);
}
