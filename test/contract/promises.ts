import { describe, expect, test } from "vitest";
import { findSpec } from "../../provider/ipam/interface";
import type { Request } from "../../provider/ipam/types";
import type { Pool } from "./fixture";
import { by, createFixture, createPool, type Engine, firstOf, inProgram, ranges, requestFor } from "./fixture";
import { refusal } from "./refusal";

/** An up gives the values that the preview showed, or stops with the reason. */
export function promiseContract(engine: Engine): void {
  const inStack = (stack: string, name: string) =>
    `scope/urn:pulumi:${stack}::project::overlay:index:IPReservation::${name}`;
  const [n, r, other] = [inStack("dev", "n"), inStack("dev", "r"), inStack("prod", "x")] as const;
  const small = { ranges: ranges("1-9"), kind: "id" as const };
  const onBranch = (request: Request): Request => ({ ...request, program: "branch" });

  test("an offer belongs to a request: a branch that requests a value changes nothing for main", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    expect(firstOf(await pool.offer(by(n)))).toBe(1n);
    expect(firstOf(await another().offer(onBranch(requestFor(n, "7"))))).toBe(7n);
    const up = another();
    expect(firstOf(await up.offer(by(n), { inUp: true }))).toBe(1n);
    expect(firstOf(await up.claim(requestFor(n, "1")))).toBe(1n);
    // The branch's own offer stands until it expires.
    expect(await pool.find({ pool: "pool/p", value: 7n })).toMatchObject({ owner: n, state: "offered" });
    expect(firstOf(await another().offer(onBranch(requestFor(n, "7"))))).toBe(7n);
    expect(await pool.fsck()).toEqual([]);
  });

  /** An automatic request of a program that requests these values elsewhere. */
  const auto = (owner: string, program: string, declared: string[] = [], more: Partial<Request> = {}) =>
    by(owner, { program, declared: ranges(...declared), ...more });

  test.each([
    ["n", "r"],
    ["r", "n"],
  ])(
    "a declared value is left for the resource that requests it, in preview and up, also if %s comes first",
    async (...order) => {
      const { pool, another } = await createFixture(engine);
      await createPool(pool, small);
      const requests: Record<string, Request> = { n: auto(n, "P", ["1"]), r: { ...requestFor(r, "1"), program: "P" } };
      for (const inUp of [false, false, true]) {
        const run = another();
        const given: Record<string, bigint> = {};
        for (const name of order) given[name] = firstOf(await run.offer(requests[name]!, { inUp }));
        expect(given).toEqual({ n: 2n, r: 1n });
      }
      const up = another();
      expect([firstOf(await up.claim(requestFor(n, "2"))), firstOf(await up.claim(requestFor(r, "1")))]).toEqual([
        2n,
        1n,
      ]);
      expect(await pool.fsck()).toEqual([]);
    },
  );

  test.each(["lowest", "hashed", "random"] as const)(
    "a pool that gives the %s value never gives a declared one",
    async (allocation) => {
      const { pool, another } = await createFixture(engine);
      await createPool(pool, { ...small, allocation });
      const run = another();
      const owners = Array.from({ length: 6 }, (_, i) => inStack("dev", `n${i}`));
      const given = [];
      for (const owner of owners) given.push(firstOf(await run.offer(auto(owner, "P", ["2", "5", "9"]))));
      expect(given.sort()).toEqual([1n, 3n, 4n, 6n, 7n, 8n]);
    },
  );

  test("a declared value may be of another pool: it is given where there is no other, and what was shown is kept", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-2") });
    const held = await pool.claim(requestFor(other, "2"));
    expect(firstOf(await another().offer(auto(n, "P", ["1"])))).toBe(1n);
    await pool.release("pool/p", held.leaseId);
    expect(firstOf(await another().offer(auto(n, "P", ["1"]), { inUp: true }))).toBe(1n);
    expect(await pool.fsck()).toEqual([]);
  });

  test.each([false, true])(
    "a requested value that is not declared, such as an output, is refused if the pool has chosen it in this run (up: %s)",
    async (inUp) => {
      const { pool, another } = await createFixture(engine);
      await createPool(pool, small);
      const run = another();
      expect(firstOf(await run.offer(auto(n, "P"), { inUp }))).toBe(1n);
      await expect(run.offer(requestFor(r, "1"), { inUp })).rejects.toThrow(
        /^RUNNER_ID_TAKEN: .* is promised to \S*::n\. .*request it as a literal before the program's first `await`/,
      );
      expect(await pool.find({ pool: "pool/p", value: 1n })).toMatchObject({ owner: n, state: "offered" });
    },
  );

  test("two branches may be shown one value: the first that is deployed has it, the other's up stops", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, small);
    const [main, branch] = [auto(n, "main"), { ...requestFor(r, "1"), program: "branch" }];
    expect(firstOf(await pool.offer(main))).toBe(1n);
    expect(firstOf(await another().offer(auto(n, "branch", ["1"])))).toBe(2n);
    expect(firstOf(await another().offer(branch))).toBe(1n);
    const up = another();
    expect(firstOf(await up.offer(main, { inUp: true }))).toBe(1n);
    const held = await up.claim({ ...main, values: ranges("1") });
    const stale = another().offer(branch, { inUp: true, movesAway: () => false });
    await expect(stale).rejects.toMatchObject(refusal("PLAN_STALE", "Runner id 1", "IPReservation r", n));
    pass(3601);
    await pool.release("pool/p", held.leaseId);
    pass(301);
    expect(firstOf(await another().offer(branch, { inUp: true }))).toBe(1n);
    expect(await pool.fsck()).toEqual([]);
  });

  test("two requests of one run for one value: the second is refused, and the offer is kept", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const run = another();
    const [first, second] = inProgram("main", requestFor(n, "1"), requestFor(r, "1")) as [Request, Request];
    await run.offer(first);
    await expect(run.offer(second)).rejects.toMatchObject(refusal("RUNNER_ID_TAKEN", n));
    expect(await pool.find({ pool: "pool/p", value: 1n })).toMatchObject({ owner: n });
  });

  test("if the pool has no other value, the second of the two requests is refused, in preview and up", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1") });
    for (const inUp of [false, true]) {
      const run = another();
      expect(firstOf(await run.offer(auto(n, "P", ["1"]), { inUp }))).toBe(1n);
      await expect(run.offer(requestFor(r, "1"), { inUp })).rejects.toThrow(
        /^RUNNER_ID_TAKEN: .* is promised to \S*::n\./,
      );
    }
  });

  test("an offer to another branch does not stop a request by value", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    await another().offer(onBranch(requestFor(r, "2")));
    const main = another();
    expect(firstOf(await main.offer(by(r)))).toBe(1n);
    expect(firstOf(await main.offer(requestFor(n, "2")))).toBe(2n);
    await main.claim(requestFor(n, "2"));
    const stale = another().offer(onBranch(requestFor(r, "2")), { inUp: true, movesAway: () => false });
    await expect(stale).rejects.toMatchObject(refusal("PLAN_STALE", "Runner id 2"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("a value that this run has claimed is refused to its later requests", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const up = another();
    await up.offer(by(n), { inUp: true });
    await up.claim(requestFor(n, "1"));
    await expect(up.offer(requestFor(r, "1"), { inUp: true })).rejects.toMatchObject(refusal("RUNNER_ID_TAKEN", n));
  });

  test("an offer is protected from other stacks until it expires", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, small);
    await pool.offer(by(n));
    pass(3599);
    await expect(another().offer(requestFor(other, "1"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    await expect(another().claim(requestFor(other, "1"))).rejects.toMatchObject({ code: "PLAN_STALE" });
  });

  test("an offer that expired and was taken stops an up, and is a warning in a preview", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, small);
    await pool.offer(by(n));
    pass(3601);
    await another().claim(requestFor(other, "1"));
    await expect(another().offer(by(n), { inUp: true })).rejects.toMatchObject(
      refusal("PLAN_STALE", "Runner id 1", "IPReservation n", other),
    );
    const shown = await another().offer(by(n));
    expect(firstOf(shown)).toBe(2n);
    expect(shown.warnings).toEqual([expect.stringContaining(other)]);
    expect(firstOf(await another().offer(by(n), { inUp: true }))).toBe(2n);
    expect(await pool.fsck()).toEqual([]);
  });

  test("an offer that expired and was deleted is still honoured if its value is free", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, { ...small, allocation: "random" });
    const promised = firstOf(await pool.offer(by(n)));
    pass(3601);
    await another().claim(requestFor(other, promised === 9n ? "8" : "9"));
    for (const _ of [1, 2, 3]) expect(firstOf(await another().offer(by(n), { inUp: true }))).toBe(promised);
  });

  test("an offer that a change of the pool ended stops an up", async () => {
    const { pool, another } = await createFixture(engine);
    const opener = await createPool(pool, small);
    await pool.offer(by(n));
    const spec = { name: "pool/p", kind: "id" as const, allocation: "lowest" as const, ranges: ranges("1-9") };
    await another().change(opener.pool, opener.leaseId, { childPool: { ...spec, reserved: ranges("1") } });
    await expect(another().offer(by(n), { inUp: true })).rejects.toMatchObject(
      refusal("PLAN_STALE", "Runner id 1", "IPReservation n"),
    );
    expect(await pool.fsck()).toEqual([]);
  });

  test("an offer on a value that another resource holds gets the value when that lease ends, before all others", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const held = await pool.claim(requestFor(n, "1"));
    const offer = await another().offer(requestFor(r, "1"));
    expect(offer).toMatchObject({ owner: r, state: "offered", afterLease: [held.uid] });
    expect(await pool.fsck()).toEqual([]);
    await pool.release("pool/p", held.leaseId);
    expect(await pool.find({ pool: "pool/p", value: 1n })).toMatchObject({ owner: r, state: "offered" });
    await expect(another().offer(requestFor(other, "1"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    expect(await another().claim(requestFor(r, "1"))).toMatchObject({ uid: offer.uid, state: "reserved" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("an offer on a value that its holder keeps is refused with the holder, and does not wait", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const held = await pool.claim(requestFor(n, "1"));
    const run = another();
    await run.offer(requestFor(r, "1"));
    await expect(run.markKept(held)).rejects.toMatchObject(refusal("RUNNER_ID_TAKEN", r));
    await pool.release("pool/p", held.leaseId);
    expect(await pool.find({ pool: "pool/p", value: 1n })).toBeUndefined();
    expect(firstOf(await another().offer(by(n)))).toBe(1n);
    expect(await pool.fsck()).toEqual([]);
  });

  test("values are swapped also if one resource is created before the other one is checked", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    await pool.claim(requestFor(n, "1"));
    await pool.claim(requestFor(r, "2"));
    const movesAway = () => true;
    const up = another();
    const [ofR, ofN] = inProgram("main", requestFor(r, "1"), requestFor(n, "2")) as [Request, Request];
    await up.offer(ofR, { inUp: true, movesAway });
    expect(firstOf(await up.claim(ofR))).toBe(1n);
    await up.offer(ofN, { inUp: true, movesAway });
    expect(firstOf(await up.claim(ofN))).toBe(2n);
    expect(await pool.fsck()).toEqual([]);
  });

  test.each([
    ["rests", 10],
    ["is over", 400],
  ])(
    "a value that a killed destroy released goes back to its owner, before offers of earlier previews, when it %s",
    async (_, seconds) => {
      const { pool, another, pass } = await createFixture(engine);
      await createPool(pool, small);
      const [unmerged, held] = [await pool.offer(onBranch(by(n))), await another().claim(requestFor(n, "2"))];
      expect(firstOf(unmerged)).toBe(1n);
      pass(1);
      await pool.release("pool/p", held.leaseId);
      pass(seconds);
      await another().claim(requestFor("other", "9")); // expires overdue leases
      const up = another();
      expect(firstOf(await up.offer(by(n, { preferred: held.ranges }), { inUp: true }))).toBe(2n);
      expect(firstOf(await up.claim(requestFor(n, "2")))).toBe(2n);
      expect(await pool.fsck()).toEqual([]);
    },
  );

  test("a value that a killed destroy released goes back to its owner, also if the offer to a branch has waited for it", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const held = await pool.claim(requestFor(n, "1"));
    await another().offer(onBranch(requestFor(r, "1")));
    await pool.release("pool/p", held.leaseId);
    const up = another();
    expect(firstOf(await up.offer(by(n, { preferred: held.ranges }), { inUp: true }))).toBe(1n);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a value that its owner held before is not taken from a request by value", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, small);
    const held = await pool.claim(requestFor(n, "1"));
    await pool.release("pool/p", held.leaseId);
    for (const run of [another(), another()]) {
      expect(firstOf(await run.offer(auto(n, "P", ["1"], { preferred: held.ranges })))).toBe(2n);
      expect(firstOf(await run.offer(requestFor(r, "1")))).toBe(1n);
      pass(1);
    }
  });

  test("an ended lease has an end record for thirty days", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, small);
    const { uid, leaseId } = await pool.claim(requestFor(n, "1"));
    await pool.release("pool/p", leaseId);
    expect(await pool.find({ pool: "pool/p", endedUid: uid })).toMatchObject({ owner: n, state: "quarantined" });
    pass(301);
    await another().claim(by("other"));
    expect(await pool.find({ pool: "pool/p", endedUid: uid })).toMatchObject({
      owner: n,
      state: "ended",
      end: { reason: "released" },
    });
    pass(31 * 24 * 3600);
    await another().claim(by("third"));
    expect(await pool.find({ pool: "pool/p", endedUid: uid })).toBeUndefined();
    expect(await pool.fsck()).toEqual([]);
  });

  test("a delete that has begun is marked on the lease until it is cancelled or done", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, small);
    const { leaseId } = await pool.claim(requestFor(n, "1"));
    const marked = await pool.change("pool/p", leaseId, { deleting: true });
    expect(marked.deletingSince).toBe(marked.updatedAt);
    expect((await pool.change("pool/p", leaseId, { deleting: false })).deletingSince).toBeUndefined();
  });

  describe("a pool that is deleted and created again", () => {
    const ofStack = { pool: "space/id", owner: inStack("dev", "p"), type: "IPPool", values: ranges("6") };
    const opening = {
      ...ofStack,
      childPool: { name: "pool/p", kind: "id", ranges: ranges("1-9999"), allocation: "random" },
    };
    const open = async (run: Pool) => {
      await run.offer(opening as Request, { inUp: true });
      return run.claim(opening as Request);
    };

    test("an offer in an offered pool is honoured after both have expired", async () => {
      const { pool, another, pass } = await createFixture(engine);
      await pool.offer(opening as Request);
      const promised = firstOf(await pool.offer(by(n)));
      pass(3601);
      await another().claim({ ...ofStack, owner: other, values: ranges("7") }); // expires overdue leases
      expect(await findSpec(pool, "pool/p")).toBeUndefined();
      expect(await pool.fsck()).toEqual([]);
      const up = another();
      await open(up);
      expect(firstOf(await up.offer(by(n), { inUp: true }))).toBe(promised);
      expect(await pool.fsck()).toEqual([]);
    });

    test("an up stops if another owner has the value by then", async () => {
      const { pool, another, pass } = await createFixture(engine);
      await pool.offer(opening as Request);
      const promised = firstOf(await pool.offer(by(n)));
      pass(3601);
      await another().claim({ ...ofStack, owner: other, values: ranges("7") });
      await open(another());
      await another().claim(requestFor(other, `${promised}`));
      await expect(another().offer(by(n), { inUp: true })).rejects.toMatchObject(
        refusal("PLAN_STALE", "IPReservation n"),
      );
    });

    test.each([
      ["is being deleted", false],
      ["was deleted", true],
    ])("a value that is quarantined in a pool that %s is given to its owner again", async (_, isReleased) => {
      const { pool, another, pass } = await createFixture(engine);
      const opener = await open(pool);
      const held = await pool.claim(requestFor(n, "4711"));
      await pool.release("pool/p", held.leaseId);
      await pool.close("space/id", opener.leaseId);
      if (isReleased) await pool.release("space/id", opener.leaseId);
      expect(await pool.find({ pool: "pool/p", endedUid: held.uid })).toMatchObject({ owner: n });
      expect(await pool.fsck()).toEqual([]);
      pass(10);
      const up = another();
      await open(up);
      expect(firstOf(await up.offer(by(n), { inUp: true }))).toBe(4711n);
      expect(firstOf(await up.claim(requestFor(n, "4711")))).toBe(4711n);
      expect(await pool.fsck()).toEqual([]);
    });

    test("the value that an owner held is given to it again, not one that another branch had offered to it", async () => {
      const { pool, another, pass } = await createFixture(engine);
      const opener = await open(pool);
      const [neighbour, held] = [await pool.claim(requestFor(r, "66")), await pool.claim(requestFor(n, "77"))];
      const branch = another(); // A swap: both offers wait.
      await branch.offer(onBranch(requestFor(n, "66")), { movesAway: () => true });
      await branch.offer(onBranch(requestFor(r, "77")), { movesAway: () => true });
      await pool.release("pool/p", neighbour.leaseId);
      pass(1);
      await pool.release("pool/p", held.leaseId);
      pass(1);
      await pool.close("space/id", opener.leaseId);
      await pool.release("space/id", opener.leaseId);
      pass(1);
      const up = another();
      await open(up);
      expect(firstOf(await up.offer(by(n), { inUp: true }))).toBe(77n);
      expect(await pool.fsck()).toEqual([]);
    });

    test("an offer in a pool that is being deleted is kept if the delete is cancelled", async () => {
      const { pool, another } = await createFixture(engine);
      const opener = await open(pool);
      const promised = firstOf(await another().offer(by(other)));
      await pool.close("space/id", opener.leaseId);
      await open(another());
      expect(firstOf(await another().offer(by(other), { inUp: true }))).toBe(promised);
      expect(await pool.fsck()).toEqual([]);
    });

    test("an offer of a quarantined value is honoured after the pool was deleted and the quarantine has ended", async () => {
      const { pool, another, pass } = await createFixture(engine);
      const opener = await open(pool);
      await pool.release("pool/p", (await pool.claim(requestFor(n, "4711"))).leaseId);
      expect(firstOf(await another().offer(by(n)))).toBe(4711n);
      await pool.close("space/id", opener.leaseId);
      await pool.release("space/id", opener.leaseId);
      pass(400);
      const up = another();
      await open(up);
      expect(firstOf(await up.offer(by(n), { inUp: true }))).toBe(4711n);
      expect(await pool.fsck()).toEqual([]);
    });

    test.each(["promised", "released"])(
      "a value that was %s and is excluded by avoidBoundaryIps now stops no preview",
      async (what) => {
        const { pool, another } = await createFixture(engine);
        const spec = {
          name: "pool/p",
          kind: "address" as const,
          allocation: "lowest" as const,
          ranges: ranges("10.2.0.0/28"),
        };
        const ofPool = { ...ofStack, pool: "space/default", values: spec.ranges };
        const opener = await pool.claim({ ...ofPool, childPool: spec } as Request);
        expect(firstOf(await another().offer(by(n)))).toBe(ranges("10.2.0.0")[0]!.first);
        if (what === "released") await pool.release("pool/p", (await pool.claim(requestFor(n, "10.2.0.0"))).leaseId);
        await pool.close("space/default", opener.leaseId);
        await pool.release("space/default", opener.leaseId);
        await another().claim({ ...ofPool, childPool: { ...spec, avoidBoundaryIps: true } } as Request);
        expect(firstOf(await another().offer(by(n)))).toBe(ranges("10.2.0.1")[0]!.first);
      },
    );

    test("an offer of more than thirty days ago stops no up", async () => {
      const { pool, another, pass } = await createFixture(engine);
      const opener = await open(pool);
      await another().offer(by(n));
      await pool.close("space/id", opener.leaseId);
      await pool.release("space/id", opener.leaseId);
      pass(31 * 24 * 3600);
      await pool.claim({ ...opening, childPool: { ...opening.childPool, ranges: ranges("10000-19999") } } as Request);
      expect(firstOf(await another().offer(by(n), { inUp: true }))).toBeGreaterThanOrEqual(10000n);
      expect(await pool.fsck()).toEqual([]);
    });

    test("if it is created with other values, only programs that were shown the old ones are stopped", async () => {
      const { pool, another } = await createFixture(engine);
      const opener = await open(pool);
      await another().offer(by(n, { program: "branch" }));
      await pool.close("space/id", opener.leaseId);
      await pool.release("space/id", opener.leaseId);
      await pool.claim({ ...opening, childPool: { ...opening.childPool, ranges: ranges("10000-19999") } } as Request);
      const [main, branch] = [by(n, { program: "main" }), by(n, { program: "branch" })];
      await expect(another().offer(branch, { inUp: true })).rejects.toMatchObject(
        refusal("PLAN_STALE", "IPReservation n"),
      );
      expect(firstOf(await another().offer(main, { inUp: true }))).toBeGreaterThanOrEqual(10000n);
      expect(await pool.fsck()).toEqual([]);
    });

    test("an ended lease in it has an end record for thirty days, also if it is not created again", async () => {
      const { pool, another, pass } = await createFixture(engine);
      const opener = await open(pool);
      const { uid, leaseId } = await pool.claim(requestFor(n, "1"));
      await pool.release("pool/p", leaseId);
      await pool.release("space/id", opener.leaseId);
      expect(await pool.find({ pool: "pool/p", endedUid: uid })).toMatchObject({ owner: n });
      pass(31 * 24 * 3600);
      const next = await createPool(pool, { ...small, name: "pool/more" });
      await pool.release("pool/more", (await pool.claim({ ...requestFor(r, "1"), pool: "pool/more" })).leaseId);
      await another().release(next.pool, next.leaseId);
      expect(await pool.find({ pool: "pool/p", endedUid: uid })).toBeUndefined();
      expect(await pool.fsck()).toEqual([]);
    });
  });
}
