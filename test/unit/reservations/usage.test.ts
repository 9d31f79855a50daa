import { beforeEach, describe, expect, test } from "vitest";
import { parseIp } from "../../../provider/addressing/ip";
import {
  availableAddresses,
  availableInput,
  type Context,
  poolStats,
  poolUsages,
  release,
  reserve,
  reserveMany,
  showPool,
  useAddress,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { codeOf, messageOf } from "./answers";

/** How full pools are, what they have left, and when that ends. */
let stage: Stage;
let context: Context;
beforeEach(async () => {
  stage = await Stage.up();
  context = { pool: stage.pool.ipam };
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], allocation: "lowest", reserved: ["192.168.7.0"] });
});

describe("free addresses", () => {
  const find = async (input: object = {}) => (await availableAddresses(context, availableInput.parse(input))).pools;

  test("are listed for a hundred pools at a time", async () => {
    for (let i = 0; i < 102; i++)
      await stage.make("IPPool", `p${String(i).padStart(3, "0")}`, { ranges: [`10.8.${i}.0/30`] });
    const first = await availableAddresses(context, { limit: 0 });
    expect([first.pools.length, first.next]).toEqual([100, "pool/p099"]);
    const { pools, next } = await availableAddresses(context, { limit: 0, after: first.next });
    expect([pools.map(({ pool }) => pool), next]).toEqual([["pool/p100", "pool/p101", "pool/web"], undefined]);
    expect(await messageOf(showPool(context, "nosuch"))).toBe(
      `POOL_NOT_FOUND: There is no pool 'nosuch'; there are ${Array.from({ length: 10 }, (_, i) => `pool/p00${i}`).join(", ")} and others. Check the name and the store.`,
    );
    expect(await messageOf(find({ pool: "nosuch" }))).toContain("pool/p009 and others.");
  });

  test("are listed in order, without what is held, quarantined or reserved", async () => {
    for (const [ip, by] of [
      ["192.168.7.1", "c1"],
      ["192.168.7.3", "c2"],
      ["192.168.7.4", "c3"],
    ] as const)
      await useAddress(context, { ip: parseIp(ip), by });
    await release(context, { by: "c2" });
    expect(await find({ pool: "web", limit: 3 })).toEqual([
      {
        pool: "pool/web",
        capacity: 15,
        held: 2,
        available: 13,
        addresses: ["192.168.7.2", "192.168.7.5", "192.168.7.6"],
      },
    ]);
    expect((await find({ pool: "web", limit: 0 }))[0]!.addresses).toEqual([]);
  });

  test("of a pool without .0 and .255 are without them in the middle of a range, too", async () => {
    await stage.make("IPPool", "old", { ranges: ["10.7.0.250-10.7.1.3"], avoidBoundaryIps: true });
    expect((await find({ pool: "old" }))[0]!.addresses).toEqual([
      ...[250, 251, 252, 253, 254].map((last) => `10.7.0.${last}`),
      ...[1, 2, 3].map((last) => `10.7.1.${last}`),
    ]);
  });

  test("of a /64 are not counted out one by one", async () => {
    await stage.make("IPPool", "six", { ranges: ["fd00:7::/64"] });
    const [six] = await find({ pool: "six", limit: 2 });
    expect(six).toMatchObject({ capacity: "18446744073709551616", addresses: ["fd00:7::", "fd00:7::1"] });
  });

  test("are listed for a runner, for the runners of a network, and for all pools", async () => {
    await stage.network("training", { subnets: ["10.10.0.0/16/8/8", "fd00:1::/48/16/64"] });
    for (const [i, name] of ["a", "b"].entries()) await stage.runner(name, `192.0.2.${11 + i}`);
    await reserve(context, { runner: "a" });
    expect(await find({ runner: "a", limit: 1 })).toEqual([
      {
        pool: "runner/training/a",
        network: "training",
        runner: "a",
        capacity: 190,
        held: 1,
        available: 189,
        addresses: [expect.stringMatching(/^10\.10\.1\./)],
      },
    ]);
    expect((await find({ network: "training" })).map(({ runner, available }) => [runner, available])).toEqual([
      ["a", 189],
      ["b", 190],
    ]);
    expect((await find()).map(({ pool }) => pool)).toEqual(["pool/web", "runner/training/a", "runner/training/b"]);
    expect(await codeOf(find({ network: "nowhere" }))).toBe("POOL_NOT_FOUND");
  });
});

