import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import { findAnomalies } from "../../chaos/linearizability/check";
import { operationsOf } from "../../chaos/linearizability/history";
import { findAll, makeCall, type OwnerState } from "../../chaos/pool/calls";
import { createChaosPool, SETTINGS } from "../../chaos/pool/chaos-pool";
import { entriesOf, LedgerWriter, processesIn } from "../../chaos/pool/ledger";
import { type Ipam, openIpam } from "../../provider/ipam";
import { etcdMissing, startEtcd } from "./servers/etcd";
import { postgresMissing, startPostgres } from "./servers/postgres";

vi.setConfig({ testTimeout: 120_000 });

/** The URL of a new store; `stop` ends its server. */
interface Place {
  url: string;
  stop(): void | Promise<void>;
}

const newFolder = () => mkdtempSync(join(tmpdir(), "overlay-linearizability-"));
const remove = (folder: string) => rmSync(folder, { recursive: true });

const PLACES: [name: string, missing: string | false, start: () => Promise<Place>][] = [
  [
    "sqlite",
    false,
    async () => {
      const folder = newFolder();
      return { url: `sqlite:${join(folder, "pool.db")}`, stop: () => remove(folder) };
    },
  ],
  [
    "postgres",
    postgresMissing,
    async () => {
      const server = await startPostgres("memory");
      return { url: server.url(), stop: () => server.stop() };
    },
  ],
  [
    "etcd",
    etcdMissing,
    async () => {
      const cluster = await startEtcd("memory");
      return { url: `etcd://${cluster.hosts}/overlay`, stop: () => cluster.stop() };
    },
  ],
];

/** Clients that make random calls for four owners each, in rounds: a round begins when all calls of the one before are answered. */
async function recordRounds(folder: string, pools: Ipam[], rounds: number): Promise<void> {
  const clients = pools.map((pool, i) => ({
    pool,
    ledger: new LedgerWriter(folder, `w${i}`, 0),
    states: new Map<string, OwnerState>(),
    owners: [0, 1, 2, 3].map((n) => `w${i}/${n}`),
  }));
  for (let round = 0; round < rounds; round++) {
    // In the first round all claim.
    const dice = () => (round === 0 ? 0 : Math.random());
    await Promise.all(
      clients.flatMap(({ pool, ledger, states, owners }) =>
        owners.map((owner) => makeCall(pool, ledger, states, owner, dice())),
      ),
    );
  }
  const [{ pool, ledger }] = clients as [(typeof clients)[0]];
  await findAll(
    pool,
    ledger,
    clients.flatMap(({ owners }) => owners),
  );
  for (const { ledger } of clients) ledger.close();
}

/** That the search finds anomalies is tested in test/unit/chaos: here the guards of the store would stop a commit that was decided on old rows. */
describe.each(PLACES)("%s", (_, missing, start) => {
  test.skipIf(missing)("two concurrent clients are linearizable", async () => {
    const [place, folder] = [await start(), newFolder()];
    const pools = [await openIpam(place.url, SETTINGS), await openIpam(place.url, SETTINGS)];
    try {
      await createChaosPool(pools[0]!);
      await recordRounds(folder, pools, 30);
      const operations = processesIn(folder).flatMap((process) => operationsOf(process, entriesOf(folder, process)));
      expect(operations.length).toBeGreaterThan(200);
      expect(findAnomalies(operations)).toEqual([]);
    } finally {
      for (const pool of pools) await pool.end();
      await place.stop();
      remove(folder);
    }
  });
});
