import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { findAnomalies } from "../../chaos/linearizability/check";
import { type Operation, operationsOf } from "../../chaos/linearizability/history";
import { findAll, makeCall, type OwnerState } from "../../chaos/pool/calls";
import { createChaosPool, SETTINGS } from "../../chaos/pool/chaos-pool";
import { entriesOf, LedgerWriter, processesIn } from "../../chaos/pool/ledger";
import { isOverlayError } from "../../provider/errors";
import { openStore } from "../../provider/ipam";
import { createMemoryStore } from "../../provider/pool/engines/memory/store";
import { StoredPool } from "../../provider/pool/pool";
import { ensureLayout } from "../../provider/pool/storage/layout";
import type { Store, Tx, Write } from "../../provider/pool/storage/store";
import { etcdMissing, startEtcd } from "./servers/etcd";
import { postgresMissing, startPostgres } from "./servers/postgres";

/** A new store, and how to open it once more; `stop` ends its server. */
interface Place {
  open(): Promise<Store>;
  stop(): Promise<void>;
}

const at = (url: string, stop: () => void | Promise<void>): Place => ({
  open: () => openStore(url, SETTINGS),
  stop: async () => stop(),
});

const newFolder = () => mkdtempSync(join(tmpdir(), "overlay-linearizability-"));
const remove = (folder: string) => rmSync(folder, { recursive: true });

const PLACES: [name: string, missing: string | false, start: () => Promise<Place>][] = [
  [
    "memory",
    false,
    async () => {
      const store = createMemoryStore();
      return { open: async () => store, stop: async () => {} };
    },
  ],
  [
    "sqlite",
    false,
    async () => {
      const folder = newFolder();
      return at(`sqlite:${join(folder, "pool.db")}`, () => remove(folder));
    },
  ],
  [
    "postgres",
    postgresMissing,
    async () => {
      const server = await startPostgres("memory");
      return at(server.url(), () => server.stop());
    },
  ],
  [
    "etcd",
    etcdMissing,
    async () => {
      const cluster = await startEtcd("memory");
      return at(`etcd://${cluster.hosts}/overlay`, () => cluster.stop());
    },
  ],
];

/**
 * The seeded fault: rows are read at one version and written at another, without a check that it is still the same. `meet` is awaited
 * between the two.
 */
const withoutVersionCheck = (store: Store, meet: () => Promise<void>): Store => ({
  ...store,
  transact: async <T>(work: (tx: Tx) => Promise<T>) => {
    const writes: Write[] = [];
    const result = await store.read((tx) => {
      writes.length = 0;
      return work({
        now: () => tx.now(),
        get: (...args) => tx.get(...args),
        range: (...args) => tx.range(...args),
        write: (more) => void writes.push(...more),
      });
    });
    await meet();
    await store.transact(async (tx) => {
      await tx.write(writes);
    });
    return result;
  },
});

/** The first two calls wait for each other. */
function rendezvous(): () => Promise<void> {
  let calls = 0;
  let arrive = () => {};
  const both = new Promise<void>((resolve) => {
    arrive = resolve;
  });
  return async () => {
    if (++calls === 2) arrive();
    await both;
  };
}

/** Two clients that make random calls for four owners each, in rounds: a round begins when all calls of the one before are answered. */
async function historyOf(name: string, stores: Store[], rounds: number, isFaulty = false): Promise<Operation[]> {
  const folder = newFolder();
  const clients = stores.map((store, i) => ({
    pool: new StoredPool(store, SETTINGS),
    ledger: new LedgerWriter(folder, `w${i}`, 0),
    states: new Map<string, OwnerState>(),
    owners: [0, 1, 2, 3].map((n) => `${name}/w${i}/${n}`),
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
  ).catch((error: unknown) => {
    // Writes without a check of the version may leave rows that contradict each other.
    if (!isFaulty || !isOverlayError(error, "STORE_CORRUPT")) throw error;
  });
  for (const { ledger } of clients) ledger.close();
  const operations = processesIn(folder).flatMap((process) => operationsOf(process, entriesOf(folder, process)));
  remove(folder);
  return operations;
}

describe.each(PLACES)("%s", (_, missing, start) => {
  describe.skipIf(missing)("two concurrent clients", () => {
    let place: Place;
    let stores: Store[];
    beforeAll(async () => {
      place = await start();
      stores = [await place.open(), await place.open()];
      await ensureLayout(stores[0]!);
      await createChaosPool(new StoredPool(stores[0]!, SETTINGS));
    });
    afterAll(async () => {
      await Promise.all((stores ?? []).map((store) => store.close()));
      await place?.stop();
    });

    test("are linearizable", async () => {
      expect(findAnomalies(await historyOf("sound", stores, 30))).toEqual([]);
    });

    test("are not linearizable if commits do not check the version that they have read", async () => {
      const meet = rendezvous();
      const faulty = stores.map((store) => withoutVersionCheck(store, meet));
      const anomalies = findAnomalies(await historyOf("faulty", faulty, 3, true));
      // Both have read before either wrote, so both took the lowest free address.
      const claims = anomalies.map(({ operations }) => operations.map(({ call, owner }) => `${call} ${owner}`).sort());
      expect(claims).toContainEqual(["claim faulty/w0/0", "claim faulty/w1/0"]);
    });
  });
});
