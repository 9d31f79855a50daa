import type { Facts, FactsPart } from "../model/facts";
import type { Item, Step } from "../model/items";
import type { FileToWrite } from "../render/shell";

/**
 * What a kind of item must define. `ITEM_KINDS` in index.ts has one entry for each kind, so that the compiler names what a new kind lacks.
 * Outside of this folder other places decide by kind, each exhaustively: the key (`model/items.ts`), the form in a record
 * (`model/record.ts`), the owner of an item (`diff/ownership.ts`, `diff/shared-items.ts`), what is refused (`preflight/foreign.ts`), what can
 * cut SSH (`diff/steps.ts`), and in the tests a sample of each kind and a host that has it.
 */
export interface ItemKind<T extends Item> {
  /** Whether it needs another item of the same kind, and is created after it. */
  needsSameKind?(item: T): boolean;
  /** Whether only one owner of a network can have it. A new owner takes over the record that lists it, once the lease of that is gone. */
  isUnique: boolean;
  /** As it is stored in a record: without what follows from other items. */
  toRecord(item: T): T;
  /** For each optional field: its value on a host where it was planned before and no longer is; undefined: it stays as it is. */
  resets: Resets<T>;
  /** Whether it concerns this host; always, unless defined. */
  appliesToHost?(item: T, facts: Facts): boolean;
  /** The parts of a host's answer that `compare` needs, before a change and after it. `read/facts.ts` asks for them and parses them. */
  readFrom: { before: FactsPart[]; after: FactsPart[] };
  /** What is read after a change of it, beside the parts that are always read. */
  readBack(item: T, before: Facts): ReadBack;
  /** How the host differs, as `WHAT is OBSERVED, should be DESIRED`; undefined: the object is absent. */
  compare(item: T, facts: Facts): string[] | undefined;
  /**
   * Whether the object is present and is the one that we created; unless defined, whether it is not absent. If the object of an item on
   * record is not, an object of another program in its place is refused (`FOREIGN_CHECKS`), and it is not removed.
   */
  isPresent?(item: T, facts: Facts): boolean;
  /** It changes an object that stays, and its removal restores the former state: that is always done, and leaves nothing to verify. */
  restoresFormerState?: true;
  /** The device with which the kernel removes the object, or what this item says of it. */
  disappearsWith(item: T): string | undefined;
  /** Adds the commands of a step to a script. */
  render(step: StepOf<T>, parts: ScriptParts): void;
  /** Text fields that `render` puts into commands with `quote`. All others are refused unless they need no quotes. */
  quotedFields?: (keyof T)[];
  /**
   * The steps that restore it at boot; none for what survives a boot by itself. They must not fail on an object that is present, and
   * render only `saves`, `shell`, `ip`, `late` and `firewall`.
   */
  bootSteps(item: T): Step[];
  /**
   * The steps that lead back to `before`, if a change has cut SSH. What other programs changed meanwhile stays as it is. Undefined: in such
   * a change it is changed last, when nothing needs to be reverted any more.
   */
  invert: ((step: StepOf<T>, before: Facts) => Step[]) | undefined;
  /** Takes it out of the facts, for a dry run of what follows its removal. */
  removeFrom(facts: Facts, item: T): void;
  /** Commands for an administrator that show all objects of this kind that can be ours. */
  inspectCommands: string[];
}

type OptionalField<T> = { [F in keyof T]-?: undefined extends T[F] ? F : never }[keyof T];

export type Resets<T> = { [F in OptionalField<T>]: T[F] };

export interface ReadBack {
  devices?: string[];
  files?: string[];
  /** Routes, policy rules and firewall rules of IPv6. Addresses are read with their devices. */
  isIpv6?: boolean;
}

export type StepOf<T extends Item> = Step & { item: T };

/**
 * The commands of a change, by the tool that runs them: each is called once with all its lines where it can be. The parts run in this order,
 * whatever the order of the steps, so that no device forwards a packet before its rules are there, or after they are gone. If
 * `firewall` fails, no later part runs. A boot script has only `saves`, `firewall`, `shell`, `ip` and `late`.
 */
export interface ScriptParts {
  /** Files that are written before the first change. */
  writes: FileToWrite[];
  /** Former values of settings, saved before the first change. */
  saves: string[];
  /** Rules that are added or moved, by family and table, in iptables-restore's form. */
  firewall: Map<string, string[]>;
  /** Units that are enabled, and files that are removed. */
  files: string[];
  /** Before `ip`: what is removed before its device, forwarding that is switched off, and of the devices only anchors. */
  shell: string[];
  /** Lines of `ip -batch`, of both families; in one for `ip rule` every range would be taken for one of IPv4. */
  ip: string[];
  /** Settings of the kernel, such as forwarding, then Docker networks and zones of firewalld. */
  late: string[];
  /** Rules that are removed; not while a device is there that was to be removed. */
  removedRules: Map<string, string[]>;
}
