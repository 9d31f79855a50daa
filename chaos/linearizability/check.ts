import { describeOperations, describeValue, type Operation } from "./history";
import { ANY, addressModel, idsOfClaims, ownerModel } from "./registers";
import { byInvocation, findOrder, isAnswered, type Model } from "./search";

/** A register whose history has no order that its model allows. */
export interface Anomaly {
  /** `owner NAME` or `address ADDRESS`. */
  register: string;
  /** How many operations its history has. */
  of: number;
  /** The smallest part found that has no order, whatever came before it. */
  operations: Operation[];
  /** The search gave up: it is not known whether there is an order. */
  undecided?: true;
}

/** Registers of the pool that are not linearizable. */
export function findAnomalies(history: Operation[]): Anomaly[] {
  const owners = [...groupBy(history, ({ owner }) => [owner])].map(([owner, operations]) =>
    checkRegister(`owner ${owner}`, operations, ownerModel),
  );
  const addresses = [...operationsByAddress(history)].map(([value, operations]) =>
    checkRegister(`address ${describeValue(value)}`, operations, addressModel),
  );
  return [...owners, ...addresses].flatMap((found) => found ?? []);
}

export const describeAnomaly = ({ register, of, operations, undecided }: Anomaly): string[] => [
  undecided
    ? `${register}: the search gave up on its ${of} operations`
    : `${register} is not linearizable; ${operations.length} of its ${of} operations:`,
  ...(undecided ? [] : describeOperations(operations).map((line) => `  ${line}`)),
];

function groupBy(history: Operation[], keysOf: (operation: Operation) => string[]): Map<string, Operation[]> {
  const groups = new Map<string, Operation[]>();
  for (const operation of history)
    for (const key of keysOf(operation)) {
      const group = groups.get(key);
      if (group) group.push(operation);
      else groups.set(key, [operation]);
    }
  return groups;
}

/** A claim without an answer may have taken any address: it counts where its owner was seen with a lease that no answered claim has made. */
function operationsByAddress(history: Operation[]): Map<string, Operation[]> {
  const ids = idsOfClaims(history);
  const values = new Map<string, string>();
  const unclaimed = new Map<string, Set<string>>();
  for (const { owner, outcome } of history) {
    if (outcome.type !== "ok" || !outcome.lease) continue;
    const { leaseId, value } = outcome.lease;
    values.set(leaseId, value);
    if (!ids.has(leaseId)) unclaimed.set(owner, (unclaimed.get(owner) ?? new Set()).add(value));
  }
  return groupBy(history, ({ call, owner, leaseId, outcome }) => {
    if (outcome.type === "ok" && outcome.lease) return [outcome.lease.value];
    if (call === "release" && outcome.type !== "fail")
      return [values.get(leaseId!)].filter((value) => value !== undefined);
    return call === "claim" && outcome.type === "unknown" ? [...(unclaimed.get(owner) ?? [])] : [];
  });
}

type MakeModel<S> = (operations: Operation[], initial?: typeof ANY) => Model<S>;

function checkRegister<S>(register: string, operations: Operation[], make: MakeModel<S>): Anomaly | undefined {
  const verdict = findOrder(operations, make(operations));
  if (verdict === "linearizable") return undefined;
  if (verdict === "undecided") return { register, of: operations.length, operations, undecided: true };
  return { register, of: operations.length, operations: shrinkHistory(operations, make) };
}

/**
 * The shortest prefix that has no order; of that the shortest suffix, from any state; of that without calls that change nothing.
 */
function shrinkHistory<S>(operations: Operation[], make: MakeModel<S>): Operation[] {
  const isWrong = (part: Operation[], initial?: typeof ANY) => findOrder(part, make(part, initial)) === "violation";
  const beginning = findShortestPrefix(operations, (part) => isWrong(part));
  const end = findShortestSuffix(beginning, (part) => isWrong(part, ANY));
  const initial = end.length < beginning.length ? ANY : undefined;
  const part = withoutReads(end, (rest) => isWrong(rest, initial));
  const owners = new Set(part.filter(isAnswered).map(({ owner }) => owner));
  return part.filter(({ owner }) => owners.has(owner));
}

/** Operations that were answered after the cut are pending. More operations never have more orders, so binary search finds it. */
function findShortestPrefix(operations: Operation[], isWrong: (part: Operation[]) => boolean): Operation[] {
  const ends = operations
    .filter(isAnswered)
    .map(({ answeredAt }) => answeredAt)
    .sort((a, b) => a - b);
  let [low, high] = [0, ends.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isWrong(until(operations, ends[middle]!))) high = middle;
    else low = middle + 1;
  }
  return until(operations, ends[low]!);
}

const until = (operations: Operation[], time: number): Operation[] =>
  operations
    .filter(({ invokedAt, answeredAt, call }) => invokedAt <= time && (answeredAt <= time || call !== "find"))
    .map((operation) =>
      operation.answeredAt <= time ? operation : { ...operation, answeredAt: Infinity, outcome: { type: "unknown" } },
    );

/** A history can be cut where every call that was invoked has its answer or will never have one. */
function findShortestSuffix(operations: Operation[], isWrong: (part: Operation[]) => boolean): Operation[] {
  const answered = operations.filter(isAnswered).sort(byInvocation);
  const pending = operations.filter((operation) => !isAnswered(operation));
  let latest = -Infinity;
  const cuts = answered.flatMap(({ invokedAt, answeredAt }, i) => {
    const isCut = invokedAt > latest;
    latest = Math.max(latest, answeredAt);
    return isCut ? [i] : [];
  });
  for (const cut of cuts.reverse()) {
    const part = [...answered.slice(cut), ...pending];
    if (isWrong(part)) return part;
  }
  return operations;
}

const isRead = ({ call, outcome }: Operation): boolean => call === "find" || outcome.type === "fail";

function withoutReads(operations: Operation[], isWrong: (part: Operation[]) => boolean): Operation[] {
  return operations.filter(isRead).reduce((part, read) => {
    const rest = part.filter((operation) => operation !== read);
    return isWrong(rest) ? rest : part;
  }, operations);
}
