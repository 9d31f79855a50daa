import { afterAll, expect, test } from "vitest";
import { Ctl } from "../unit/cli/ctl";
import { EventRun, expectAllSeen } from "./event-run";

/** The short form of `test/service/events.test.ts`. */
const ctl = new Ctl();
const run = new EventRun(ctl, ctl.store);
afterAll(async () => {
  await run.stop();
  ctl.remove();
});

test("500 changes reach subscribers on two processes in order, over cut connections and a killed process", {
  timeout: 180_000,
}, async () => {
  await run.start();
  const { changes } = await expectAllSeen(run, 500);
  expect(changes).toBeGreaterThanOrEqual(500);
});
