import { expect, test } from "vitest";
import { by, createFixture, type Engine, extents, firstOf, opened, wants } from "./fixture";

/** Swaps within one stack: what a preview promises while another resource still holds it. */
export function previewContract(engine: Engine): void {
  const inStack = (stack: string, name: string) =>
    `scope/urn:pulumi:${stack}::project::overlay:index:IPReservation::${name}`;
  const [a, b, c] = ["a", "b", "c"].map((name) => inStack("dev", name)) as [string, string, string];
  const small = { extents: extents("1-9"), kind: "id" as const };

  test("with offerTtl 0 a preview promises nothing, and an up still has offers for its own claims", async () => {
    const { pool } = await createFixture(engine, { offerTtl: 0 });
    await opened(pool, small);
    expect(pool.whyNoOffers).toBe("overlay:offerTtl is 0");
    const [first, second] = [await pool.offer(by("a"), { inUp: true }), await pool.offer(by("b"), { inUp: true })];
    expect([first, second].map(firstOf)).toEqual([1n, 2n]);
    expect(firstOf(await pool.claim(wants("b", "2")))).toBe(2n);
  });

  test("two resources of one stack swap their values in one up", async () => {
    const { pool, another } = await createFixture(engine);
    await opened(pool, small);
    const old = [await pool.claim(wants(a, "1")), await pool.claim(wants(b, "2"))];
    const up = another();
    for (const request of [wants(a, "2"), wants(b, "1")]) await up.offer(request);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([a, b]);
    const swapped = [await up.claim(wants(a, "2")), await up.claim(wants(b, "1"))];
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
    await opened(pool, small);
    const before: [string, string, string][] = [
      [a, "1", "2"],
      [b, "2", "3"],
      [c, "3", "1"],
    ];
    for (const [owner, has] of before) await pool.claim(wants(owner, has));
    const run = another();
    const up = async ([owner, , next]: [string, string, string], i: number) => {
      await new Promise((resolve) => setTimeout(resolve, i * 50));
      await run.offer(wants(owner, next));
      return run.claim(wants(owner, next));
    };
    expect((await Promise.all(before.map(up))).map(firstOf)).toEqual([2n, 3n, 1n]);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([c, a, b]);
  });

  test("a swap that was killed in the middle is finished by the next up", async () => {
    const { pool, another } = await createFixture(engine);
    await opened(pool, small);
    await pool.claim(wants(a, "1"));
    await pool.claim(wants(b, "2"));
    const killed = another();
    for (const request of [wants(a, "2"), wants(b, "1")]) await killed.offer(request);
    await killed.claim(wants(a, "2"));
    const next = another();
    for (const request of [wants(a, "2"), wants(b, "1")]) await next.offer(request);
    expect(firstOf(await next.claim(wants(a, "2")))).toBe(2n);
    expect(firstOf(await next.claim(wants(b, "1")))).toBe(1n);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual([b, a]);
  });

  test("a neighbour that stays keeps its value: check lets it pass, create does not", async () => {
    const { pool, another } = await createFixture(engine);
    await opened(pool, small);
    const held = await pool.claim(wants(b, "2"));
    const up = another();
    expect(await up.offer(wants(a, "2"))).toMatchObject({ owner: a, extents: extents("2") });
    await expect(up.claim(wants(a, "2"))).rejects.toMatchObject({ code: "PLAN_STALE" });
    expect(await pool.find("pool/p", { value: 2n })).toEqual(held);
  });

  test("a value that a neighbour releases meanwhile is had after a short wait", async () => {
    const { pool, another } = await createFixture(engine, { quarantine: 0, swapWait: 3 });
    await opened(pool, small);
    const held = await pool.claim(wants(b, "2"));
    const waiting = another().claim(wants(a, "2"));
    setTimeout(() => pool.release("pool/p", held.leaseId), 150);
    expect(firstOf(await waiting)).toBe(2n);
  });

  test("another stack's value is never handed over, whatever its owner asks for", async () => {
    const { pool } = await createFixture(engine);
    await opened(pool, small);
    const stranger = inStack("prod", "x");
    await pool.claim(wants(stranger, "2"));
    await pool.offer(wants(stranger, "3"));
    await expect(pool.offer(wants(a, "2"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    await expect(pool.claim(wants(a, "2"))).rejects.toMatchObject({ code: "PLAN_STALE" });
  });

  test("two resources of one stack that ask for one value: the second is refused in preview", async () => {
    const { pool, another } = await createFixture(engine);
    await opened(pool, small);
    await pool.claim(wants(b, "2"));
    const up = another();
    expect(await up.offer(wants(a, "2"))).toMatchObject({ owner: a });
    await expect(up.offer(wants(c, "2"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    await expect(up.offer(wants(b, "2"))).resolves.toMatchObject({ owner: b, state: "reserved" });
    await expect(up.offer(wants(c, "2"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
  });
}
