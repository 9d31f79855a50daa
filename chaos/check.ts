import type { Entry } from "./ledger";
import { applyEntry, certainLease, type LeaseModel, NO_LEASE, type ViolationKind } from "./model";

/** Checks the answers that all workers have recorded: no value was given twice, lost or changed. */

export interface Violation {
  kind: ViolationKind;
  owner: string;
  what: string;
}

/** A lease as the store has it at the end. */
export interface Stored {
  owner: string;
  value: string;
  leaseId: string;
  state: string;
}

/** Compares all answers with each other and with the store. Entries of one owner are in the order of their calls. */
export function findViolations(entries: Entry[], stored: Stored[]): Violation[] {
  const calls = groupByOwner(entries);
  const histories = [...calls].map(([owner, own]) => replayHistory(owner, own));
  return [
    ...histories.flatMap(({ wrong }) => wrong),
    ...findDuplicates(histories.flatMap(({ holdings }) => holdings)),
    ...compareWithStore(new Map(histories.map(({ owner, model }) => [owner, model])), stored),
  ];
}

function groupByOwner<T extends { owner: string }>(list: T[]): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const one of list) groups.set(one.owner, [...(groups.get(one.owner) ?? []), one]);
  return groups;
}

/** The time between an answer that granted a value and the next call that may release it. */
interface HoldInterval {
  owner: string;
  value: string;
  from: number;
  to: number;
}

interface History {
  owner: string;
  model: LeaseModel;
  holdings: HoldInterval[];
  wrong: Violation[];
}

function replayHistory(owner: string, calls: Entry[]): History {
  const [holdings, wrong]: [HoldInterval[], Violation[]] = [[], []];
  let model = NO_LEASE;
  for (const call of calls) {
    const open = holdings.at(-1);
    if (call.call === "release" && !call.stale && open?.to === Infinity) open.to = call.at;
    const step = applyEntry(model, call);
    model = step.model;
    if (step.wrong) wrong.push({ owner, ...step.wrong });
    const held = certainLease(model);
    if (held && (!open || open.to < Infinity || open.value !== held.value))
      holdings.push({ owner, value: held.value, from: call.answeredAt!, to: Infinity });
  }
  return { owner, model, holdings, wrong };
}

function findDuplicates(holdings: HoldInterval[]): Violation[] {
  const sorted = [...holdings].sort((a, b) => (a.value === b.value ? a.from - b.from : a.value < b.value ? -1 : 1));
  const found: Violation[] = [];
  let last: HoldInterval | undefined;
  for (const next of sorted) {
    const meets = last?.value === next.value && next.from < last.to;
    if (meets)
      found.push({ kind: "duplicate", owner: next.owner, what: `was given ${next.value}, which ${last!.owner} held` });
    if (!meets || next.to > last!.to) last = next;
  }
  return found;
}

function compareWithStore(models: Map<string, LeaseModel>, stored: Stored[]): Violation[] {
  const found: Violation[] = [];
  const say = (kind: ViolationKind, owner: string, what: string) => found.push({ kind, owner, what });
  const leases = groupByOwner(stored);
  for (const [owner, { free, held }] of models) {
    const [lease, ...more] = leases.get(owner) ?? [];
    if (more.length) say("changed", owner, `has ${more.length + 1} leases`);
    else if (!lease && !free) say("lost", owner, `held ${held?.value} under ${held?.leaseId}; the store has nothing`);
    else if (lease && !held) say("lost", owner, `released ${lease.value}; the store still has it`);
    else if (lease) {
      for (const field of ["value", "leaseId", "state"] as const)
        if (held![field] !== undefined && held![field] !== lease[field])
          say("changed", owner, `${field} was ${held![field]}; the store has ${lease[field]}`);
    }
  }
  for (const owner of leases.keys())
    if (!models.has(owner)) say("changed", owner, "has a lease, but never asked for one");
  const values = new Map<string, string>();
  for (const { owner, value } of stored) {
    const other = values.get(value);
    if (other !== undefined) say("duplicate", owner, `has ${value} in the store, and so has ${other}`);
    values.set(value, owner);
  }
  return found;
}
