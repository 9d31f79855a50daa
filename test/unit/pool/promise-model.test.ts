import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { isOverlayError, type OverlayError } from "../../../provider/errors";
import { isCommitted } from "../../../provider/ipam/types";
import { describePool } from "../../../provider/pool-names";
import { createFixture, createPool, type Fixture, memoryEngine, ranges } from "../../contract/fixture";
import { OwnPool } from "./own-pool";
import {
  Killed,
  keyOf,
  ModelStack,
  OLD_RULES,
  OLD_RULES_OF_POOLS,
  POOL,
  type Rules,
  type Shown,
  type Wishes,
} from "./promise-engine";

/**
 * Two stacks with three resources on a pool of three values, or each on a pool that its stack creates and deletes. They run previews and
 * ups of random programs in random order, and are killed between any two operations; offers expire. The next up gives the values that a
 * preview has shown, or stops.
 */
const STACKS = { dev: ["n", "r"], prod: ["x"] } as const;
type StackName = keyof typeof STACKS;
type PoolSetup = "one pool" | "own pools";
/** The values of their own pools in the address space. */
const OWN_VALUES: Record<StackName, string> = { dev: "1", prod: "2" };
const VALUES = [1n, 2n, 3n];
const OFFER_TTL = 3600;

const wish = fc.oneof({ weight: 2, arbitrary: fc.constant(null) }, fc.constantFrom(...VALUES));
const program = (stack: StackName) =>
  fc.record({
    stack: fc.constant(stack),
    wishes: fc.record(Object.fromEntries(STACKS[stack].map((name) => [name, wish])), {
      requiredKeys: [],
    }) as fc.Arbitrary<Wishes>,
    isReversed: fc.boolean(),
    isChain: fc.boolean(),
  });
const anyProgram = fc.oneof({ weight: 3, arbitrary: program("dev") }, program("prod"));
const kill = fc.option(fc.integer({ min: 0, max: 9 }), { freq: 2 });
const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ act: fc.constant("preview" as const), program: anyProgram }) },
  { weight: 4, arbitrary: fc.record({ act: fc.constant("up" as const), program: anyProgram, kill }) },
  // The program of an earlier preview.
  {
    weight: 4,
    arbitrary: fc.record({ act: fc.constant("merge" as const), back: fc.integer({ min: 1, max: 3 }), kill }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      act: fc.constant("destroy" as const),
      stack: fc.constantFrom<StackName>("dev", "prod"),
      kill,
    }),
  },
  { weight: 1, arbitrary: fc.record({ act: fc.constant("pass" as const), seconds: fc.constantFrom(60, 3601) }) },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;
type Planned = typeof anyProgram extends fc.Arbitrary<infer T> ? T : never;

class Model {
  readonly #stacks: Record<StackName, ModelStack>;
  readonly #previews: Planned[] = [];
  /** The value that the last preview of a program has shown for a resource, until the next up of its stack. */
  readonly #promises = new Map<StackName, Map<string, bigint>>();
  /** The program that the stack has previewed last, with success, if no offer has expired since. */
  readonly #ready = new Map<StackName, string>();
  /** The program of the stack's last run, if that was an up that succeeded. */
  readonly #done = new Map<StackName, Planned>();

  private constructor(
    private readonly fixture: Fixture,
    rules: Rules,
    setup: PoolSetup,
  ) {
    const start = rules(() => fixture.another());
    const stack = (name: StackName) =>
      new ModelStack(start, name, setup === "own pools" ? new OwnPool(name, OWN_VALUES[name]) : undefined);
    this.#stacks = { dev: stack("dev"), prod: stack("prod") };
  }

  static async start(rules: Rules, setup: PoolSetup): Promise<Model> {
    const made = await createFixture(memoryEngine(), { swapWait: 0 });
    if (setup === "one pool") await createPool(made.pool, { name: POOL, kind: "id", ranges: ranges("1-3") });
    return new Model(made, rules, setup);
  }

  async run(one: Step): Promise<void> {
    this.fixture.pass(0.001);
    const program = one.act === "merge" ? this.#previews.at(-one.back) : "program" in one ? one.program : undefined;
    if (one.act === "preview") await this.#preview(one.program);
    else if (one.act === "destroy") await this.#destroy(one.stack, one.kill);
    else if (one.act === "pass") this.#pass(one.seconds);
    else if (program) await this.#up(program, one.kill);
    expect(await this.fixture.pool.fsck()).toEqual([]);
  }

