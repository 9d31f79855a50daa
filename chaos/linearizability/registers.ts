import type { GrantedLease } from "../pool/ledger";
import type { Operation } from "./history";
import type { Model } from "./search";

/**
 * The pool as two kinds of registers. An owner has one lease or none, and an address has one holder or none. A claim writes both; the calls
 * of one owner are sequential, so that orders of the registers make an order of the pool. A claim that found the pool full shows that
 * its owner had no lease; whether all addresses were held is not checked.
 */

/** Of a history whose beginning is left out: nothing is known yet. */
export const ANY = "any";
type Any = typeof ANY;

/** null: nothing. Value and lease id are missing where no answer has shown them. */
type Held = { value?: string; leaseId?: string; state: string };
export type OwnerRegister = Any | null | Held;

/** The lease of one owner. */
export function ownerModel(operations: Operation[], initial: Any | null = null): Model<OwnerRegister> {
  const claimed = idsOfClaims(operations);
  const step = (state: OwnerRegister, operation: Operation): OwnerRegister | undefined => {
    if (operation.outcome.type === "unknown") return applyUnanswered(state, operation);
    if (state === ANY) return firstState(operation);
    const [lease, isCurrent] = [leaseOf(operation), isIdOf(state, operation.leaseId)];
    switch (operation.call) {
      case "claim":
        if (!state) return lease ? onlyIf(lease, lease.state === "reserved") : null;
        return onlyIf(lease, state.leaseId !== lease?.leaseId && isSame(state, lease));
      case "use":
        return lease
          ? onlyIf(lease, isCurrent && isSame({ ...state!, state: "used" }, lease))
          : onlyIf(state, !isCurrent);
      case "release":
        return operation.outcome.type === "ok" ? onlyIf(null, isCurrent) : onlyIf(state, !isCurrent);
      case "find": {
        if (!lease || !state) return onlyIf(null, !lease && !state);
        // An id that no answer has shown yet was made by a claim without an answer.
        const isId = state.leaseId === undefined ? !claimed.has(lease.leaseId) : state.leaseId === lease.leaseId;
        return onlyIf(lease, isId && isSame(state, lease));
      }
    }
  };
  return { initial, step };
}

const onlyIf = <T>(state: T, isPossible: boolean): T | undefined => (isPossible ? state : undefined);
const leaseOf = ({ outcome }: Operation): GrantedLease | undefined =>
  outcome.type === "ok" ? outcome.lease : undefined;
const isIdOf = (state: Held | null, leaseId?: string): boolean => leaseId !== undefined && state?.leaseId === leaseId;
const isSame = (held: Held, lease?: GrantedLease): boolean =>
  lease !== undefined && (held.value ?? lease.value) === lease.value && held.state === lease.state;

/** The effect of a call without an answer. */
function applyUnanswered(state: OwnerRegister, { call, leaseId }: Operation): OwnerRegister {
  if (state === ANY) return ANY;
  if (call === "claim") {
    const { leaseId: _, ...held }: Held = state ?? { state: "reserved" };
    return held;
  }
  if (!isIdOf(state, leaseId)) return state;
  return call === "release" ? null : { ...state!, state: "used" };
}

/** A failed use or release leaves everything possible. */
function firstState(operation: Operation): OwnerRegister {
  const { call, outcome } = operation;
  return leaseOf(operation) ?? (outcome.type === "fail" && call !== "claim" ? ANY : null);
}

export const idsOfClaims = (operations: Operation[]): Set<string> =>
  new Set(operations.flatMap((operation) => (operation.call === "claim" ? (leaseOf(operation)?.leaseId ?? []) : [])));

export type AddressState = Any | null | { owner: string; leaseId?: string };

/** The holder of one address. Its history has no calls that failed: these are about owners. */
export function addressModel(_operations: Operation[], initial: Any | null = null): Model<AddressState> {
  const step = (state: AddressState, { call, owner, leaseId, outcome }: Operation): AddressState | undefined => {
    const id = outcome.type === "ok" ? (outcome.lease?.leaseId ?? leaseId) : leaseId;
    const isHolder = state === ANY || state?.owner === owner;
    const isCurrent = state === ANY || (isHolder && state?.leaseId === id);
    if (outcome.type === "unknown" && state === ANY) return ANY;
    switch (call) {
      case "claim":
        return onlyIf({ owner, ...(id !== undefined && { leaseId: id }) }, state === null || isHolder);
      case "release":
        return outcome.type === "ok" ? onlyIf(null, isCurrent) : isCurrent ? null : state;
      default:
        return onlyIf(
          { owner, leaseId: id! },
          isCurrent || (isHolder && (state as { leaseId?: string }).leaseId === undefined),
        );
    }
  };
  return { initial, step };
}
