import type { Facts, FactsPart } from "../model/facts";
import type { Item, Step } from "../model/items";
import type { FileToWrite } from "../render/shell";

/**
 * What a kind of item must define. `ITEM_KINDS` in index.ts has one entry for each kind, so that the compiler names what a new kind lacks.
 * Outside of this folder other places decide by kind, each exhaustively: the form in a record (`model/record.ts`), the owner of an
 * item (`diff/ownership.ts`), what is refused (`preflight/foreign.ts`), and what can cut SSH (`diff/steps.ts`).
 */
export interface ItemKind<T extends Item> {
  /** Kinds with a lower number are created earlier and removed later. */
  order: number;
  /** Whether it needs another item of the same kind, and is created after it. */
  needsSameKind?(item: T): boolean;
  /** As it is stored in a record: without what follows from other items. */
  toRecord(item: T): T;
  /** For each optional field: its value on a host where it was planned before and no longer is; undefined: it stays as it is. */
  resets: Resets<T>;
  /** Whether it concerns this host; always, unless defined. */
  appliesToHost?(item: T, facts: Facts): boolean;
  /** The parts of a host's answer that `compare` needs. `read/facts.ts` asks for each part and parses it. */
  readFrom: FactsPart[];
  /** What is read after a change of it, beside the parts that are always read. */
  readBack(item: T, before: Facts): ReadBack;
  /** How the host differs, as `WHAT is OBSERVED, should be DESIRED`; undefined: the object is absent. */
  compare(item: T, facts: Facts): string[] | undefined;
  /** Whether the object is present and is the one that we created; unless defined, whether it is not absent. */
  isPresent?(item: T, facts: Facts): boolean;
  /** The device with which the kernel removes the object, or what this item says of it. */
  disappearsWith(item: T): string | undefined;
  /** Adds the commands of a step to a script. */
  render(step: StepOf<T>, parts: ScriptParts): void;
  /** The steps that restore it at boot; none for what survives a boot by itself. They must not fail on an object that is present. */
  bootSteps(item: T): Step[];
  /** The steps that lead back to `before`. What other programs changed meanwhile stays as it is. */
  invert(step: StepOf<T>, before: Facts): Step[];
  /** Takes it out of the facts, for a dry run of what follows its removal. */
  removeFrom(facts: Facts, item: T): void;
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

/** The commands of a change, by the tool that runs them: each is called once with all its lines where it can be. */
export interface ScriptParts {
  /** Files that are written before the first change. */
  writes: FileToWrite[];
  /** Former values of settings, saved before the first change. */
  saves: string[];
  /** Units that are enabled, and files that are removed. */
  files: string[];
  shell: string[];
  ip: string[];
  /** After all devices are created. */
  late: string[];
  /** By family and table, in iptables-restore's form. */
  firewall: Map<string, string[]>;
}
