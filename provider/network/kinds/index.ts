import type { Facts } from "../model/facts";
import { type Item, type ItemDifference, itemKey, type Step } from "../model/items";
import { requireSafeItem } from "../render/shell";
import { addressKind, linkKind } from "./device";
import { dockerKind } from "./docker";
import { fileKind, serviceKind } from "./file";
import { chainKind, jumpKind, ruleKind } from "./firewall";
import type { ItemKind, ReadBack, ScriptParts } from "./kind";
import { neighbourKind } from "./neighbour";
import { policyKind, routeKind } from "./route";
import { sysctlKind } from "./sysctl";
import { vxlanPeerKind } from "./vxlan-peer";
import { keyKind, peerKind } from "./wireguard";
import { zoneKind } from "./zone";

/** The list of item kinds, and functions for items of any kind. */

/** In the order of creation; they are removed in the reverse order. */
export const ITEM_KINDS: { [K in Item["kind"]]: ItemKind<Extract<Item, { kind: K }>> } = {
  file: fileKind,
  service: serviceKind,
  chain: chainKind,
  rule: ruleKind,
  jump: jumpKind,
  key: keyKind,
  link: linkKind,
  wgpeer: peerKind,
  vxpeer: vxlanPeerKind,
  address: addressKind,
  neighbour: neighbourKind,
  route: routeKind,
  policy: policyKind,
  sysctl: sysctlKind,
  docker: dockerKind,
  zone: zoneKind,
};

const CREATION_ORDER = new Map(Object.keys(ITEM_KINDS).map((kind, index) => [kind, index]));

/** The compiler cannot tell that an item and the entry of its kind belong together. */
const kindOfItem = (item: Item): ItemKind<Item> => ITEM_KINDS[item.kind] as unknown as ItemKind<Item>;

export const formatDifference = ({ item, missing, wrong }: ItemDifference): string =>
  `${itemKey(item)}: ${missing ? "missing" : wrong.join(", ")}`;

export const diffItems = (desired: Item[], facts: Facts): ItemDifference[] =>
  desired.flatMap((item): ItemDifference[] => {
    if (!appliesToHost(item, facts)) return [];
    const wrong = kindOfItem(item).compare(item, facts);
    if (wrong === undefined) return [{ item, missing: true, wrong: [] }];
    return wrong.length > 0 ? [{ item, missing: false, wrong }] : [];
  });

export const appliesToHost = (item: Item, facts: Facts): boolean =>
  kindOfItem(item).appliesToHost?.(item, facts) ?? true;

export function isPresent(item: Item, facts: Facts): boolean {
  const kind = kindOfItem(item);
  return kind.isPresent?.(item, facts) ?? kind.compare(item, facts) !== undefined;
}

export const restoresFormerState = (item: Item): boolean => kindOfItem(item).restoresFormerState === true;

export const isUnique = (item: Item): boolean => kindOfItem(item).isUnique;

/** Whether the kernel removes the object, or what the item says of it, with one of these devices. */
export function disappearsWith(item: Item, devices: Set<string>): boolean {
  const device = kindOfItem(item).disappearsWith(item);
  return device !== undefined && devices.has(device);
}

/** What is read after a change of these items. */
export function readBackOf(items: Item[], before: Facts): Required<ReadBack> {
  const all = items.map((item) => kindOfItem(item).readBack(item, before));
  return {
    devices: [...new Set(all.flatMap(({ devices = [] }) => devices))].sort(),
    files: [...new Set(all.flatMap(({ files = [] }) => files))].sort(),
    isIpv6: all.some(({ isIpv6 }) => isIpv6 === true),
  };
}

/** The item with default values for the fields that a former plan had set and this one has not. */
export function withResets(item: Item, former: Item): Item {
  const resets = Object.entries(kindOfItem(item).resets).filter(
    ([field, value]) => value !== undefined && field in former && !(field in item),
  );
  return { ...item, ...Object.fromEntries(resets) };
}

/** Items are created in this order, and removed in the reverse one. */
export function creationRank(item: Item): number {
  return CREATION_ORDER.get(item.kind)! * 2 + (kindOfItem(item).needsSameKind?.(item) ? 1 : 0);
}

export const toRecordItem = (item: Item): Item => kindOfItem(item).toRecord(item);

export const bootSteps = (item: Item): Step[] => kindOfItem(item).bootSteps(item);

export function renderSteps(steps: Step[]): ScriptParts {
  const parts: ScriptParts = {
    ...{ writes: [], saves: [], files: [], shell: [], ip: [], late: [] },
    ...{ firewall: new Map(), removedRules: new Map() },
  };
  for (const step of steps) {
    const kind = kindOfItem(step.item);
    requireSafeItem(step.item, kind.quotedFields ?? [], [
      ...(step.otherPrefixes ?? []),
      ...(step.ports ?? []),
      ...(step.faults?.renamedTo ? [step.faults.renamedTo] : []),
    ]);
    kind.render(step, parts);
  }
  return parts;
}

export const invertStep = (step: Step, before: Facts): Step[] => kindOfItem(step.item).invert?.(step, before) ?? [];

/** Whether it is changed only after a change that could cut SSH is confirmed. */
export const isChangedLast = (item: Item): boolean => kindOfItem(item).invert === undefined;

/** Show all that can be ours on a host. A device, bridge or Docker network has the name that the resource gave it. */
export const INSPECT_COMMANDS = [...new Set(Object.values(ITEM_KINDS).flatMap((kind) => kind.inspectCommands))];

/** The facts of a host after these items were removed. */
export function factsWithout(items: Item[], facts: Facts): Facts {
  const after = structuredClone(facts);
  for (const item of items) kindOfItem(item).removeFrom(after, item);
  return after;
}
