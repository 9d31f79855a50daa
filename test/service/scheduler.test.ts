import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { simulateSchedulers } from "../contract/scheduler-simulation";
import { type PostgresServer, postgresMissing, startPostgres } from "../contract/servers/postgres";
import { Ctl } from "../unit/cli/ctl";

describe.skipIf(postgresMissing)("schedulers on two instances and PostgreSQL", () => {
  const ctl = new Ctl();
  let server: PostgresServer;

  beforeAll(async () => {
    server = await startPostgres("memory");
  });
  afterAll(async () => {
    await server.stop();
    ctl.remove();
  });

  test("2,000 jobs by 64 clients while instances are killed: nothing is lost and nothing given twice", {
    timeout: 60 * 60_000,
  }, async () => {
    const settings = { store: server.url(), jobs: 2000, runners: 8, clients: 64, instances: 2, kills: 4 };
    const result = await simulateSchedulers(ctl, settings);
    console.log(JSON.stringify(result));
    expect(result).toMatchObject({ violations: [], kept: 200 });
    expect(result.kills).toBeGreaterThanOrEqual(4);
    expect(result.retries).toBeGreaterThanOrEqual(4);
  });
});
