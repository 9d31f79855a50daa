import type { Operation } from "./history";

/** What an object does if its operations come one after another. States are JSON. */
export interface Model<S> {
  initial: S;
  /** The state after an operation; undefined where its outcome is not possible in this state. */
  step(state: S, operation: Operation): S | undefined;
}

export type Verdict = "linearizable" | "violation" | "undecided";

/** States to visit before the search gives up. Histories without a fault need about one for each operation. */
const MOST_STATES = 1_000_000;

/**
 * Whether the operations have an order that the model allows and in which none comes before one that was answered before its invocation:
 * the search of Wing and Gong, with Lowe's memory of what was visited. Operations with an unknown outcome come anywhere after their
 * invocation, or not at all.
 */
export function findOrder<S>(operations: Operation[], { initial, step }: Model<S>): Verdict {
  const answered = operations.filter(isAnswered).sort(byInvocation);
  const groups = groupPending(operations);
  const seen = new Set<string>();
  const stack: Node<S>[] = [{ first: 0, later: [], taken: groups.map(() => 0), state: initial }];
  for (let node = stack.pop(); node; node = stack.pop()) {
    if (node.first === answered.length) return "linearizable";
    const key = JSON.stringify([node.first, node.later, node.taken, node.state]);
    if (seen.has(key)) continue;
    if (seen.size >= MOST_STATES) return "undecided";
    seen.add(key);
    const { state } = node;
    const { candidates, horizon } = nextOf(node, answered);
    // The last one pushed is tried first: pending operations only where nothing else leads on.
    for (const [i, group] of groups.entries()) {
      const operation = group[node.taken[i]!];
      if (!operation || operation.invokedAt > horizon) continue;
      const next = step(state, operation);
      if (next === undefined || JSON.stringify(next) === JSON.stringify(state)) continue;
      stack.push({ ...node, taken: node.taken.map((count, j) => (j === i ? count + 1 : count)), state: next });
    }
    for (const i of candidates.reverse()) {
      const next = step(state, answered[i]!);
      if (next !== undefined) stack.push({ ...node, ...withDone(node, i), state: next });
    }
  }
  return "violation";
}

/** A set of operations that are in order: all answered ones before `first`, those in `later`, and the first so many of each pending group. */
interface Node<S> {
  first: number;
  later: number[];
  taken: number[];
  state: S;
}

export const isAnswered = ({ answeredAt }: Operation): boolean => answeredAt < Infinity;
export const byInvocation = (a: Operation, b: Operation): number => a.invokedAt - b.invokedAt;

/** Pending operations that do the same are interchangeable: the one that was invoked first stands for all. */
function groupPending(operations: Operation[]): Operation[][] {
  const groups = new Map<string, Operation[]>();
  for (const operation of operations.filter((each) => !isAnswered(each)).sort(byInvocation)) {
    const key = JSON.stringify([operation.call, operation.owner, operation.leaseId]);
    groups.set(key, [...(groups.get(key) ?? []), operation]);
  }
  return [...groups.values()];
}

/** The operations that may come next: those invoked before the earliest answer that is still due. */
function nextOf<S>({ first, later }: Node<S>, answered: Operation[]): { candidates: number[]; horizon: number } {
  let horizon = Infinity;
  const open: number[] = [];
  for (let i = first; i < answered.length && answered[i]!.invokedAt <= horizon; i++) {
    if (later.includes(i)) continue;
    open.push(i);
    horizon = Math.min(horizon, answered[i]!.answeredAt);
  }
  return { candidates: open.filter((i) => answered[i]!.invokedAt <= horizon), horizon };
}

function withDone<S>({ first, later }: Node<S>, done: number): Pick<Node<S>, "first" | "later"> {
  if (done !== first) return { first, later: [...later, done].sort((a, b) => a - b) };
  let next = first + 1;
  while (later.includes(next)) next++;
  return { first: next, later: later.filter((i) => i > next) };
}
