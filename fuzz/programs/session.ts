import { isDeepStrictEqual } from "node:util";
import { findStoreFaults, freeUnknownLeases, type OpenPool, type Unfinished } from "./check-store";
import { type Arg, isValueReference, type Program } from "./program";
import type { Ended, FuzzStack, Kill, Shown, StateEntry, Values } from "./stack";

/** Runs the steps of a scenario, and compares preview, up, state and store. */

export type FuzzStep =
  /** A branch that is previewed and may never be merged. `expires`: its offers end at once. */
  | { act: "preview"; stack: number; program: Program; expires?: boolean }
  /** `insist`: run up although the preview was refused, to see that up is refused, too. */
  | { act: "up"; stack: number; program: Program; previewFirst: boolean; insist?: boolean; kill?: Kill }
  /** A destroy that was killed is followed by an up of the program. */
  | { act: "destroy"; stack: number; program: Program; kill?: Kill };

/** `refused`: with an error of ours, in preview and up alike. */
export type StepOutcome = "done" | "refused";

/** Preview and up, state and store, or two runs do not agree. */
export class Disagreement extends Error {
  constructor(
    readonly kind: string,
    detail: string,
  ) {
    super(`${kind}: ${detail}`);
  }
}

export interface RunCounts {
  previews: number;
  ups: number;
  destroys: number;
  kills: number;
  /** Values that were shown and compared with the state. */
  values: number;
  refused: number;
  /** Resources whose values were not shown, with the reason. */
  unshown: number;
}

export const newRunCounts = (): RunCounts => ({
  previews: 0,
  ups: 0,
  destroys: 0,
  kills: 0,
  values: 0,
  refused: 0,
  unshown: 0,
});

/** A stack that the CLI runs, or Pulumi's engine alone. */
export type StackUnderTest = Pick<FuzzStack, keyof FuzzStack>;

interface PromiseOfPreview {
  shown: Shown;
  /** How many ups there had been in all stacks. */
  ups: number;
  /** The offers have ended. */
  expired: boolean;
  /** A later preview, of another program of the stack, may have taken offers for resources that it does not have. */
  mayBePreempted?: boolean;
}

const preemptedIn = (stack: string): RegExp =>
  new RegExp(`PLAN_STALE: .* was promised to .* and is now promised to fuzz/urn:pulumi:${stack}::`);

/** Stacks on one store. Runs steps, and compares the output, state and store after each run. */
export class FuzzSession {
  readonly counts = newRunCounts();
  readonly #stacks = new Map<number, StackUnderTest>();
  /** What previews have shown, by stack and program. An up of the stack ends its promises. */
  readonly #promises = new Map<number, Map<string, PromiseOfPreview>>();
  readonly #values = new Map<number, Arg>();
  /** Stacks that were previewed. */
  readonly #previewed = new Set<number>();
  /** Stacks whose last run failed. */
  readonly #unfinished = new Map<number, Unfinished>();
  #ups = 0;

  constructor(
    private readonly newStack: (name: string) => StackUnderTest,
    private readonly openPool: OpenPool,
  ) {}

  async run(step: FuzzStep): Promise<StepOutcome> {
    const stack = await this.#stack(step.stack);
    const program = this.#resolve(stack, step.program);
    stack.declare(program);
    if (step.act === "preview")
      return (await this.#preview(step.stack, stack, program, step.expires)).code === 0 ? "done" : "refused";
    if (step.act === "up") return this.#up(step, stack, program);
    return this.#destroy(step, stack, program);
  }

  async #stack(index: number): Promise<StackUnderTest> {
    const known = this.#stacks.get(index);
    if (known) return known;
    const stack = this.newStack(`s${index}`);
    this.#stacks.set(index, stack);
    await stack.init();
    return stack;
  }