test("a runner with both families is as full as its smaller subnet", async () => {
  await stage.network("training", { subnets: ["10.10.0.0/16/8/8", "fd00:1::/48/16/64"] });
  await stage.runner("a", "192.0.2.11");
  await reserveMany(context, { runner: "a", count: 190 });
  expect(await showPool(context, "runner/training/a")).toMatchObject({
    capacity: 190,
    allocated: 190,
    available: 0,
    utilization: 100,
  });
  expect((await poolUsages(context)).find(({ pool }) => pool === "runner/training/a")).toMatchObject({
    utilization: 100,
  });
});

test("all pools together, by state, as far as the caller sees them", async () => {
  await stage.make("IPPool", "acme", { ranges: ["10.30.0.0/28"], tenant: { org: "acme", project: "shop" } });
  await reserveMany(context, { pool: "web", count: 3 });
  await useAddress(context, { ip: parseIp("10.30.0.1"), by: "c1" });
  const totals = { offered: 0, reserved: 3, quarantined: 0 };
  expect(await poolStats(context)).toEqual({
    ...totals,
    used: 1,
    pools: 2,
    capacity: 31,
    allocated: 4,
    available: 27,
    utilization: 12.9,
  });
  const other = { ...context, tenant: { org: "globex", project: "shop" } };
  expect(await poolStats(other)).toEqual({
    ...totals,
    used: 0,
    pools: 1,
    capacity: 15,
    allocated: 3,
    available: 12,
    utilization: 20,
  });
});

describe("time to exhaustion", () => {
  const show = () => showPool(context, "web", stage.now);
  const use = (last: number) => useAddress(context, { ip: parseIp(`192.168.7.${last}`), by: `c${last}` });

  test("follows from the last hour, if that is faster than the day", async () => {
    for (const last of [1, 2, 3]) await use(last);
    stage.pass(6 * 3600);
    expect(await show()).toMatchObject({ growthLastHour: 0, growthLastDay: 3, exhaustedInSeconds: 12 * 8 * 3600 });
    for (const last of [4, 5]) await use(last);
    stage.pass(1800);
    expect(await show()).toMatchObject({ growthLastHour: 2, growthLastDay: 5, exhaustedInSeconds: 5 * 3600 });
  });

  test("is unknown for a pool that does not grow", async () => {
    expect(await show()).not.toHaveProperty("exhaustedInSeconds");
    for (const last of [1, 2]) await use(last);
    stage.pass(60);
    for (const by of ["c1", "c2"]) await release(context, { by });
    stage.pass(60);
    expect(await show()).toMatchObject({ growthLastHour: 0, growthLastDay: 0 });
    expect(await show()).not.toHaveProperty("exhaustedInSeconds");
  });

  test("does not count reservations that are over, even before the next change of the pool", async () => {
    await reserveMany(context, { pool: "web", count: 10, ttl: 60 });
    expect(await show()).toMatchObject({ growthLastHour: 10 });
    stage.pass(61);
    expect(await show()).toMatchObject({ growthLastHour: 0, allocated: 0 });
  });

  test("is zero for a full pool that still grows", async () => {
    for (let last = 1; last <= 15; last++) await use(last);
    expect(await show()).toMatchObject({ available: 0, exhaustedInSeconds: 0 });
  });
});

test("a tenant does not see how fast a pool fills that others use, too, but does for its own", async () => {
  const tenant = { org: "acme", project: "shop" };
  await stage.make("IPPool", "own", { ranges: ["192.168.9.0/28"], tenant });
  await reserve(context, { pool: "web" });
  await reserve({ ...context, tenant }, { pool: "own" });
  const show = async (name: string) => Object.keys(await showPool({ ...context, tenant }, name, stage.now));
  expect(await show("web")).not.toEqual(expect.arrayContaining(["growthLastHour"]));
  expect(await show("own")).toEqual(expect.arrayContaining(["growthLastHour", "growthLastDay"]));
});
