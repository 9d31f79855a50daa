import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import { makeCall, type OwnerState } from "../../chaos/calls";
import { createChaosPool, POOL, SETTINGS, toGrantedLease } from "../../chaos/chaos-pool";
import { findViolations } from "../../chaos/check";
import { entriesOf, LedgerWriter, processesIn } from "../../chaos/ledger";
import { type Ipam, openIpam } from "../../provider/ipam";
import { etcdMissing, startEtcd } from "./servers/etcd";
import { postgresMissing, startPostgres } from "./servers/postgres";

vi.setConfig({ testTimeout: 120_000 });

/** The URL of a new store; `stop` ends its server. */
interface Place {
  url: string;
  stop(): void | Promise<void>;
}

const newFolder = () => mkdtempSync(join(tmpdir(), "overlay-clients-"));
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
  for (const { ledger } of clients) ledger.close();
}

describe.each(PLACES)("%s", (_, missing, start) => {
  test.skipIf(missing)("two concurrent clients get answers that agree with each other and with the store", async () => {
    const [place, folder] = [await start(), newFolder()];
    const pools = [await openIpam(place.url, SETTINGS), await openIpam(place.url, SETTINGS)];
    try {
      await createChaosPool(pools[0]!);
      await recordRounds(folder, pools, 30);
      const entries = processesIn(folder).flatMap((process) => entriesOf(folder, process));
      expect(entries.length).toBeGreaterThan(200);
      const stored = (await pools[0]!.leases(POOL)).map((lease) => ({ owner: lease.owner, ...toGrantedLease(lease) }));
      expect(findViolations(entries, stored)).toEqual([]);
    } finally {
      for (const pool of pools) await pool.end();
      await place.stop();
      remove(folder);
    }
  });
});
