import { afterEach, expect, test } from "vitest";
import { EventRun, expectAllSeen } from "../contract/event-run";
import { type PostgresServer, postgresMissing, startPostgres } from "../contract/servers/postgres";
import { Ctl } from "../unit/cli/ctl";

/** Two processes of the service on one store, and three subscribers and a webhook that must miss nothing. */
const CHANGES = 5000;

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

async function follow(ctl: Ctl, store: string): Promise<void> {
  const run = new EventRun(ctl, store);
  ends.push(() => run.stop());
  await run.start();
  const began = Date.now();
  const { changes, duplicates } = await expectAllSeen(run, CHANGES);
  const seconds = (Date.now() - began) / 1000;
  console.log(`${changes} changes in ${seconds.toFixed(1)} s; the webhook got ${duplicates} of them again`);
  expect(changes).toBeGreaterThanOrEqual(CHANGES);
}

function newCtl(): Ctl {
  const ctl = new Ctl();
  ends.push(() => ctl.remove());
  return ctl;
}

test("5,000 changes on SQLite reach subscribers of two processes in order, over a kill", async () => {
  const ctl = newCtl();
  await follow(ctl, ctl.store);
});

test.skipIf(postgresMissing)(
  "5,000 changes on PostgreSQL reach subscribers of two processes in order, over a kill",
  async () => {
    const server: PostgresServer = await startPostgres("memory");
    ends.push(() => server.stop());
    await follow(newCtl(), server.url());
  },
);
