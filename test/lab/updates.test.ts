import { afterAll, beforeAll, expect, test } from "vitest";
import { findLeftovers } from "../../lab/leftovers";
import { must } from "./lab-stack";
import { lossDuring } from "./pings";
import { Live, PING, UPDATES } from "./updates";

/** Each change of a live network has its effect; changes in place create no device again, and only those of which it is known lose packets. */
let live: Live;

beforeAll(async () => {
  live = await Live.up();
});
afterAll(async () => {
  await live?.lab.down();
});

test.each(UPDATES)("$name", { timeout: 180_000 }, async ({ effect, before, act, after }) => {
  await before?.(live.lab);
  const devices = await live.devices();
  const { lost } = await lossDuring(live.lab, PING, () => act(live));
  if (effect !== "with loss") expect(lost).toBe(0);
  if (effect === "in place") expect(await live.devices()).toBe(devices);
  await must(live.lab, PING.host, `ip netns exec ${PING.container} ping -c 1 -W 5 ${PING.target}`);
  live.stack.steps();
  await live.look();
  await after?.(live.lab);
  for (const runner of ["r1", "r2"]) expect(await live.stack.drift("RunnerSubnet", runner)).toEqual([]);
});

test("the host that was the hub has no items left", async () => {
  expect(await findLeftovers(live.lab, "hub")).toBe("");
});
