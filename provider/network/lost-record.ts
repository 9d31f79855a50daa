import { OverlayError } from "../errors";
import type { Difference } from "./compare";
import type { Facts } from "./facts";
import type { Chain, Item } from "./items";
import { keyOf } from "./items";
import { isMine, otherRules, ownedItems, unlistedOwners, unprovenLinks, untouchedRecords } from "./ownership";
import { recordPath } from "./paths";
import type { Want } from "./steps";

/** An owner's record that is not on the host any more, or is no record. */

/** As drift, named by its file. */
export function recordDifferences(want: Want, facts: Facts): Difference[] {
  const item: Item = { kind: "file", path: recordPath(want.record) };
  if (want.items.length === 0 || facts.records.some(({ uid }) => uid === want.record.uid)) return [];
  const invalid = facts.invalidRecords.find(({ file }) => file === item.path);
  return [{ item, missing: !invalid, wrong: invalid ? [`it is not a record (${invalid.reason})`] : [] }];
}

/** The file that stands in the place of this owner's record. */
export const invalidFileOf = (want: Want, facts: Facts): string | undefined =>
  facts.invalidRecords.find(({ file }) => file === recordPath(want.record))?.file;

/** Throws when an owner leaves without a record, and something stands that may be its own, but nothing proves it. */
export function refuseLostRecord(want: Want, facts: Facts): void {
  if (facts.records.some((record) => isMine(record, want))) return;
  const links = unprovenLinks(want, facts);
  const chains = chainsInUse(want, facts);
  if (links.length + chains.length === 0) return;
  const what = [
    ...links.map(
      ({ name }) => `device ${name} (${facts.links.get(name)!.mac}) has not the MAC that it would have been given`,
    ),
    ...chains.map(({ item, rules }) => `${keyOf(item)} has rules that are in no record: ${rules.join("; ")}`),
  ];
  const commands = [
    ...links.map(({ name }) => `ip link del ${name}`),
    ...chains.flatMap(({ item, rules }) => rules.map((rule) => deletion(item, rule))),
  ];
  throw new OverlayError(
    "RECORD_LOST",
    `${recordPath(want.record)} is missing, and it cannot be told whether this is ours: ${what.join("; ")}. Nothing was changed.`,
    `If others use it, run \`pulumi up --refresh\` for their stacks first, which writes their records again; else remove it by hand (${commands.map((command) => `\`${command}\``).join(", ")}), and try again.`,
  );
}

const deletion = ({ family, table, chain }: Chain, rule: string): string =>
  `${family === 4 ? "iptables" : "ip6tables"} -t ${table} -D ${chain} ${rule}`;

/** Chains that would be removed with this owner, but have rules that are in no record. */
function chainsInUse(want: Want, facts: Facts): { item: Chain; rules: string[] }[] {
  if (unlistedOwners([want], facts).length > 0) return [];
  const mine = ownedItems(want, facts);
  const others = new Set(untouchedRecords([want], facts).flatMap(({ items }) => items.map(keyOf)));
  return mine
    .filter((item) => item.kind === "chain")
    .filter((item) => !others.has(keyOf(item)))
    .map((item) => ({ item, rules: otherRules(item, mine, facts) }))
    .filter(({ rules }) => rules.length > 0);
}