  /** Resolves references to values. A reference to a resource that does not exist is dropped. */
  #resolve(stack: StackUnderTest, program: Program): Program {
    const state = stack.state();
    return program.map((each) => ({
      ...each,
      args: Object.fromEntries(
        Object.entries(each.args).flatMap(([key, arg]) => {
          if (!isValueReference(arg)) return [[key, arg]];
          const value = this.#values.get(arg.id) ?? (state.get(arg.$valueOf)?.inputs[key] as Arg | undefined);
          if (value === undefined) return [];
          this.#values.set(arg.id, value);
          return [[key, value]];
        }),
      ),
    }));
  }

  async #preview(index: number, stack: StackUnderTest, program: Program, expires = false): Promise<Shown> {
    const promises = this.#promises.get(index) ?? new Map<string, PromiseOfPreview>();
    this.#promises.set(index, promises);
    this.#previewed.add(index);
    const key = JSON.stringify(program);
    const before = promises.get(key);
    const earlier = before?.expired ? undefined : before?.shown;
    const shown = expires ? await this.#previewWithExpiry(stack) : await stack.preview();
    this.counts.previews++;
    if (shown.code !== 0) mustBeOurs("preview", shown.text);
    else this.#checkUnshown(shown);
    if (earlier?.code === 0 && shown.code === 0 && !shown.text.includes("was promised")) {
      for (const [name, { inputs }] of shown.planned) {
        const planned = earlier.planned.get(name);
        if (planned) mustAgree("a second preview shows another value", name, planned.inputs, inputs);
      }
    }
    // It has ended offers to other branches that request the same value, and warned.
    if (shown.text.includes("was promised")) promises.clear();
    for (const other of promises.values()) other.mayBePreempted = true;
    promises.set(key, { shown, ups: this.#ups, expired: expires });
    return shown;
  }

  async #previewWithExpiry(stack: StackUnderTest): Promise<Shown> {
    const shown = await stack.preview({ offerTtl: 1 });
    await stack.pass(1100);
    return shown;
  }

  #checkUnshown({ planned, text }: Shown): void {
    const unshown = unshownIn({ planned });
    this.counts.unshown += unshown.length;
    if (unshown.length > 0 && !text.includes("not shown in this preview"))
      throw new Disagreement("a value is not shown, and no warning says why", unshown.join(", "));
  }

  async #up(step: FuzzStep & { act: "up" }, stack: StackUnderTest, program: Program): Promise<StepOutcome> {
    const earlier = this.#promises.get(step.stack)?.get(JSON.stringify(program));
    const shown = step.previewFirst ? await this.#preview(step.stack, stack, program) : earlier?.shown;
    const isStale = !step.previewFirst && earlier !== undefined && (earlier.expired || earlier.ups !== this.#ups);
    if (shown && shown.code !== 0) {
      this.counts.refused++;
      if (!step.insist) return "refused";
    }
    const before = stack.state();
    const ended = await this.#runUp(step, stack);
    if (ended.code !== 0) {
      mustBeOurs("up", ended.text);
      if (!this.#unfinished.has(step.stack)) this.#unfinished.set(step.stack, "failed up");
      await this.#findStoreFaults(ended.text);
      // Pulumi asks no provider about a delete in preview: a pool that other stacks use is found by up.
      const isInUse = shown !== undefined && shown.deleted.length > 0 && ended.text.includes("POOL_IN_USE: ");
      // In a full pool a preview of another branch gets the offers of this one. An up without a preview then stops, and names both.
      const isPreempted = !step.previewFirst && earlier?.mayBePreempted && preemptedIn(stack.name).test(ended.text);
      const isUndecided = shown !== undefined && isRefusedUnshown(shown, ended.text);
      const mayFail =
        shown?.code !== 0 || isStale || isInUse || isPreempted || isUndecided || shown.text.includes("POOL_NOT_FOUND");
      if (!mayFail) throw new Disagreement(ended.wasKilled ? KILLED : "preview succeeded, up failed", ended.text);
      return "refused";
    }
    if (shown && shown.code !== 0 && !isStale)
      throw new Disagreement("preview refused, up succeeded", shown.text.slice(-2000));
    this.#unfinished.delete(step.stack);
    await this.#checkDone(stack, program, before, shown);
    return "done";
  }

  async #runUp({ stack: index, kill }: FuzzStep & { act: "up" }, stack: StackUnderTest): Promise<Ended> {
    this.#promises.delete(index);
    this.#ups++;
    this.counts.ups++;
    const ended = await stack.up(kill);
    if (!ended.wasKilled) return ended;
    this.counts.kills++;
    await stack.cancel();
    this.counts.ups++;
    const again = await stack.up();
    // Its check was refused, as it would have been without the kill: no resource takes over what the killed up has claimed.
    if (again.code !== 0) await freeUnknownLeases(this.openPool, stack.name, stack.leaseIds());
    return { ...again, wasKilled: true };
  }

  async #destroy(step: FuzzStep & { act: "destroy" }, stack: StackUnderTest, program: Program): Promise<StepOutcome> {
    const before = stack.state();
    const isSettled = !this.#unfinished.has(step.stack);
    this.#promises.delete(step.stack);
    this.#ups++;
    this.counts.destroys++;
    const { code, text, wasKilled } = await stack.destroy(step.kill);
    if (step.kill) {
      if (wasKilled) this.counts.kills++;
      await stack.cancel();
      const left = stack.state();
      this.counts.ups++;
      const { code: upCode, text: upText } = await stack.up();
      // A deleted resource cannot be created again if its pool has changed since, such as its quota. Then preview refuses, too.
      if (upCode !== 0 && left.size < before.size && (await stack.preview()).code !== 0) {
        this.#unfinished.set(step.stack, "killed destroy");
        await this.#findStoreFaults(upText);
        return "refused";
      }
      if (upCode !== 0) throw new Disagreement("up after a killed destroy failed", upText);
      this.#unfinished.delete(step.stack);
      await this.#checkDone(stack, program, before, undefined);
      // A deleted resource that had an earlier name is created again with the defaults of its present name, and so are those in it.
      // A failed up may have promised the values to resources that request them. They get them when the leases end.
      if (program.some(({ aliases }) => aliases) || !isSettled) return "done";
      // The program may request other values than those of the state, if it was not deployed before the destroy.
      const pinned = new Set(program.filter(({ args }) => args.ip !== undefined).map(({ name }) => name));
      for (const [name, { inputs }] of stack.state()) {
        const held = before.get(name);
        // One whose delete was finished is a new resource. A preview of a branch may have promised its value to another one.
        const mayBePromised = !left.has(name) && this.#previewed.has(step.stack);
        if (held && !pinned.has(name) && !mayBePromised)
          mustAgree("up after a killed destroy gives another value", name, held.inputs, inputs);
      }
      return "done";
    }
    if (code === 0) this.#unfinished.delete(step.stack);
    if (code !== 0) {
      mustBeOurs("destroy", text);
      await this.#findStoreFaults();
      return "refused";
    }
    if (stack.state().size > 0)
      throw new Disagreement("destroy leaves resources", [...stack.state().keys()].join(", "));
    await this.#findStoreFaults();
    return "done";
  }

  /** After a successful up. */
  async #checkDone(
    stack: StackUnderTest,
    program: Program,
    before: Map<string, StateEntry>,
    shown: Shown | undefined,
  ): Promise<void> {
    const after = stack.state();
    const declared = program.map(({ name }) => name).sort();
    if (!isDeepStrictEqual([...after.keys()].sort(), declared))
      throw new Disagreement("state and program differ", `${[...after.keys()]} in the state, ${declared} declared`);
    for (const [name, { inputs }] of after) {
      const planned = shown?.planned.get(name);
      const held = planned ?? (shown && before.get(name));
      if (held)
        this.counts.values += mustAgree("up gives another value than preview showed", name, held.inputs, inputs);
    }
    const again = await stack.preview();
    this.counts.previews++;
    if (again.code !== 0) throw new Disagreement("a preview right after up fails", again.text);
    if (again.planned.size > 0 || again.deleted.length > 0)
      throw new Disagreement(
        "a preview right after up shows changes",
        JSON.stringify([...again.planned, again.deleted]),
      );
    await this.#findStoreFaults();
  }

  /** `failure`: what an up printed that has just failed. */
  async #findStoreFaults(failure = "after a success"): Promise<void> {
    const inStates = [...this.#stacks].flatMap(([index, stack]) =>
      stack.leaseIds().map((id) => ({ id, unfinished: this.#unfinished.get(index) })),
    );
    const [problem] = await findStoreFaults(this.openPool, inStates);
    if (problem) throw new Disagreement("store and state differ", `${problem}\n${failure}`);
  }
}

/** Names of resources whose values were not shown. */
const unshownIn = ({ planned }: Pick<Shown, "planned">): string[] =>
  [...planned].filter(([, { inputs }]) => Object.values(inputs).some(isUnknown)).map(([name]) => name);

/** Whether up has refused a resource whose inputs preview could not check, because they were not known yet. */
function isRefusedUnshown(shown: Shown, failure: string): boolean {
  const refused = [...failure.matchAll(/resource '([^']+)' has a problem: (?!PLAN_STALE)/g)].map(([, name]) => name!);
  const unshown = unshownIn(shown);
  return refused.length > 0 && refused.every((name) => unshown.includes(name));
}

const KILLED = "up after a killed up failed";

/** Every refusal must be an OverlayError, with a code. */
function mustBeOurs(what: string, text: string): void {
  if (!/\b[A-Z][A-Z0-9]*_[A-Z0-9_]+: /.test(text) && !/INVALID|is missing|does not/.test(text))
    throw new Disagreement(`${what} fails without an error code`, text.slice(-3000));
}

/** Pulumi's mark for what is not known yet. */
const UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9";

const isUnknown = (value: unknown): boolean => JSON.stringify(value)?.includes(UNKNOWN) ?? false;

/** Compares what is known of the first with the second. Returns the number of values compared. */
function mustAgree(kind: string, name: string, shown: Values, given: Values): number {
  const known = Object.entries(shown).filter(([, value]) => !isUnknown(value));
  for (const [key, value] of known) {
    if (!isDeepStrictEqual(value, given[key]))
      throw new Disagreement(kind, `${name}.${key}: ${JSON.stringify(value)}, then ${JSON.stringify(given[key])}`);
  }
  return known.length;
}
