import { parseArgs } from "node:util";
import { inParallel } from "../../lab/process";
import { Random } from "../random";
import { type Ground, prepareCli, prepareEngine } from "./ground";
import { renderReproduction } from "./report";
import { Scenario } from "./scenario";
import { Disagreement, type FuzzStep, newRunCounts, type RunCounts } from "./session";
import { shrinkSteps } from "./shrink";
import type { StoreName } from "./store";

/** `npm run fuzz -- programs`: runs random scenarios, and shrinks the one that fails. */

export interface FailedScenario {
  /** Of the scenario that failed; it alone reproduces it. */
  seed: number;
  kind: string;
  detail: string;
  steps: FuzzStep[];
}

export interface FuzzOptions {
  seed: number;
  /** No scenario begins after this time (ms since 1970). */
  until: number;
  scenarios: number;
  store: StoreName;
  /** Rounds of each scenario. Default: random. */
  rounds?: number;
  /** How long a failure is shrunk. */
  shrinkSeconds: number;
  /** Also networks and runners, on a new lab for each scenario. */
  hosts?: boolean;
  /** How many scenarios run at a time. */
  workers: number;
  /** Pulumi's engine without its CLI, on a store in memory and hosts in memory. `store` does not apply. */
  inProcess?: boolean;
}

/** `npm run fuzz -- programs`: false if anything disagreed. */
export async function fuzzPrograms(args: string[]): Promise<boolean> {
  const { values } = parseArgs({
    args,
    options: {
      seed: { type: "string", default: "1" },
      minutes: { type: "string", default: "10" },
      programs: { type: "string", default: "1000000" },
      store: { type: "string", default: "sqlite" },
      hosts: { type: "boolean", default: false },
      "in-process": { type: "boolean", default: false },
      workers: { type: "string", default: "1" },
      "shrink-seconds": { type: "string", default: "180" },
    },
  });
  const number = (name: "seed" | "minutes" | "programs" | "workers" | "shrink-seconds", least: number) =>
    numberOf(name, values[name], least);
  const { failures, counts, scenarios } = await fuzz({
    seed: number("seed", 0),
    until: Date.now() + number("minutes", 0) * 60_000,
    scenarios: number("programs", 1),
    store: values.store as StoreName,
    shrinkSeconds: number("shrink-seconds", 0),
    hosts: values.hosts,
    inProcess: values["in-process"],
    workers: number("workers", 1),
  });
  console.log(`${scenarios} programs, ${textOf(counts)}, ${failures.length} disagreements`);
  return failures.length === 0;
}

/** Minutes may have a fraction. */
function numberOf(name: string, text: string, least: number): number {
  const value = text.trim() === "" ? Number.NaN : Number(text);
  if (value >= least && (name === "minutes" ? Number.isFinite(value) : Number.isSafeInteger(value))) return value;
  throw new Error(`--${name} is ${JSON.stringify(text)}; it must be a number of at least ${least}.`);
}

const textOf = ({ previews, ups, destroys, kills, values, refused, unshown }: RunCounts): string =>
  `${previews} previews, ${ups} ups, ${destroys} destroys, ${kills} kills, ${values} values compared, ${refused} refused by preview, ${unshown} not shown`;

export async function fuzz(
  options: FuzzOptions,
): Promise<{ failures: FailedScenario[]; counts: RunCounts; scenarios: number }> {
  const runners = options.hosts ? ["r1", "r2"] : [];
  const ground = await (options.inProcess ? prepareEngine(runners) : prepareCli(options.store, runners));
  const [failures, counts] = [[] as FailedScenario[], newRunCounts()];
  let scenarios = 0;
  const work = async () => {
    while (scenarios < options.scenarios && Date.now() < options.until) {
      const seed = options.seed + scenarios++;
      const { steps, disagreement, counts: more } = await runScenario(seed, ground, options.rounds);
      for (const key of Object.keys(counts) as (keyof RunCounts)[]) counts[key] += more[key];
      console.error(`seed ${seed}: ${textOf(more)}${disagreement ? `: ${disagreement.kind}` : ""}`);
      if (!disagreement) continue;
      const failure = await shrinkFailure(steps, disagreement, ground, options.shrinkSeconds);
      failures.push({ seed, ...failure });
      console.log(`\nseed ${seed}: ${failure.detail}\n\n${renderReproduction(failure.steps)}\n`);
    }
  };
  try {
    await inParallel(
      Array.from({ length: options.workers }, () => work),
      options.workers,
    );
  } finally {
    await ground.stop();
  }
  return { failures, counts, scenarios };
}

async function runScenario(seed: number, ground: Ground, rounds?: number) {
  const scenario = new Scenario(new Random(seed), rounds, ground.runners);
  const steps: FuzzStep[] = [];
  return ground.inSession(async (session) => {
    const disagreement = await disagreementIn(async () => {
      for (let round = scenario.next(); round; round = scenario.next()) {
        for (const step of round) {
          steps.push(step);
          scenario.recordOutcome(step, await session.run(step));
        }
      }
    });
    return { steps, disagreement, counts: session.counts };
  });
}

/** Runs given steps on a new store. */
export function replay(steps: FuzzStep[], ground: Ground): Promise<Disagreement | undefined> {
  return ground.inSession((session) =>
    disagreementIn(async () => {
      for (const step of steps) await session.run(step);
    }),
  );
}

async function shrinkFailure(
  steps: FuzzStep[],
  found: Disagreement,
  ground: Ground,
  seconds: number,
): Promise<Omit<FailedScenario, "seed">> {
  let detail = found.message;
  const fails = async (candidate: FuzzStep[]) => {
    const disagreement = await replay(candidate, ground);
    if (disagreement?.kind !== found.kind) return false;
    detail = disagreement.message;
    return true;
  };
  const shortest = await shrinkSteps(steps, fails, Date.now() + seconds * 1000);
  return { kind: found.kind, detail, steps: shortest };
}

async function disagreementIn(act: () => Promise<void>): Promise<Disagreement | undefined> {
  try {
    await act();
    return undefined;
  } catch (error) {
    if (error instanceof Disagreement) return error;
    return new Disagreement("the fuzzer failed", error instanceof Error ? String(error.stack) : String(error));
  }
}
