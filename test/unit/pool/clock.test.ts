import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { LocalIpam } from "../../../provider/ipam/ipam";
import { Session } from "../../../provider/ipam/session";
import { judgeClock } from "../../../provider/ipam/store/clock";
import { openSqlite } from "../../../provider/ipam/store/sqlite";
import type { Engine } from "../../../provider/ipam/store/store";
import { by, createPool, type Pool, poolOf, ranges } from "../../contract/fixture";

const [MINUTE, DAY, NOW] = [60_000, 86_400_000, Date.UTC(2030, 0, 1)];

test.each([
  ["reference clock and last commit agree", [NOW], NOW, "sound"],
  ["four minutes ahead of the reference clock", [NOW - 4 * MINUTE], NOW, "sound"],
  ["six minutes ahead of the reference clock", [NOW - 6 * MINUTE], NOW - DAY, "leap"],
  ["a day ahead of one reference clock, but not of the other", [NOW - DAY, NOW], NOW, "sound"],
  ["a day ahead of both reference clocks", [NOW - DAY, NOW - DAY], NOW - DAY, "leap"],
  ["no reference clock: a store that was idle for a month", [], NOW - 30 * DAY, "sound"],
  ["no reference clock: four minutes behind the last commit", [], NOW + 4 * MINUTE, "sound"],
  ["no reference clock: a day behind the last commit", [], NOW + DAY, "behind"],
  ["behind the reference clock only", [NOW + DAY], NOW, "sound"],
] as const)("a clock is checked: %s", (_what, witnesses, lastCommit, verdict) => {
  expect(judgeClock(NOW, [...witnesses], lastCommit)).toBe(verdict);
});

/** A machine whose clock can be set, with processes that share a file. */
let machine: { wall: number; boot: string; uptime: number };
let folder: string;
const open: Engine[] = [];
const pass = (ms: number) => {
  machine.wall += ms;
  machine.uptime += ms;
};

async function newProcess(): Promise<{ pool: Pool; store: Engine }> {
  const store = await openSqlite(join(folder, "pool.db"), {
    clock: () => machine.wall,
    bootTime: () => ({ boot: machine.boot, uptime: machine.uptime }),
  });
  open.push(store);
  return { store, pool: poolOf(new LocalIpam(new Session(store, { offerTtl: 3600, quarantine: 0 }))) };
}

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "overlay-clock-"));
  machine = { wall: NOW, boot: "first", uptime: 1000 };
  const { pool } = await newProcess();
  await createPool(pool, { ranges: ranges("10.0.0.0/30") });
  for (let i = 0; i < 4; i++) await pool.claim(by(`holder ${i}`, { ttl: 3600 }));
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((store) => store.close()));
  rmSync(folder, { recursive: true });
});

test.each([
  ["in the middle of a process", true],
  ["before a process begins", false],
])("a clock that leaps a day %s ends no lease, and is accepted on request", async (_when, isSameProcess) => {
  const before = await newProcess();
  pass(10 * MINUTE);
  machine.wall += DAY;
  const { pool, store } = isSameProcess ? before : await newProcess();
  const refusal =
    /^STORE_CLOCK: This machine's clock shows 2030-01-02T00:10:00.000Z, but .* it is 2030-01-01T00:10:00.000Z/;
  await expect(pool.claim(by("b"))).rejects.toThrow(refusal);
  await expect(pool.find({ pool: "pool/p", owner: "holder 0" })).rejects.toThrow(refusal);
  const finding = { problem: expect.stringContaining("2030-01-02T00:10:00.000Z"), repairable: true };
  expect(await store.checkClock!(false)).toEqual(finding);

  machine.wall -= DAY;
  expect(await pool.find({ pool: "pool/p", owner: "holder 0" })).toBeDefined();
  expect(await store.checkClock!(false)).toBeUndefined();

  machine.wall += DAY;
  expect(await store.checkClock!(true)).toEqual(finding);
  expect(await (await newProcess()).store.checkClock!(false)).toBeUndefined();
  await pool.claim(by("next"));
});

test("a store that was idle for a month, during a suspension or over a reboot, works as before", async () => {
  pass(15 * DAY);
  expect(await (await newProcess()).pool.find({ pool: "pool/p", owner: "holder 0" })).toBeUndefined();
  machine = { wall: machine.wall + 15 * DAY, boot: "second", uptime: 500 };
  await (await newProcess()).pool.claim(by("next"));
});

test("a clock that is a day behind the last commit is refused, and accepted on request", async () => {
  machine = { wall: NOW - DAY, boot: "second", uptime: 500 };
  const { pool, store } = await newProcess();
  await expect(pool.claim(by("next"))).rejects.toThrow(/^STORE_CLOCK: .*2029-12-31.* is of 2030-01-01T00:00:00.000Z/);
  expect(await store.checkClock!(true)).toMatchObject({ repairable: true });
  await pool.claim(by("next", { ttl: 60 })).catch((error) => expect(error.message).toMatch(/^POOL_EXHAUSTED/));
});
