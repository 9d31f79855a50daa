import { expect, test } from "vitest";
import { Ctl } from "../unit/cli/ctl";
import { simulateSchedulers } from "./scheduler-simulation";

/** `npm run test:service` has the same with more of everything, on PostgreSQL. */
test("schedulers, one instance on SQLite, killed once: nothing is lost and nothing given twice", {
  timeout: 600_000,
}, async () => {
  const ctl = new Ctl();
  try {
    const settings = { store: ctl.store, jobs: 100, runners: 4, clients: 8, instances: 1, kills: 1 };
    const result = await simulateSchedulers(ctl, settings);
    console.log(JSON.stringify(result));
    expect(result).toMatchObject({ violations: [], kept: 10 });
    expect(result.kills).toBeGreaterThanOrEqual(1);
    expect(result.retries).toBeGreaterThanOrEqual(1);
  } finally {
    ctl.remove();
  }
});
