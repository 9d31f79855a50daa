import { type Program, withoutResource } from "./program";
import type { FuzzStep } from "./session";

/**
 * A shorter list of steps that still fails, found by removing parts one after another: steps, resources, then inputs and
 * kills. `fails` runs the steps on a new store. Ends at the deadline with the shortest list found so far.
 */
export async function shrinkSteps(
  steps: FuzzStep[],
  fails: (steps: FuzzStep[]) => Promise<boolean>,
  deadline: number,
): Promise<FuzzStep[]> {
  let shortest = steps;
  for (let isShorter = true; isShorter && Date.now() < deadline; ) {
    isShorter = false;
    for (const candidate of smaller(shortest)) {
      if (Date.now() >= deadline) break;
      if (!(await fails(candidate))) continue;
      shortest = candidate;
      isShorter = true;
      break;
    }
  }
  return shortest;
}

/** Large parts first. The last step is the one that fails. */
export function* smaller(steps: FuzzStep[]): Generator<FuzzStep[]> {
  for (let size = steps.length >> 1; size >= 1; size >>= 1) {
    for (let at = 0; at + size < steps.length; at += size) yield [...steps.slice(0, at), ...steps.slice(at + size)];
  }
  const names = new Set(steps.flatMap(({ program }) => program.map(({ name }) => name)));
  for (const name of names) yield inAll(steps, (program) => withoutResource(program, name));
  for (const [i, step] of steps.entries()) {
    if (step.act !== "up" || !step.kill) continue;
    const { kill: _, ...rest } = step;
    yield steps.with(i, rest);
  }
  const inputs = new Set(
    steps.flatMap(({ program }) =>
      program.flatMap(({ name, args }) => Object.keys(args).map((key) => `${name} ${key}`)),
    ),
  );
  for (const input of inputs) {
    const [name, key] = input.split(" ") as [string, string];
    if (NEEDED.has(key)) continue;
    yield inAll(steps, (program) => program.map((each) => (each.name === name ? withoutInput(each, key) : each)));
  }
}

/** Without one of these a resource is refused. */
const NEEDED = new Set([
  "pool",
  "ranges",
  "parent",
  "prefixLength",
  "network",
  "runner",
  "attach",
  "connection",
  "hubConnection",
]);

function withoutInput(each: Program[number], key: string): Program[number] {
  const { [key]: _, ...args } = each.args;
  return { ...each, args };
}

const inAll = (steps: FuzzStep[], change: (program: Program) => Program): FuzzStep[] =>
  steps.map((step) => ({ ...step, program: change(step.program) }));