  #pass(seconds: number): void {
    this.fixture.pass(seconds);
    if (seconds > OFFER_TTL) this.#ready.clear();
  }

  async #preview(planned: Planned): Promise<void> {
    const { stack, wishes } = planned;
    this.#previews.push(planned);
    this.#ready.delete(stack);
    const shown = await this.#stacks[stack].preview(wishes, orderOf(planned));
    this.#compareWithEarlier(stack, wishes, shown);
    if (shown.refusals.length === 0) this.#ready.set(stack, keyOf(wishes));
  }

  #compareWithEarlier(stack: StackName, wishes: Wishes, { values, warnings, refusals }: Shown): void {
    const promises = this.#promises.get(stack) ?? new Map<string, bigint>();
    this.#promises.set(stack, promises);
    if (refusals.length === 0) expect(new Set(values.values()).size, "no value is shown twice").toBe(values.size);
    for (const [name, value] of values) {
      const resource = `${name} of ${keyOf(wishes)}`;
      const earlier = promises.get(resource);
      if (earlier !== undefined && earlier !== value)
        expect(warnings.join("\n"), "a preview that shows another value says so").toMatch(
          `${earlier} of ${describePool(this.#stacks[stack].pool)} was promised`,
        );
      promises.set(resource, value);
    }
  }

  /** A kill is followed by an up with the same program. */
  async #up(planned: Planned, killAfter: number | null): Promise<void> {
    const { stack, wishes, isChain } = planned;
    const runs = this.#stacks[stack];
    const mustSucceed = this.#ready.get(stack) === keyOf(wishes);
    const promises = this.#promises.get(stack);
    this.#begin(stack);
    const error = await overlayErrorOf(async () => {
      if (killAfter !== null)
        await untilKilled(() => runs.up(wishes, orderOf(planned), { isChain, operations: killAfter }));
      await runs.up(wishes, orderOf(planned), { isChain });
    });
    if (error && mustSucceed) throw error;
    if (error) return;
    for (const [name, { value }] of runs.state)
      expect(value, `up gives ${name} what was shown`).toBe(promises?.get(`${name} of ${keyOf(wishes)}`) ?? value);
    await this.#checkLeases(runs);
    this.#done.set(stack, planned);
  }

  async #destroy(stack: StackName, killAfter: number | null): Promise<void> {
    const runs = this.#stacks[stack];
    const planned = this.#done.get(stack);
    const before = valuesOf(runs);
    this.#begin(stack);
    if (killAfter === null || !planned) await runs.destroy();
    else {
      await untilKilled(() => runs.destroy(killAfter));
      await runs.up(planned.wishes, orderOf(planned));
      expect(Object.fromEntries(valuesOf(runs)), "up after a killed destroy puts back what was").toMatchObject(
        Object.fromEntries(before),
      );
    }
    await this.#checkLeases(runs);
  }

  #begin(stack: StackName): void {
    this.#done.delete(stack);
    this.#promises.delete(stack);
    this.#ready.delete(stack);
  }

  /** The leases of the stack are those in its state. */
  async #checkLeases({ name, pool, state, ownerOf }: ModelStack): Promise<void> {
    const committed = (await this.fixture.pool.leases(pool)).filter(
      (lease) => isCommitted(lease) && lease.owner.includes(`:${name}::`),
    );
    const held = committed.map(({ owner, leaseId, ranges: [range] }) => ({ owner, leaseId, value: range!.first }));
    const known = [...state].map(([resource, each]) => ({ owner: ownerOf(resource), ...each }));
    const byValue = (a: { value: bigint }, b: { value: bigint }) => Number(a.value - b.value);
    expect(held.sort(byValue)).toEqual(known.sort(byValue));
  }
}

const valuesOf = ({ state }: ModelStack): Map<string, bigint> =>
  new Map([...state].map(([name, { value }]) => [name, value]).sort() as [string, bigint][]);
const orderOf = ({ wishes, isReversed }: Planned): string[] =>
  isReversed ? Object.keys(wishes).reverse() : Object.keys(wishes);

async function overlayErrorOf(act: () => Promise<void>): Promise<OverlayError | undefined> {
  try {
    await act();
    return undefined;
  } catch (error) {
    if (isOverlayError(error)) return error;
    throw error;
  }
}

async function untilKilled(act: () => Promise<void>): Promise<void> {
  await act().catch((error: unknown) => {
    if (!(error instanceof Killed)) throw error;
  });
}

const promiseIsKept = (rules: Rules, setup: PoolSetup) =>
  fc.asyncProperty(fc.array(step, { minLength: 2, maxLength: 10 }), async (steps) => {
    const model = await Model.start(rules, setup);
    for (const one of steps) await model.run(one);
  });

const RUNS = Number(process.env.RUNS ?? 1000);

test.each<PoolSetup>(["one pool", "own pools"])(
  "up gives the values that a preview has shown, or stops: %s",
  async (setup) => {
    await fc.assert(
      promiseIsKept((start) => start, setup),
      { numRuns: RUNS, seed: 11 },
    );
  },
  240 * RUNS,
);

describe("the model finds the faults of other rules", () => {
  const cases = (setup: PoolSetup, old: Record<string, Rules>) =>
    Object.entries(old).map(([name, rules]) => ({ name, setup, rules }));
  test.each([...cases("one pool", OLD_RULES), ...cases("own pools", OLD_RULES_OF_POOLS)])(
    "$name",
    async ({ setup, rules }) => {
      const { failed, counterexample } = await fc.check(promiseIsKept(rules, setup), { numRuns: 3000, seed: 11 });
      expect(failed).toBe(true);
      expect(counterexample![0].length).toBeLessThanOrEqual(6);
    },
  );
});
