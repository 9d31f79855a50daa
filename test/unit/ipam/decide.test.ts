import fc from "fast-check";
import { expect, test } from "vitest";
import { isOverlayError } from "../../../provider/errors";
import { change, close, release, touch } from "../../../provider/ipam/decide/change";
import { fsck } from "../../../provider/ipam/decide/fsck";
import { claim, offer } from "../../../provider/ipam/decide/grant";
import { expireOverdue } from "../../../provider/ipam/decide/lease";
import { listFree, listLeases, usage } from "../../../provider/ipam/decide/queries";
import { isLive, type LeaseRow, sharingKeyOf } from "../../../provider/ipam/decide/rows";
import { State } from "../../../provider/ipam/decide/state";
import { covers, mergeRanges, overlapsAny, total } from "../../../provider/ipam/ranges";
import type { Lease, PoolSpec, Request } from "../../../provider/ipam/types";
import { isSameStack } from "../../../provider/owner";
import { ranges } from "../../contract/fixture";

/** Decisions on random states, without any store: the state has all rows, and no query finds more. */
const POOL = "pool/p";
const START = Date.UTC(2030, 0, 1);

class Clock extends State {
  constructor(public override readonly now: number) {
    super(now, "all", () => ({}));
    this.terms = { offerTtl: 3600, quarantine: 300, seed: "seed" };
  }
  pass(seconds: number): void {
    (this as { now: number }).now += seconds * 1000;
  }
}

const spec = (more: Partial<PoolSpec>): PoolSpec => ({
  name: POOL,
  kind: "id",
  ranges: ranges("1-12"),
  reserved: ranges("4"),
  allocation: "lowest",
  ...more,
});

const opening = (childPool: PoolSpec): Request => ({
  pool: "space/id",
  owner: "opener",
  type: "IPPool",
  values: ranges("1"),
  childPool,
});

const inStack = (stack: string, name: string) => `scope/urn:pulumi:${stack}::project::overlay:index:T::${name}`;
const owner = fc.constantFrom(inStack("dev", "a"), inStack("dev", "b"), inStack("prod", "c"), "service/d");
const value = fc.integer({ min: 1, max: 12 }).map(BigInt);
const request = fc.record({
  owner,
  values: fc.option(value),
  declared: fc.array(value, { maxLength: 2 }),
  program: fc.constantFrom("main", "branch"),
  run: fc.constantFrom("1", "2", "3"),
  ttl: fc.option(fc.constantFrom(60, 900)),
  key: fc.option(fc.constantFrom("k", "l")),
  port: fc.constantFrom(80, 443),
});
const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ op: fc.constant("offer" as const), inUp: fc.boolean(), request }) },
  { weight: 4, arbitrary: fc.record({ op: fc.constant("claim" as const), request }) },
  {
    weight: 2,
    arbitrary: fc.record({
      op: fc.constantFrom("release" as const, "use" as const, "unuse" as const, "touch" as const),
      owner,
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ op: fc.constant("pass" as const), seconds: fc.constantFrom(1, 59, 250, 601, 3601) }),
  },
  { weight: 1, arbitrary: fc.record({ op: fc.constant("reserve" as const), value }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constantFrom("grow" as const, "close" as const) }) },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

type Asked = typeof request extends fc.Arbitrary<infer T> ? T : never;

const toRequest = ({ values, declared, ttl, key, port, ...more }: Asked): Request => ({
  pool: POOL,
  type: "T",
  ...more,
  declared: declared.map((each) => ({ first: each, last: each })),
  ...(values !== null && { values: [{ first: values, last: values }] }),
  ...(ttl !== null && { ttl }),
  ...(key !== null && { sharingKey: key, ports: [{ protocol: "tcp" as const, port }] }),
});

const heldBy = (state: State, name: string): Lease | undefined =>
  listLeases(state, POOL, { owner: name }).find(({ state: has }) => has === "reserved" || has === "used");

