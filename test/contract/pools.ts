import { expect, test } from "vitest";
import type { Write } from "../../provider/pool/store";
import type { PoolSpec, Request } from "../../provider/pool/types";
import { closed } from "../../provider/pool/version";
import { by, type Engine, extents, fact, firstOf, opened, wants, world } from "./world";

/** Pools that leases open: networks with their runners, runners with their addresses. */
export function poolContract(engine: Engine): void {
  const network = (name: string, cidr: string, more: Partial<PoolSpec> = {}): Request & { opens: PoolSpec } => ({
    pool: "space/default",
    owner: `network ${name}`,
    type: "OverlayNetwork",
    want: extents(cidr),
    names: [`network/${name}`],
    opens: { name: `network/${name}`, kind: "id", extents: extents("1-63"), allocation: "lowest", ...more },
  });
  const runner = (net: string, name: string): Request => ({
    pool: `network/${net}`,
    owner: `runner ${name}`,
    type: "RunnerSubnet",
    names: [`runner/${net}/${name}`],
    opens: {
      name: `runner/${net}/${name}`,
      kind: "address",
      extents: extents("10.1.0.2-10.1.0.9"),
      allocation: "lowest",
    },
  });
  const address = (net: string, name: string, owner: string): Request => ({
    pool: `runner/${net}/${name}`,
    owner,
    type: "IPReservation",
  });

  test.each<[string, Write[], string]>([
    [
      "brought to a newer version",
      [["v", "99"]],
      "STORE_VERSION: The store has version 99; this program knows versions up to 2.",
    ],
    [
      "moved away",
      closed({ to: "sqlite:/new.db", version: 2 }),
      "STORE_MOVED: Everything in this store was moved to sqlite:/new.db.",
    ],
  ])("a store that was %s while it was open takes no more writes", async (_what, state, message) => {
    const { pool, store } = await world(engine);
    await opened(pool, { extents: extents("10.0.0.0/24") });
    const lease = await pool.claim(by("a"));
    await store.transact("", function* (tx) {
      yield tx.write(state);
    });
    const writes = [pool.claim(by("b")), pool.offer(by("c")), pool.release("pool/p", lease.leaseId)];
    for (const result of await Promise.allSettled(writes))
      expect(result).toMatchObject({ status: "rejected", reason: { message: expect.stringContaining(message) } });
    await expect(pool.fsck({ repair: true })).rejects.toThrow(message);
    expect(await pool.fsck()).toEqual([]);
    expect(await pool.leases("pool/p")).toEqual([lease]);
  });

  test("a whole preview stands on offers, and its up finds the same values", async () => {
    const { pool, another } = await world(engine);
    await pool.offer(network("n", "10.0.0.0/8", { data: { vni: 100 } }));
    expect(firstOf(await pool.offer(runner("n", "r")))).toBe(1n);
    const promised = await pool.offer(address("n", "r", "ip"));
    const up = another();
    expect(await up.spec("network/n")).toEqual({ ...network("n", "10.0.0.0/8").opens, data: { vni: 100 } });
    await up.claim(network("n", "10.0.0.0/8"));
    await up.claim({ ...runner("n", "r"), want: extents("1") });
    expect((await up.claim(address("n", "r", "ip"))).extents).toEqual(promised.extents);
    expect((await up.pools("network/")).map(({ name }) => name)).toEqual(["network/n"]);
    expect(await up.fsck()).toEqual([]);
  });

  test("nothing firm stands in a pool that is only offered", async () => {
    const { pool } = await world(engine);
    await pool.offer(network("n", "10.0.0.0/8"));
    await expect(pool.claim(runner("n", "r"))).rejects.toMatchObject({
      message:
        "POOL_NOT_FOUND: Pool network/n stands only in a preview so far. Create what opens it first, or correct the name.",
    });
  });

  test("the pool of an expired offer does not exist, until its owner asks again", async () => {
    const { pool, pass } = await world(engine);
    await pool.offer(network("n", "10.0.0.0/8"));
    await pool.offer({ ...runner("n", "r"), want: extents("7") });
    await pool.offer(address("n", "r", "ip"));
    pass(3601);
    expect(await pool.spec("network/n")).toBeUndefined();
    expect(await pool.spec("runner/n/r")).toBeUndefined();
    expect(await pool.pools("network/")).toEqual([]);
    expect(await pool.find("network/n", { value: 1n })).toBeUndefined();
    await expect(pool.offer(runner("n", "r"))).rejects.toMatchObject({ code: "POOL_NOT_FOUND" });
    await pool.offer(network("n", "10.0.0.0/8"));
    expect(firstOf(await pool.offer(runner("n", "r")))).toBe(7n);
    pass(3601);
    await pool.claim({ ...network("m", "10.0.0.0/9"), owner: "somebody else" });
    expect(await pool.spec("network/n")).toBeUndefined();
    expect(await pool.fsck()).toEqual([]);
  });

  test("the pool of an offer inside an offered pool ends no later than that one", async () => {
    const { pool, pass } = await world(engine);
    await pool.offer(network("n", "10.0.0.0/8"));
    pass(3000);
    await pool.offer(runner("n", "r"));
    pass(601);
    expect(await pool.spec("runner/n/r")).toBeUndefined();
  });

  test("networks of one address space do not overlap; those of another may", async () => {
    const { pool } = await world(engine);
    await pool.claim({ ...network("a", "10.128.0.0/12"), want: extents("10.128.0.0/12", "fd00::/48") });
    await expect(pool.offer(network("b", "10.0.0.0/8"))).rejects.toMatchObject({
      message:
        "POOL_OVERLAP: 10.0.0.0/8 overlaps 10.128.0.0/12, fd00::/48, which is held by network a for network/a. Ask for another one, or release that one first.",
    });
    await expect(pool.offer(network("b", "fd00:0:0:8000::/49"))).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    await expect(pool.offer(network("b", "10.143.255.255"))).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    expect(await pool.offer(network("b", "10.144.0.0/12"))).toMatchObject({ state: "offered" });
    expect(await pool.claim({ ...network("c", "10.128.0.0/12"), pool: "space/other" })).toMatchObject({
      owner: "network c",
    });
    expect(await pool.fsck()).toEqual([]);
  });

  test.each([
    ["network/n", "NETWORK_EXISTS"],
    ["runner/n/r", "RUNNER_NAME_TAKEN"],
    ["user/c1", "RESERVATION_EXISTS"],
    ["host/10.0.0.9/link/br0", "DEVICE_FOREIGN"],
    ["pool/lb", "POOL_OVERLAP"],
  ])("the name %s can be had once in the whole store: %s", async (name, code) => {
    const { pool, pass } = await world(engine);
    await opened(pool, { extents: extents("1-9"), kind: "id" });
    await opened(pool, { extents: extents("1-9"), kind: "port", name: "pool/other" });
    const holder = await pool.claim(by("a", { names: ["user/a", name] }));
    const rival = { ...by("b"), pool: "pool/other", names: [name] };
    await expect(pool.offer(rival)).rejects.toMatchObject({
      message: `${code}: The name ${name} belongs to a (IPReservation, reserved). Choose another name, or remove that one first.`,
    });
    await expect(pool.claim(rival)).rejects.toMatchObject({ code });
    await pool.release("pool/p", holder.leaseId);
    await pool.offer(rival);
    pass(3601);
    expect(await pool.claim(by("c", { names: [name] }))).toMatchObject({ names: [name] });
    expect(await pool.fsck()).toEqual([]);
  });

  test("names may be exchanged by amending, and those left out are free", async () => {
    const { pool } = await world(engine);
    await opened(pool, { extents: extents("1-9"), kind: "id" });
    const lease = await pool.claim(by("a", { names: ["host/h1/x", "runner/n/a"] }));
    expect(await pool.amend("pool/p", lease.leaseId, { names: ["runner/n/a", "host/h2/x"] })).toMatchObject({
      names: ["runner/n/a", "host/h2/x"],
    });
    expect(await pool.claim(by("b", { names: ["host/h1/x"] }))).toMatchObject({ owner: "b" });
    await expect(pool.amend("pool/p", lease.leaseId, { names: ["host/h1/x"] })).rejects.toMatchObject({
      code: "DEVICE_FOREIGN",
    });
    expect(await pool.find("pool/p", { owner: "a" })).toMatchObject({ names: ["runner/n/a", "host/h2/x"] });
  });

  test("closing forbids anything new, refuses while something is held, and a claim of the opener reopens", async () => {
    const { pool } = await world(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const held = await pool.claim(runner("n", "r"));
    await expect(pool.close("space/default", net.leaseId)).rejects.toMatchObject({
      message:
        "POOL_IN_USE: Pool network/n still has leases: 1 runner r (last seen 2030-01-01T00:00:00Z). Release them first.",
    });
    await expect(pool.release("space/default", net.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
    await pool.release("network/n", held.leaseId);
    await pool.offer(runner("n", "s"));
    await pool.close("space/default", net.leaseId);
    await expect(pool.offer(runner("n", "r"))).rejects.toMatchObject({
      message: "POOL_NOT_FOUND: Pool network/n is being deleted. Create what opens it first, or correct the name.",
    });
    await expect(pool.claim(runner("n", "r"))).rejects.toMatchObject({ code: "POOL_NOT_FOUND" });
    expect(await pool.leases("network/n")).toEqual([]);
    const again = await pool.claim(network("n", "10.0.0.0/8"));
    expect(firstOf(await pool.claim(runner("n", "r")))).toBe(1n);
    await expect(pool.close("space/default", net.leaseId)).rejects.toMatchObject({ code: "LEASE_FENCED" });
    expect(await pool.find("space/default", { owner: "network n" })).toEqual(again);
    expect(await pool.fsck()).toEqual([]);
  });

  test("one lease that still stands protects its pool, however many have expired", async () => {
    const { pool, pass } = await world(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const reserve = (i: number, ttl: number) => pool.claim({ pool: "network/n", owner: `o${i}`, type: "T", ttl });
    for (let i = 0; i < 20; i++) await reserve(i, 60);
    await reserve(20, 600);
    pass(61);
    await expect(pool.close("space/default", net.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
    pass(600);
    await pool.close("space/default", net.leaseId);
  });

  test("of pools that are gone the last hundred keep their history", async () => {
    const { pool, pass } = await world(engine, { quarantine: 0 });
    const opener = (i: number) => ({
      ...by(`opener ${i}`, { pool: "space/default", type: "IPPool", want: extents(`10.0.${i}.0/24`) }),
      opens: {
        name: `pool/${i}`,
        kind: "address" as const,
        extents: extents(`10.0.${i}.0/24`),
        allocation: "lowest" as const,
      },
    });
    const comeAndGo = async (i: number) => {
      const opened = await pool.claim(opener(i));
      const held = await pool.claim({ ...by("a"), pool: `pool/${i}` });
      await pool.release(`pool/${i}`, held.leaseId);
      await pool.close("space/default", opened.leaseId);
      await pool.release("space/default", opened.leaseId);
      pass(1);
    };
    const lines = async (i: number) => (await pool.history(`pool/${i}`)).length;
    for (const i of [0, 1, 2]) await comeAndGo(i);
    await pool.claim(opener(1));
    for (let i = 3; i < 103; i++) await comeAndGo(i);
    expect([await lines(0), await lines(1), await lines(2), await lines(3)]).toEqual([0, 2, 0, 2]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("with its opener a pool goes, and everything that was only promised in it", async () => {
    const { pool, pass } = await world(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const gone = await pool.claim(runner("n", "r"));
    await pool.offer(address("n", "r", "ip"));
    await pool.offer(runner("n", "s"));
    pass(1);
    await pool.release("network/n", gone.leaseId);
    pass(1);
    expect(await pool.release("space/default", net.leaseId)).toBe(true);
    expect(await pool.pools()).toMatchObject([{ name: "space/default" }]);
    expect(await pool.spec("runner/n/s")).toBeUndefined();
    expect(await pool.release("network/n", gone.leaseId)).toBe(false);
    expect(await pool.claim({ ...network("n", "10.0.0.0/8"), owner: "a new one" })).toMatchObject({
      owner: "a new one",
    });
    expect(firstOf(await pool.claim(runner("n", "s")))).toBe(1n);
    expect((await pool.history("network/n")).map(({ what }) => what)).toEqual(["claimed", "released", "claimed"]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a pool grows and shrinks, but never below a lease", async () => {
    const { pool } = await world(engine);
    const spec = { extents: extents("10.0.0.0-10.0.0.9") };
    const opener = await opened(pool, spec);
    for (const value of ["10.0.0.2", "10.0.0.8"]) await pool.claim(wants(`holder of ${value}`, value));
    await pool.offer(wants("somebody", "10.0.0.9"));
    const reshape = (...ranges: string[]) =>
      pool.amend("space/address", opener.leaseId, {
        extents: extents(...ranges),
        opens: { name: "pool/p", kind: "address", allocation: "lowest", extents: extents(...ranges) },
      });
    await reshape("10.0.0.0-10.0.0.8", "10.0.1.0-10.0.1.9");
    expect(await pool.find("pool/p", { owner: "somebody" })).toBeUndefined();
    expect(await pool.claim(wants("somebody", "10.0.1.9"))).toMatchObject({ state: "reserved" });
    await expect(reshape("10.0.0.0-10.0.0.7", "10.0.1.9")).rejects.toMatchObject({
      message:
        "POOL_IN_USE: Pool pool/p cannot lose values that are held: 10.0.0.8 holder of 10.0.0.8 (last seen 2030-01-01T00:00:00Z). Release them first.",
    });
    expect(await pool.usage("pool/p")).toMatchObject({ capacity: 19n, held: 3n });
    expect(await pool.find("space/address", { leaseId: opener.leaseId })).toMatchObject({
      extents: extents("10.0.0.0-10.0.0.8", "10.0.1.0-10.0.1.9"),
    });
    await opened(pool, { name: "pool/q", extents: extents("10.0.0.9") });
    await expect(reshape("10.0.0.0-10.0.0.9")).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("what is reserved or static may change under a living pool", async () => {
    const { pool } = await world(engine);
    const opener = await opened(pool, { extents: extents("10.0.0.0/28") });
    await pool.claim(wants("a", "10.0.0.5"));
    const respec = (more: Partial<PoolSpec>) =>
      pool.amend("space/address", opener.leaseId, {
        opens: { name: "pool/p", kind: "address", allocation: "lowest", extents: extents("10.0.0.0/28"), ...more },
      });
    await respec({ reserved: extents("10.0.0.0-10.0.0.1"), staticOnly: extents("10.0.0.2-10.0.0.7") });
    expect((await pool.claim(by("b"))).extents).toEqual(extents("10.0.0.8"));
    await expect(respec({ reserved: extents("10.0.0.4-10.0.0.6") })).rejects.toMatchObject({ code: "POOL_IN_USE" });
    await respec({ avoidBoundaryIps: true });
    expect((await pool.claim(by("c"))).extents).toEqual(extents("10.0.0.1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("a block is carved from a parent pool and is a pool itself", async () => {
    const { pool } = await world(engine);
    await opened(pool, { extents: extents("10.96.0.0/12") });
    const carve = (owner: string): Request => by(owner, { size: 1n << 12n });
    const [a, b] = [await pool.claim(carve("a")), await pool.claim(carve("b"))];
    expect([a.extents, b.extents]).toEqual([extents("10.96.0.0/20"), extents("10.96.16.0/20")]);
    await pool.amend("pool/p", a.leaseId, {
      opens: { name: "pool/a", kind: "address", extents: a.extents, allocation: "lowest" },
    });
    expect((await pool.claim({ ...by("x"), pool: "pool/a" })).extents).toEqual(extents("10.96.0.0"));
    await expect(pool.release("pool/p", a.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
  });

  test("a lease that opens another pool instead gives up the first, if that is not used", async () => {
    const { pool } = await world(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const held = await pool.claim(runner("n", "r"));
    const { opens } = network("m", "10.0.0.0/8");
    await expect(pool.amend("space/default", net.leaseId, { opens })).rejects.toMatchObject({ code: "POOL_IN_USE" });
    await pool.release("network/n", held.leaseId);
    expect(await pool.amend("space/default", net.leaseId, { opens })).toMatchObject({ opens: "network/m" });
    expect((await pool.pools("network/")).map(({ name }) => name)).toEqual(["network/m"]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a lease that opens a pool cannot have a ttl", async () => {
    const { pool } = await world(engine);
    await expect(pool.claim({ ...network("n", "10.0.0.0/8"), ttl: 60 })).rejects.toMatchObject({
      code: "INPUT_INVALID",
    });
  });

  test("a network whose layout changes is previewed over its own block, and nothing moves", async () => {
    const { pool } = await world(engine);
    const old = await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    expect(await pool.offer(network("n", "10.0.0.0/9"))).toMatchObject({
      state: "offered",
      extents: extents("10.0.0.0/9"),
    });
    expect(await pool.find("space/default", { owner: "network n" })).toEqual(old);
    expect(await pool.claim(network("n", "10.0.0.0/9"))).toMatchObject({
      uid: old.uid,
      extents: extents("10.0.0.0/9"),
    });
    expect(await pool.fsck()).toEqual([]);
  });

  test("a network that moves to another block keeps its pool until its claim, and takes it along", async () => {
    const { pool } = await world(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    const offer = await pool.offer(network("n", "11.0.0.0/8"));
    expect(offer).not.toHaveProperty("opens");
    await pool.release("space/default", offer.leaseId);
    expect(await pool.leases("network/n")).toHaveLength(1);
    const moved = await pool.claim(network("n", "11.0.0.0/8"));
    expect(moved).toMatchObject({ opens: "network/n", names: ["network/n"] });
    const old = await pool.find("space/default", { value: extents("10.0.0.0")[0]!.first });
    expect(await pool.release("space/default", old!.leaseId)).toBe(true);
    expect(await pool.leases("network/n")).toHaveLength(1);
    expect(await pool.fsck()).toEqual([]);
  });

  test("two pools of one name: the second is refused even without names", async () => {
    const { pool } = await world(engine);
    const { names: _, ...plain } = network("n", "10.0.0.0/8");
    await pool.claim(plain);
    const rival = { ...plain, owner: "other", want: extents("11.0.0.0/8") };
    await expect(pool.claim(rival)).rejects.toMatchObject({ code: "NETWORK_EXISTS" });
    expect(await pool.find("space/default", { owner: "other" })).toBeUndefined();
  });

  test("an old offer gives way with its names and its pool", async () => {
    const { pool, pass } = await world(engine);
    const { names: _, ...unnamed } = network("n", "10.0.0.0/8");
    await pool.offer(unnamed);
    const rival = { ...network("n", "11.0.0.0/8"), owner: "other" };
    await expect(pool.claim(rival)).rejects.toMatchObject({ code: "NETWORK_EXISTS" });
    pass(600);
    expect(await pool.claim(rival)).toMatchObject({ owner: "other", opens: "network/n" });
    expect(await pool.find("space/default", { owner: "network n" })).toBeUndefined();
    expect(await pool.fsck()).toEqual([]);
  });

  test("the pool that a lease opens can follow from what it gets, in a preview and in up", async () => {
    const { pool } = await world(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    const named = ({ first }: { first: bigint }): PoolSpec => ({
      name: "runner/n/r",
      kind: "address",
      extents: extents(`10.0.${first}.2-10.0.${first}.9`),
      allocation: "lowest",
    });
    const request: Request = { pool: "network/n", owner: "r", type: "RunnerSubnet", opens: ([id]) => named(id!) };
    await pool.claim({ ...request, owner: "first", opens: ([id]) => ({ ...named(id!), name: "runner/n/first" }) });
    await pool.offer(request);
    expect(firstOf(await pool.offer(address("n", "r", "ip")))).toBe(extents("10.0.2.2")[0]!.first);
    await pool.claim(request);
    expect(firstOf(await pool.claim(address("n", "r", "ip")))).toBe(extents("10.0.2.2")[0]!.first);
  });

  test("usages are those of all pools with a prefix, offers included and what is over left out", async () => {
    const { pool, pass } = await world(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    for (const name of ["a", "b"]) await pool.claim({ ...runner("n", name), owner: name });
    await pool.claim({ ...address("n", "a", "x"), ttl: 60 });
    await pool.offer(address("n", "a", "y"));
    const held = async () => [...(await pool.usages("runner/n/"))].map(([name, usage]) => `${name} ${usage.held}`);
    expect(await held()).toEqual(["runner/n/a 2", "runner/n/b 0"]);
    pass(61);
    expect(await held()).toEqual(["runner/n/a 1", "runner/n/b 0"]);
    expect(await pool.usages("runner/m/")).toEqual(new Map());
  });

  test("a preview that writes nothing sees its own offers in usages", async () => {
    const { pool, another } = await world(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    const preview = another({ offerTtl: 0 });
    await preview.offer(address("n", "r", "x"));
    expect((await preview.usages("runner/n/")).get("runner/n/r")?.held).toBe(1n);
    expect((await pool.usages("runner/n/")).get("runner/n/r")?.held).toBe(0n);
  });

  test("whoever has a name is found in whatever pool, as long as the lease stands", async () => {
    const { pool, pass } = await world(engine);
    await opened(pool, { extents: extents("10.0.0.0/28") });
    const lease = await pool.claim(by("a", { names: ["user/n/box"], ttl: 60 }));
    expect(await pool.holder("user/n/box")).toEqual(lease);
    expect(await pool.holder("user/n/other")).toBeUndefined();
    pass(61);
    expect(await pool.holder("user/n/box")).toBeUndefined();
  });

  test("a tenant's pool refuses another tenant, in preview, up, amend and enrol", async () => {
    const { pool } = await world(engine);
    const [ours, theirs] = [
      { org: "a", project: "p" },
      { org: "b", project: "p" },
    ];
    await opened(pool, { extents: extents("10.0.0.1-10.0.0.9"), tenant: ours });
    const lease = await pool.claim(by("x", { tenant: ours }));
    const refused = {
      message:
        "INPUT_INVALID: Pool pool/p belongs to a/p; b/p cannot have anything in it. Use a pool of that tenant, or correct the tenant.",
    };
    await expect(pool.offer(by("y", { tenant: theirs }))).rejects.toMatchObject(refused);
    await expect(pool.claim(by("y", { tenant: theirs }))).rejects.toMatchObject(refused);
    await expect(pool.amend("pool/p", lease.leaseId, { tenant: theirs })).rejects.toMatchObject(refused);
    const { conflicts } = await pool.enrol([fact(by("y", { tenant: theirs }), "10.0.0.7")]);
    expect(conflicts.map(({ error }) => error)).toMatchObject([refused]);
    expect((await pool.claim(by("z"))).owner).toBe("z");
  });

  test("from warnAtPercent on, whoever asks is warned, and what is only offered counts", async () => {
    const { pool } = await world(engine);
    await opened(pool, { extents: extents("10.0.0.1-10.0.0.5"), warnAtPercent: 80 });
    const warnings = [];
    for (const owner of ["a", "b", "c", "d"]) warnings.push((await pool.offer(by(owner))).warnings);
    expect(warnings).toEqual([
      undefined,
      undefined,
      undefined,
      ["80 % or more of the 5 addresses of pool/p are held or promised."],
    ]);
  });

  test("an owner that moves within a full quota is offered its new place, and may have it once the old one is free", async () => {
    const { pool } = await world(engine);
    await opened(pool, { extents: extents("10.0.0.0/28"), quota: { maxIps: 1 } });
    const old = await pool.claim(wants("a", "10.0.0.1"));
    expect(await pool.offer(wants("a", "10.0.0.2"))).toMatchObject({ state: "offered" });
    await expect(pool.offer(by("b"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    await expect(pool.claim(wants("a", "10.0.0.2"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    await pool.release("pool/p", old.leaseId);
    expect(await pool.claim(wants("a", "10.0.0.2"))).toMatchObject({ state: "reserved" });
  });

  test("a block that was previewed larger can be previewed smaller by the same process", async () => {
    const { pool } = await world(engine);
    await pool.claim(network("n", "10.0.0.0/9"));
    await pool.claim(runner("n", "r"));
    expect(await pool.offer(network("n", "10.0.0.0/8"))).toMatchObject({ extents: extents("10.0.0.0/8") });
    expect(await pool.offer(network("n", "10.0.0.0/10"))).toMatchObject({ extents: extents("10.0.0.0/10") });
    expect((await pool.leases("space/default"))[0]?.extents).toEqual(extents("10.0.0.0/9"));
  });

  test("a lease that is used keeps its user's name in its next life", async () => {
    const { pool } = await world(engine);
    await opened(pool, { extents: extents("10.0.0.0/28") });
    const { leaseId } = await pool.claim(by("a"));
    await pool.amend("pool/p", leaseId, { state: "used", usedBy: "box", names: ["user/n/box"] });
    const renewed = await pool.claim(by("a"));
    expect(renewed).toMatchObject({ state: "used", usedBy: "box" });
    expect(await pool.holder("user/n/box")).toMatchObject({ leaseId: renewed.leaseId });
  });
}
