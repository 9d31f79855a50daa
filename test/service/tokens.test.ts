import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { OverlayClient, type OverlayServiceError } from "../../client";
import { createPoolOn, ranges } from "../contract/fixture";
import { raceContract } from "../contract/races";
import { etcdMissing, startEtcd } from "../contract/servers/etcd";
import { postgresMissing, startPostgres } from "../contract/servers/postgres";
import { type ServiceProcess, startService } from "../contract/service-process";
import { Ctl } from "../unit/cli/ctl";

/** Two processes redeem one token at the same moment, a thousand times on each engine: by the functions, and by two instances of the service. */
const RACES = 1000;

const ctl = new Ctl();
afterAll(() => ctl.remove());

interface Engine {
  /** The URL of a new store. */
  newUrl(): string;
  stop(): Promise<void>;
}

const ENGINES: [name: string, missing: string | false, start: () => Promise<Engine>][] = [
  ["SQLite", false, startSqlite],
  ["PostgreSQL", postgresMissing, startPostgresEngine],
  ["etcd", etcdMissing, startEtcdEngine],
];

async function startSqlite(): Promise<Engine> {
  let files = 0;
  return { newUrl: () => `sqlite:${ctl.folder}/races-${files++}.db`, stop: async () => {} };
}

async function startPostgresEngine(): Promise<Engine> {
  const server = await startPostgres("memory");
  let schemas = 0;
  return { newUrl: () => server.url({ schema: `races${schemas++}` }), stop: () => server.stop() };
}

async function startEtcdEngine(): Promise<Engine> {
  const cluster = await startEtcd("memory");
  let prefixes = 0;
  return { newUrl: () => `etcd://${cluster.hosts}/races${prefixes++}`, stop: () => cluster.stop() };
}

for (const [name, missing, start] of ENGINES)
  describe.skipIf(missing)(name, () => {
    let engine: Engine;
    beforeAll(async () => {
      engine = await start();
    });
    afterAll(() => engine?.stop());

    raceContract(() => engine.newUrl(), RACES);

    test(`use by two instances at once: one succeeds in each of ${RACES} races`, async () => {
      const outcomes = await raceInstances(engine.newUrl());
      expect(outcomes).toEqual({ "409 TOKEN_USED, used": RACES });
    });
  });

/** How often each pair of answers came. */
async function raceInstances(store: string): Promise<Record<string, number>> {
  await ctl.withPool((pool) => createPoolOn(pool, { ranges: ranges("10.0.0.0/16") }), store);
  const [made] = await ctl.must("access", "create", "racer", "--scope", "reserve", "--store", store);
  const env = { OVERLAY_STORE: store };
  const services = await Promise.all([startService(ctl, [], env), startService(ctl, [], env)]);
  const clients = services.map(
    ({ url }) => new OverlayClient({ baseUrl: url, token: String(made!.token), retries: 0 }),
  );
  const outcomes: Record<string, number> = {};
  try {
    for (let i = 0; i < RACES; i++) {
      const { token } = await clients[i % 2]!.reserve({ pool: "p" });
      const answers = clients.map((client, side) => redeem(client, token, `job-${i}-${side}`));
      const outcome = (await Promise.all(answers)).sort().join(", ");
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    }
  } finally {
    await Promise.all(services.map((service: ServiceProcess) => service.stop()));
  }
  expect(await ctl.run("store", "check", "--store", store)).toMatchObject({ code: 0 });
  return outcomes;
}

const redeem = (client: OverlayClient, token: string, container: string): Promise<string> =>
  client.use({ token, container }).then(
    ({ state }) => state,
    (error: OverlayServiceError) => `${error.status} ${error.code}`,
  );