function act(state: Clock, opener: Lease, one: Step): void {
  const { spec: now } = state.pool(POOL)!;
  const reshape = (more: Partial<PoolSpec>) =>
    change(state, "space/id", opener.leaseId, { childPool: { ...now!, ...more } });
  if (one.op === "pass") state.pass(one.seconds);
  else if (one.op === "offer") offer(state, { ...toRequest(one.request), inUp: one.inUp });
  else if (one.op === "claim") claim(state, toRequest(one.request));
  else if (one.op === "reserve") reshape({ reserved: [{ first: one.value, last: one.value }] });
  else if (one.op === "grow") reshape({ ranges: ranges("1-14") });
  else if (!("owner" in one)) close(state, "space/id", opener.leaseId);
  else {
    const lease = heldBy(state, one.owner);
    if (!lease) return;
    if (one.op === "release") release(state, POOL, lease.leaseId);
    else if (one.op === "touch") touch(state, POOL, lease.leaseId, 60);
    else change(state, POOL, lease.leaseId, one.op === "use" ? { state: "used", usedBy: "c" } : { state: "reserved" });
  }
}

/** Leases that hold one value without sharing it. */
function doubles(leases: LeaseRow[]): string[] {
  return leases.flatMap((a, i) =>
    leases.slice(i + 1).flatMap((b) => {
      const shares = sharingKeyOf(a) !== undefined && sharingKeyOf(a) === sharingKeyOf(b);
      return !shares && a.ranges.some((range) => overlapsAny(b.ranges, range)) ? [`${a.owner} and ${b.owner}`] : [];
    }),
  );
}

function mustBeSound(state: Clock): void {
  const mark = state.mark;
  while (expireOverdue(state, POOL));
  const all = state.leases.by("pool", POOL);
  const live = all.filter((lease) => isLive(lease, state.now));
  expect(doubles(live)).toEqual([]);
  expect(fsck(state, false)).toEqual([]);
  const { spec: pool, held } = state.pool(POOL)!;
  const resting = all.flatMap((lease) => lease.resting ?? []);
  const free = [...state.space(POOL, "a").from(0n), ...state.space(POOL, "r").from(0n)];
  expect(total(mergeRanges([...live.flatMap((lease) => lease.ranges), ...resting, ...free]))).toBe(
    held + total(mergeRanges(resting)) + total(free),
  );
  for (const lease of live) expect(covers(pool!.ranges, lease.ranges)).toBe(true);
  const offers = state.offersIn(POOL);
  for (const a of offers)
    for (const b of live)
      if (!isSameStack(a.owner, b.owner) && a.owner !== b.owner && !a.afterLease.includes(b.uid))
        expect(doubles([a as unknown as LeaseRow, b])).toEqual([]);
  expect(usage(state, POOL)!.reserved + usage(state, POOL)!.used).toBe(live.length);
  expect(listFree(state, POOL).some((range) => live.some((lease) => overlapsAny(lease.ranges, range)))).toBe(false);
  state.rollBack(mark);
}

const run = (more: Partial<PoolSpec>) => (steps: Step[]) => {
  const state = new Clock(START);
  const opener = claim(state, opening(spec(more)));
  for (const one of steps) {
    const mark = state.mark;
    try {
      act(state, opener, one);
    } catch (error) {
      // A refusal has a code, names what stands in the way if a value is taken, and leaves nothing.
      if (!isOverlayError(error)) throw error;
      expect(error.code).not.toMatch(/^STORE_|^INTERNAL/);
      if (error.code === "RUNNER_ID_TAKEN") expect(error.holder).toBeDefined();
      state.rollBack(mark);
    }
    mustBeSound(state);
  }
};

test.each<[what: string, more: Partial<PoolSpec>]>([
  ["lowest", {}],
  ["hashed, some only by value", { allocation: "hashed", staticOnly: ranges("9-12") }],
  ["random, with a quota", { allocation: "random", quota: { maxReservations: 4, maxIps: 3 } }],
  ["with reclaim", { reclaimAfter: 500, ranges: ranges("1-5") }],
])("no value has two holders, and held, quarantined and free values make up the pool: %s", (_, more) => {
  fc.assert(fc.property(fc.array(step, { maxLength: 40 }), run(more)), { numRuns: Number(process.env.RUNS ?? 1000) });
});

test("a value that a stack was shown alone in one program, and with a key in another, is not shared with other stacks", () => {
  const shown = { owner: inStack("prod", "c"), run: "1", values: 2n, ttl: null, port: 80 } as const;
  run({})([
    { op: "offer", inUp: false, request: { ...shown, declared: [], program: "branch", key: null } },
    { op: "offer", inUp: false, request: { ...shown, declared: [], program: "main", key: "k" } },
    {
      op: "claim",
      request: {
        ...shown,
        declared: [],
        owner: inStack("dev", "a"),
        values: null,
        program: "main",
        key: "k",
        port: 443,
      },
    },
  ]);
});
