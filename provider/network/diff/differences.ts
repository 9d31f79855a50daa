import { isDeepStrictEqual } from "node:util";
import { diffItems, isPresent, restoresFormerState, toRecordItem } from "../kinds";
import { findEmptiedBridges } from "../kinds/device";
import { compareAccess } from "../kinds/file";
import type { Facts } from "../model/facts";
import { type DesiredState, type HostRecord, type Item, type ItemDifference, itemKey } from "../model/items";
import { recordPath } from "../model/record";
import { findKeptKeys, findOwnedItems, isOwnRecord } from "./ownership";

/**
 * How a host differs from what an owner is to have there: its items, the items that its records list beyond those, and the records. An
 * item that is to be removed stays on record until a change has verified that it is gone, so a removal that failed is found here.
 */
export function findDifferences(desired: DesiredState, facts: Facts): ItemDifference[] {
  const differences = [
    ...diffItems(desired.items, facts),
    ...findEmptiedBridges(desired.items, facts),
    ...findRemains(desired, facts),
  ];
  const named = new Set(differences.map(({ item }) => itemKey(item)));
  return [...diffRecords(desired, named, facts), ...differences];
}

/** Those of these items that are not desired. The host removes transient ones itself. */
function surplusOf(items: Item[], desired: DesiredState): Item[] {
  const keys = new Set(desired.items.map(itemKey));
  return items.filter((item) => !keys.has(itemKey(item)) && !(item.kind === "rule" && item.transient));
}

/** Items on record that are still there although they are not desired, and that no other owner needs. */
function findRemains(desired: DesiredState, facts: Facts): ItemDifference[] {
  const surplus = surplusOf(findOwnedItems(desired, facts), desired);
  const keep = findKeptKeys(surplus, [desired], facts);
  return surplus
    .filter((item) => !keep.has(itemKey(item)) && (restoresFormerState(item) || isPresent(item, facts)))
    .map((item) => ({ item, missing: false, wrong: ["still there, should be removed"] }));
}

/** The record of the owner, and those of its earlier leases, as drift that is named by their files. `named`: items that are named already. */
function diffRecords(desired: DesiredState, named: Set<string>, facts: Facts): ItemDifference[] {
  const { record } = desired;
  const { records, invalidRecords } = facts;
  const earlier = records.filter((each) => each.uid !== record.uid && isOwnRecord(each, desired));
  const stale = earlier.map((each) => recordDifference(each, ["its lease has ended, should be removed"]));
  if (desired.items.length === 0) return stale;
  const observed = records.find(({ uid }) => uid === record.uid);
  if (observed) return [...stale, ...diffRecord(observed, desired, named, facts)];
  const invalid = invalidRecords.find(({ file }) => file === recordPath(record));
  return [...stale, recordDifference(record, invalid && [`it is not a record (${invalid.reason})`])];
}

const recordDifference = (record: Pick<HostRecord, "network" | "uid">, wrong?: string[]): ItemDifference => ({
  item: { kind: "file", path: recordPath(record) },
  missing: wrong === undefined,
  wrong: wrong ?? [],
});

/** Its owner is not compared: a resource can be renamed without contact to its hosts. */
function diffRecord(observed: HostRecord, desired: DesiredState, named: Set<string>, facts: Facts): ItemDifference[] {
  const unnamed = (all: Item[]): Item[] => all.filter((each) => !named.has(itemKey(each)));
  const listed = new Map(observed.items.map((item) => [itemKey(item), item]));
  const compare = (item: Item): string[] => {
    const is = listed.get(itemKey(item));
    if (!is) return [`it does not list ${itemKey(item)}`];
    return isSameItem(is, toRecordItem(item)) ? [] : [`it lists ${itemKey(item)} with other values`];
  };
  const wrong = [
    ...unnamed(desired.items).flatMap(compare),
    ...unnamed(surplusOf(observed.items, desired)).map((item) => `it lists ${itemKey(item)}, which is not planned`),
    ...compareAccess(recordPath(observed), facts),
  ];
  return wrong.length > 0 ? [recordDifference(observed, wrong)] : [];
}

/** The order of fields does not count. */
const isSameItem = (a: Item, b: Item): boolean => isDeepStrictEqual(asJson(a), asJson(b));
const asJson = (item: Item): unknown => JSON.parse(JSON.stringify(item));
