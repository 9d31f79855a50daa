import { expect, test } from "vitest";
import type { Request } from "../../provider/ipam/types";
import {
  asStored,
  by,
  createFixture,
  createPool,
  type Engine,
  firstOf,
  inProgram,
  ranges,
  requestFor,
} from "./fixture";
import { refusal } from "./refusal";

/** Swaps within one stack: offers on values that another resource still holds. */
export function previewContract(engine: Engine): void {
  const inStack = (stack: string, name: string) =>
    `scope/urn:pulumi:${stack}::project::overlay:index:IPReservation::${name}`;
  const [a, b, c] = ["a", "b", "c"].map((name) => inStack("dev", name)) as [string, string, string];
  const small = { ranges: ranges("1-9"), kind: "id" as const };

  test("with offerTtl 0 a preview writes no offers, but an up does for its own claims", async () => {
    const { pool } = await createFixture(engine, { offerTtl: 0 });
    await createPool(pool, small);
    expect((await pool.describe()).whyNoOffers).toBe("overlay:offerTtl is 0");
    const [first, second] = [await pool.offer(by("a"), { inUp: true }), await pool.offer(by("b"), { inUp: true })];
    expect([first, second].map(firstOf)).toEqual([1n, 2n]);
    expect(firstOf(await pool.claim(requestFor("b", "2")))).toBe(2n);
  });

  test("two resources of one stack swap their values in one up", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const old = [await pool.claim(requestFor(a, "1")), await pool.claim(requestFor(b, "2"))];
    const up = another();
    for (const request of inProgram("main", requestFor(a, "2"), requestFor(b, "1"))) await up.offer(request);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([a, b]);
    const swapped = [await up.claim(requestFor(a, "2")), await up.claim(requestFor(b, "1"))];
    for (const { leaseId } of old) expect(await pool.release("pool/p", leaseId)).toBe(false);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([b, a]);
    expect((await pool.leases("pool/p")).map(({ leaseId }) => leaseId)).toEqual([
      swapped[1]!.leaseId,
      swapped[0]!.leaseId,
    ]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("three swap in a circle, with all creates at the same time as the checks", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const before: [string, string, string][] = [
      [a, "1", "2"],
      [b, "2", "3"],
      [c, "3", "1"],
    ];
    for (const [owner, has] of before) await pool.claim(requestFor(owner, has));
    const run = another();
    const up = async (request: Request, i: number) => {
      await new Promise((resolve) => setTimeout(resolve, i * 50));
      await run.offer(request);
      return run.claim(request);
    };
    const requests = inProgram("main", ...before.map(([owner, , next]) => requestFor(owner, next)));
    expect((await Promise.all(requests.map(up))).map(firstOf)).toEqual([2n, 3n, 1n]);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([c, a, b]);
  });

  test("a swap whose up was killed is finished by the next up", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    await pool.claim(requestFor(a, "1"));
    await pool.claim(requestFor(b, "2"));
    const killed = another();
    for (const request of inProgram("main", requestFor(a, "2"), requestFor(b, "1"))) await killed.offer(request);
    await killed.claim(requestFor(a, "2"));
    const next = another();
    for (const request of inProgram("main", requestFor(a, "2"), requestFor(b, "1"))) await next.offer(request);
    expect(firstOf(await next.claim(requestFor(a, "2")))).toBe(2n);
    expect(firstOf(await next.claim(requestFor(b, "1")))).toBe(1n);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([b, a]);
  });

  test("a value that its holder keeps: check accepts the request, create refuses it", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    const held = await pool.claim(requestFor(b, "2"));
    const up = another();
    expect(await up.offer(requestFor(a, "2"))).toMatchObject({ owner: a, ranges: ranges("2") });
    await expect(up.claim(requestFor(a, "2"))).rejects.toMatchObject({ code: "PLAN_STALE" });
    expect(await pool.find({ pool: "pool/p", value: 2n })).toEqual(asStored(held));
  });

  test("a claim waits a short time for another resource of the stack to release the value", async () => {
    const { pool, another } = await createFixture(engine, { quarantine: 0, swapWait: 3 });
    await createPool(pool, small);
    const held = await pool.claim(requestFor(b, "2"));
    const waiting = another().claim(requestFor(a, "2"));
    setTimeout(() => pool.release("pool/p", held.leaseId), 150);
    expect(firstOf(await waiting)).toBe(2n);
  });

  test("a value of another stack is not offered, whatever its owner requests", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, small);
    const foreign = inStack("prod", "x");
    await pool.claim(requestFor(foreign, "2"));
    await pool.offer(requestFor(foreign, "3"));
    await expect(pool.offer(requestFor(a, "2"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    await expect(pool.claim(requestFor(a, "2"))).rejects.toMatchObject({ code: "PLAN_STALE" });
  });

  test("two resources of one stack request one value: the second is refused in preview", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, small);
    await pool.claim(requestFor(b, "2"));
    const up = another();
    const requests = inProgram("main", ...[a, b, c].map((owner) => requestFor(owner, "2")));
    const [ofA, ofB, ofC] = requests as [Request, Request, Request];
    expect(await up.offer(ofA)).toMatchObject({ owner: a });
    await expect(up.offer(ofC)).rejects.toMatchObject(refusal("RUNNER_ID_TAKEN", a));
    await expect(up.offer(ofB)).resolves.toMatchObject({ owner: b, state: "reserved" });
    await expect(up.offer(ofC)).rejects.toMatchObject(refusal("RUNNER_ID_TAKEN", b));
  });
}
