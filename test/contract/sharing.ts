import { expect, test } from "vitest";
import { formatRangeOf } from "../../provider/ipam/errors";
import { findUsage } from "../../provider/ipam/interface";
import type { Lease, Port, Request, ValueRange } from "../../provider/ipam/types";
import { by, createFixture, createPool, type Engine, existingLease, ranges, requestFor } from "./fixture";
import { refusal } from "./refusal";

/** Several leases on one address. */
export function sharingContract(engine: Engine): void {
  const ports = (...texts: string[]): Port[] =>
    texts.map((text) => ({ protocol: text.split("/")[0] as Port["protocol"], port: Number(text.split("/")[1]) }));
  const shared = (owner: string, key: string, ...texts: string[]): Request =>
    by(owner, { sharingKey: key, ports: ports(...texts) });

  test("leases with the same key and disjoint ports share an address, which is free after the last of them ends", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const web = await pool.claim(shared("web", "k", "tcp/80", "tcp/443"));
    const dns = await pool.claim(shared("dns", "k", "udp/80"));
    expect([web.ranges, dns.ranges]).toEqual([ranges("10.0.0.1"), ranges("10.0.0.1")]);
    expect(await findUsage(pool, "pool/p")).toMatchObject({ held: 1n, reserved: 2 });
    expect((await pool.leases("pool/p")).map(({ owner }) => owner).sort()).toEqual(["dns", "web"]);
    await pool.release("pool/p", web.leaseId);
    expect((await pool.claim(by("x"))).ranges).toEqual(ranges("10.0.0.2"));
    expect((await pool.claim(shared("web", "k", "tcp/80"))).ranges).toEqual(ranges("10.0.0.1"));
    for (const owner of ["web", "dns"]) {
      await pool.release("pool/p", (await pool.find({ pool: "pool/p", owner }))!.leaseId);
    }
    expect((await pool.claim(by("y"))).ranges).toEqual(ranges("10.0.0.1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("a taken port is a conflict in preview, with its holder", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    await pool.claim(shared("web", "k", "tcp/80"));
    await expect(pool.offer(shared("other", "k", "udp/80", "tcp/80"))).rejects.toMatchObject(
      refusal("PORT_CONFLICT", "tcp/80", "10.0.0.1", "web"),
    );
    expect(await pool.find({ pool: "pool/p", owner: "other" })).toBeUndefined();
  });

  test("anotherAddress: with a taken port the request gets another address under the same key, the lowest with a free port", async () => {
    const { pool, another, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.3") });
    const ask = (owner: string, ...texts: string[]): Request => ({
      ...shared(owner, "k", ...texts),
      onPortConflict: "anotherAddress",
    });
    const on = async (request: Promise<Lease>) => formatRangeOf("address", (await request).ranges[0]!);
    expect(await on(pool.claim(ask("a", "tcp/80")))).toBe("10.0.0.1");
    const b = pool.claim({ ...ask("b", "tcp/80", "tcp/443"), ttl: 60 });
    expect(await on(b)).toBe("10.0.0.2");
    expect(await on(pool.claim(shared("c", "k", "tcp/443")))).toBe("10.0.0.1");
    // Offered in another process, then claimed in this one.
    expect(await on(another().offer(ask("d", "tcp/443")))).toBe("10.0.0.3");
    expect(await on(pool.claim(ask("e", "udp/53")))).toBe("10.0.0.1");
    expect(await on(pool.claim({ ...ask("d", "tcp/443"), values: ranges("10.0.0.3") }))).toBe("10.0.0.3");
    await expect(pool.offer(ask("f", "tcp/443"))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
    await expect(pool.offer(shared("f", "k", "tcp/443"))).rejects.toMatchObject({ code: "PORT_CONFLICT" });
    await expect(pool.offer({ ...ask("f", "tcp/80"), values: ranges("10.0.0.1") })).rejects.toMatchObject({
      code: "PORT_CONFLICT",
    });
    pass(61);
    await pool.claim(ask("g", "udp/53"));
    expect(await on(pool.claim(ask("f", "tcp/80", "tcp/443")))).toBe("10.0.0.2");
    expect(await pool.fsck()).toEqual([]);
  });

  test("anotherAddress: a holder that requests a port of a co-holder is offered another address, and keeps the old one until its claim", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const ask = (owner: string, ...texts: string[]): Request => ({
      ...shared(owner, "k", ...texts),
      onPortConflict: "anotherAddress",
    });
    await pool.claim(ask("a", "tcp/80"));
    const old = await pool.claim(ask("b", "tcp/443"));
    const offer = await pool.offer(ask("b", "tcp/443", "tcp/80"));
    expect(offer).toMatchObject({ ranges: ranges("10.0.0.2"), state: "offered" });
    expect((await pool.offer(ask("b", "tcp/443", "tcp/80"))).uid).toBe(offer.uid);
    const next = await pool.claim({ ...ask("b", "tcp/443", "tcp/80"), values: offer.ranges });
    expect(next).toMatchObject({ uid: offer.uid, state: "reserved" });
    expect(await pool.release("pool/p", old.leaseId)).toBe(true);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a key belongs to its tenant", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const of = (org: string, owner: string) => ({ ...shared(owner, "k", "tcp/80"), tenant: { org, project: "p" } });
    expect((await pool.claim(of("red", "a"))).ranges).toEqual(ranges("10.0.0.1"));
    expect((await pool.claim(of("blue", "b"))).ranges).toEqual(ranges("10.0.0.2"));
    await expect(
      pool.claim({ ...of("blue", "c"), ports: ports("tcp/81"), values: ranges("10.0.0.1") }),
    ).rejects.toMatchObject({ code: "SHARING_CONFLICT" });
  });

  test("an exclusive address cannot be shared, and a shared one cannot become exclusive", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    await pool.claim(by("alone", { values: ranges("10.0.0.1") }));
    await pool.claim({ ...shared("web", "k", "tcp/80"), values: ranges("10.0.0.2") });
    const join = { ...shared("x", "k", "tcp/81"), values: ranges("10.0.0.1") };
    await expect(pool.offer(join)).rejects.toMatchObject({ code: "IP_IN_USE" });
    await expect(pool.offer(by("x", { values: ranges("10.0.0.2") }))).rejects.toMatchObject({ code: "IP_IN_USE" });
  });

  test("the only holder of an address can change its key and ports in place, one of several cannot", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const web = await pool.claim(shared("web", "k", "tcp/80"));
    await pool.change("pool/p", web.leaseId, { sharingKey: "l", ports: ports("tcp/81") });
    expect((await pool.claim(shared("dns", "l", "tcp/80"))).ranges).toEqual(ranges("10.0.0.1"));
    await expect(pool.change("pool/p", web.leaseId, { sharingKey: null })).rejects.toMatchObject({
      code: "SHARING_CONFLICT",
    });
    await expect(pool.change("pool/p", web.leaseId, { ports: ports("tcp/80") })).rejects.toMatchObject({
      code: "PORT_CONFLICT",
    });
    await pool.change("pool/p", web.leaseId, { ports: ports("tcp/82") });
    expect(await pool.claim(shared("more", "l", "tcp/81"))).toMatchObject({ ranges: ranges("10.0.0.1") });
    expect(await pool.fsck()).toEqual([]);
  });

  test("a co-holder's end does not quarantine a shared address; the last one's end does", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const [web, dns] = [await pool.claim(shared("web", "k", "tcp/80")), await pool.claim(shared("dns", "k", "udp/53"))];
    await pool.release("pool/p", web.leaseId);
    expect((await pool.leases("pool/p")).map(({ owner, state }) => [owner, state])).toEqual([["dns", "reserved"]]);
    expect(await pool.fsck()).toEqual([]);
    await pool.release("pool/p", dns.leaseId);
    expect((await pool.leases("pool/p")).map(({ owner, state }) => [owner, state])).toEqual([["dns", "quarantined"]]);
    expect((await pool.claim(shared("web", "k", "tcp/80"))).ranges).toEqual(ranges("10.0.0.2"));
    pass(301);
    expect(await pool.fsck()).toEqual([]);
  });

  test("an expired co-holder does not count as sharing the address", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const web = await pool.claim(shared("web", "k", "tcp/80"));
    await pool.claim({ ...shared("dns", "k", "udp/53"), ttl: 60 });
    await expect(pool.change("pool/p", web.leaseId, { sharingKey: "l" })).rejects.toMatchObject({
      code: "SHARING_CONFLICT",
    });
    pass(61);
    expect(await pool.change("pool/p", web.leaseId, { sharingKey: "l" })).toMatchObject({ sharingKey: "l" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("leases that share an address are imported with their keys and ports, and contradictions are refused", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const at5 = (owner: string, port: string, key = "k") => existingLease(shared(owner, key, port), "10.0.0.5");
    const refused = await pool.importLeases([at5("web", "tcp/80"), at5("dns", "tcp/80")]);
    expect(refused.conflicts.map(({ error }) => error.code)).toEqual(["PORT_CONFLICT"]);
    const { added } = await pool.importLeases([at5("web", "tcp/80"), at5("dns", "udp/53")]);
    expect(added.map(({ owner, sharingKey }) => [owner, sharingKey])).toEqual([
      ["web", "k"],
      ["dns", "k"],
    ]);
    const other = await pool.importLeases([at5("x", "tcp/81", "other")]);
    expect(other.conflicts.map(({ error }) => error.code)).toEqual(["IP_IN_USE"]);
    expect((await pool.claim(shared("mail", "k", "tcp/25"))).ranges).toEqual(ranges("10.0.0.5"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("a lease with two addresses shares both or neither", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9", "fd00::1-fd00::9") });
    await pool.claim({ ...shared("web", "k", "tcp/80"), values: ranges("10.0.0.1", "fd00::1") });
    const half = { ...shared("dns", "k", "udp/53"), values: ranges("10.0.0.1") };
    await expect(pool.claim(half)).rejects.toMatchObject({ code: "SHARING_CONFLICT" });
    expect(await pool.claim({ ...half, values: ranges("10.0.0.1", "fd00::1") })).toMatchObject({ owner: "dns" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("holders of one key move to another address one after the other", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const old = [await pool.claim(shared("a", "k", "tcp/1")), await pool.claim(shared("b", "k", "tcp/2"))];
    const move = (owner: string, port: string) =>
      pool.claim({ ...shared(owner, "k", port), values: ranges("10.0.0.5") });
    await move("a", "tcp/1");
    await move("b", "tcp/2");
    for (const { leaseId } of old) expect(await pool.release("pool/p", leaseId)).toBe(true);
    expect((await pool.claim(shared("c", "k", "tcp/3"))).ranges).toEqual(ranges("10.0.0.5"));
    expect((await pool.claim(by("d"))).ranges).toEqual(ranges("10.0.0.1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("an address is shared only if it is of the requested family", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9", "fd00::1-fd00::9") });
    const [v4, v6] = ranges("0.0.0.0/0", "fd00::/8") as [ValueRange, ValueRange];
    const ask = (owner: string, port: string, within: ValueRange) =>
      pool.claim({ ...shared(owner, "k", port), range: within });
    expect((await ask("a", "tcp/1", v4)).ranges).toEqual(ranges("10.0.0.1"));
    expect((await ask("b", "tcp/1", v6)).ranges).toEqual(ranges("fd00::1"));
    expect((await ask("c", "tcp/2", v6)).ranges).toEqual(ranges("fd00::1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("an address of an expired lease can be shared again", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    await pool.claim({ ...shared("a", "k", "tcp/80"), ttl: 60 });
    await pool.claim(shared("b", "k", "tcp/81"));
    pass(61);
    expect((await pool.claim(shared("c", "k", "tcp/80"))).ranges).toEqual(ranges("10.0.0.1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("`evictSameTenant` evicts holders of the same tenant in any stack; leases without a tenant count as one tenant", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    const acme = { tenant: { org: "acme", project: "p" } };
    const other = { tenant: { org: "other", project: "p" } };
    const taking = (owner: string, more: Partial<Request>) => ({
      ...requestFor(owner, "10.0.0.7"),
      evictSameTenant: true,
      ...more,
    });
    const free = await pool.claim(requestFor("a", "10.0.0.7"));
    await expect(pool.claim(taking("b", acme))).rejects.toMatchObject({ code: "PLAN_STALE" });
    await expect(pool.claim(taking("b", { type: "StaticIP" }))).rejects.toMatchObject({ code: "PLAN_STALE" });
    const taken = await pool.claim(taking("b", {}));
    expect(await pool.release("pool/p", free.leaseId)).toBe(false);
    await pool.release("pool/p", taken.leaseId);
    await pool.claim(taking("c", acme));
    await expect(pool.claim(taking("d", other))).rejects.toMatchObject({ code: "PLAN_STALE" });
    await expect(pool.claim(taking("d", {}))).rejects.toMatchObject({ code: "PLAN_STALE" });
    expect(await pool.claim(taking("d", acme))).toMatchObject({ owner: "d" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("node ports are a pool of ports", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("30000-30001"), kind: "port" });
    await pool.claim(by("a", { values: ranges("30000") }));
    await expect(pool.offer(by("b", { values: ranges("30000") }))).rejects.toMatchObject(
      refusal("PORT_CONFLICT", "30000", "a"),
    );
    expect((await pool.claim(by("b"))).ranges).toEqual(ranges("30001"));
  });
}
