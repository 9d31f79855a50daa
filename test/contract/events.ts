import { expect, test } from "vitest";
import { createAccessToken } from "../../provider/access/access-tokens";
import type { AccessToken, Delivery, Webhook } from "../../provider/ipam/admin";
import { findUsage, historyOf } from "../../provider/ipam/interface";
import { by, createFixture, createPool, type Engine, firstOf, ranges, requestFor } from "./fixture";

/** The event log, sessions of several users on one store, batches, access tokens and webhooks. */
export function eventContract(engine: Engine): void {
  test("changes of all processes are numbered in the order of their commits", async () => {
    const { pool, another } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    const { last: before } = await pool.events({ after: 0 });
    const second = another();
    for (const owner of ["a", "b", "c"]) {
      const lease = await second.claim(by(owner));
      await pool.release("pool/p", lease.leaseId);
    }
    const { events, last } = await second.events({ after: before });
    expect(events.map(({ what, owner }) => [what, owner])).toEqual([
      ["claimed", "a"],
      ["released", "a"],
      ["claimed", "b"],
      ["released", "b"],
      ["claimed", "c"],
      ["released", "c"],
    ]);
    const ids = events.map(({ id }) => id);
    expect(ids).toEqual([...new Set(ids)].sort((a, b) => a - b));
    expect([ids[0]! > before, ids.at(-1)]).toEqual([true, last]);
    expect(await pool.events({ after: last })).toEqual({ events: [], last });
    expect(await pool.events({})).toEqual({ events: [], last });
    const page = await pool.events({ after: ids[0]!, limit: 2 });
    expect(page.events.map(({ id }) => id)).toEqual(ids.slice(1, 3));
  });

  test("changes of one commit are read one by one, from any of them on", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    const { last } = await pool.events({ after: 0 });
    await pool.ipam.claim(["a", "b", "c", "d"].map((owner) => by(owner)));
    await another().claim(by("e"));
    const ids = (await pool.events({ after: last })).events.map(({ id }) => id);
    const owners = async (after: number, limit?: number) =>
      (await pool.events({ after, ...(limit !== undefined && { limit }) })).events.map(({ owner }) => owner).join("");
    expect([await owners(last), await owners(ids[1]!), await owners(ids[0]!, 2), await owners(ids[3]!)]).toEqual([
      "abcde",
      "cde",
      "bc",
      "e",
    ]);
  });

  test("a refused operation and an offer leave no event, also beside others in one transaction", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const { last } = await pool.events({ after: 0 });
    await Promise.allSettled([
      pool.claim(requestFor("a", "10.0.0.1")),
      pool.claim(requestFor("b", "10.0.0.1")),
      pool.offer(by("c")),
      pool.claim(requestFor("d", "10.9.9.9")),
      pool.claim(requestFor("e", "10.0.0.2")),
    ]);
    const { events } = await pool.events({ after: last });
    expect(events.map(({ owner }) => owner)).toEqual(["a", "e"]);
  });

  test("an event that is not made yet is an error", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const { last } = await pool.events({ after: 0 });
    await expect(pool.events({ after: last + 1 })).rejects.toMatchObject({ code: "EVENTS_LOST" });
  });

  const { actorName = (actor) => actor } = engine;
  test("a session carries its own actor into history and leases, also in a transaction with others", async () => {
    const { pool } = await createFixture(engine, { actor: "service@host", quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    const [ann, bob] = [pool.session({ actor: "ann" }), pool.session({ actor: "bob" })];
    const [a] = await Promise.all([ann.claim(by("a")), bob.claim(by("b")), pool.claim(by("c"))]);
    await bob.release("pool/p", a.leaseId);
    const events = (await historyOf(pool, "pool/p")).map(({ what, owner, by }) => [what, owner, by]);
    expect(events.sort()).toEqual([
      ["claimed", "a", actorName("ann")],
      ["claimed", "b", actorName("bob")],
      ["claimed", "c", actorName("service@host")],
      ["released", "a", actorName("bob")],
    ]);
    await ann.end();
    expect(await pool.claim(by("d"))).toMatchObject({ by: actorName("service@host") });
  });

  test("claims of a batch are committed all or none", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/30"), reserved: ranges("10.0.0.0") });
    const batch = (...owners: string[]) => owners.map((owner) => by(owner));
    await expect(pool.ipam.claim(batch("a", "b", "c", "d"))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
    expect(await findUsage(another(), "pool/p")).toMatchObject({ held: 0n });
    const leases = await pool.ipam.claim(batch("a", "b", "c"));
    expect(new Set(leases.map(firstOf)).size).toBe(3);
    expect(leases.map((lease) => lease.version?.version)).toEqual(Array(3).fill((await pool.describe()).version));
    expect(await pool.fsck()).toEqual([]);
  });

  test("access tokens are kept, replaced and listed", async () => {
    const { pool, another } = await createFixture(engine);
    const token: AccessToken = { id: "0a1b2c3d", name: "ci", hash: "00ff", scopes: ["read", "reserve"], createdAt: 7 };
    await pool.updateAccessTokens(() => token);
    expect(await another().findAccessToken("0a1b2c3d")).toEqual(token);
    await another().updateAccessTokens(([first]) => ({
      ...first!,
      revokedAt: 9,
      tenant: { org: "acme", project: "web" },
    }));
    expect(await pool.accessTokens()).toEqual([{ ...token, revokedAt: 9, tenant: { org: "acme", project: "web" } }]);
    expect(await pool.findAccessToken("ffffffff")).toBeUndefined();
  });

  test("of two access tokens that are created at once with one name, one is refused", async () => {
    const { pool, another } = await createFixture(engine);
    const input = { name: "ci", scopes: ["read" as const] };
    const created = await Promise.allSettled(
      [pool, another()].map((at) => createAccessToken({ pool: at.ipam, createdBy: "ann@host" }, input)),
    );
    expect(created.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
    const refused = created.find((each) => each.status === "rejected")!;
    expect(refused.reason).toMatchObject({ code: "ACCESS_TOKEN_EXISTS" });
    expect(await pool.accessTokens()).toHaveLength(1);
  });

  test("a webhook begins behind the newest event, and one process at a time changes its delivery", async () => {
    const { pool, another, pass } = await createFixture(engine);
    const second = another();
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const { last } = await pool.events({});
    const webhook: Webhook = {
      id: "0a1b2c3d",
      url: "https://example.com/",
      secret: "s3cret",
      createdAt: 7,
      pool: "pool/p",
    };
    await pool.webhooks.add(webhook);
    expect(await second.webhooks.list()).toEqual([webhook]);
    expect(await second.webhooks.deliveries()).toEqual(new Map([[webhook.id, { delivered: last }]]));

    const hold = (holder: string) => (delivery: Delivery, now: number) =>
      (delivery.heldUntil ?? 0) > now ? undefined : { ...delivery, holder, heldUntil: now + 1000 };
    const holders = await Promise.all(
      [pool, second].map((each, i) => each.webhooks.updateDelivery(webhook.id, hold(`p${i}`))),
    );
    expect(new Set(holders.map((delivery) => delivery?.holder)).size).toBe(1);
    pass(2);
    expect(await second.webhooks.updateDelivery(webhook.id, hold("p9"))).toMatchObject({
      delivered: last,
      holder: "p9",
    });

    expect(await second.webhooks.remove(webhook.id)).toBe(true);
    expect(await pool.webhooks.remove(webhook.id)).toBe(false);
    expect(await pool.webhooks.updateDelivery(webhook.id, hold("p1"))).toBeUndefined();
    expect(await pool.webhooks.list()).toEqual([]);
    expect(await pool.fsck()).toEqual([]);
  });
}
