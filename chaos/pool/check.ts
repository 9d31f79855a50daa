import { after, type Belief, type Kind, NOTHING, sure } from "./belief";
import type { Entry } from "./ledger";

export interface Violation {
  kind: Kind;
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

/** Compares all that was acknowledged with itself and with the store. Entries of one owner are in their order. */
export function violations(entries: Entry[], stored: Stored[]): Violation[] {
  const calls = byOwner(entries);
  const histories = [...calls].map(([owner, own]) => historyOf(owner, own));
  return [
    ...histories.flatMap(({ wrong }) => wrong),
    ...heldTwice(histories.flatMap(({ holdings }) => holdings)),
    ...againstStore(new Map(histories.map(({ owner, belief }) => [owner, belief])), stored),
  ];
}

function byOwner<T extends { owner: string }>(list: T[]): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const one of list) groups.set(one.owner, [...(groups.get(one.owner) ?? []), one]);
  return groups;
}

/** From an answer that granted a value to the next call that may give it up: in between it was held beyond doubt. */
interface Holding {
  owner: string;
  value: string;
  from: number;
  to: number;
}

interface History {
  owner: string;
  belief: Belief;
  holdings: Holding[];
  wrong: Violation[];
}

function historyOf(owner: string, calls: Entry[]): History {
  const [holdings, wrong]: [Holding[], Violation[]] = [[], []];
  let belief = NOTHING;
  for (const call of calls) {
    const open = holdings.at(-1);
    if (call.call === "release" && !call.stale && open?.to === Infinity) open.to = call.at;
    const step = after(belief, call);
    belief = step.belief;
    if (step.wrong) wrong.push({ owner, ...step.wrong });
    const held = sure(belief);
    if (held && (!open || open.to < Infinity || open.value !== held.value))
      holdings.push({ owner, value: held.value, from: call.answeredAt!, to: Infinity });
  }
  return { owner, belief, holdings, wrong };
}

function heldTwice(holdings: Holding[]): Violation[] {
  const sorted = [...holdings].sort((a, b) => (a.value === b.value ? a.from - b.from : a.value < b.value ? -1 : 1));
  const found: Violation[] = [];
  let last: Holding | undefined;
  for (const next of sorted) {
    const meets = last?.value === next.value && next.from < last.to;
    if (meets)
      found.push({ kind: "duplicate", owner: next.owner, what: `was given ${next.value}, which ${last!.owner} held` });
    if (!meets || next.to > last!.to) last = next;
  }
  return found;
}

function againstStore(beliefs: Map<string, Belief>, stored: Stored[]): Violation[] {
  const found: Violation[] = [];
  const say = (kind: Kind, owner: string, what: string) => found.push({ kind, owner, what });
  const leases = byOwner(stored);
  for (const [owner, { free, held }] of beliefs) {
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
    if (!beliefs.has(owner)) say("changed", owner, "has a lease, but never asked for one");
  const values = new Map<string, string>();
  for (const { owner, value } of stored) {
    const other = values.get(value);
    if (other !== undefined) say("duplicate", owner, `has ${value} in the store, and so has ${other}`);
    values.set(value, owner);
  }
  return found;
}
