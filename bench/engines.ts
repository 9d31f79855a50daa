import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { keysUnder } from "../provider/pool/engines/etcd/commit-log";
import { openEtcdStore } from "../provider/pool/engines/etcd/store";
import { openPostgresStore } from "../provider/pool/engines/postgres/store";
import { openSqliteStore } from "../provider/pool/engines/sqlite/store";
import type { Row, Store } from "../provider/pool/storage/store";
import { type EtcdCluster, etcdMissing, startEtcd } from "../test/contract/servers/etcd";
import { type PostgresServer, postgresMissing, startPostgres } from "../test/contract/servers/postgres";

/** A store on a real disk that syncs every commit, with its server if it has one. */
export interface Engine {
  name: EngineName;
  url: string;
  /** What an acknowledged commit survives. */
  durability: string;
  store(): Promise<Store>;
  /** Writes rows directly to a store that no process has open. */
  load(rows: Row[]): Promise<void>;
  postgres?: PostgresServer;
  etcd?: EtcdCluster;
  stop(): Promise<void>;
}

export type EngineName = "sqlite" | "postgres" | "etcd";

interface Starter {
  /** Why it cannot be started here. */
  missing: string | false;
  start(): Promise<Engine>;
}

export const ENGINES: Record<EngineName, Starter> = {
  sqlite: { missing: false, start: startSqlite },
  postgres: { missing: postgresMissing, start: postgresEngine },
  etcd: { missing: etcdMissing, start: etcdEngine },
};

/** Parses `sqlite,postgres`. Default: all engines. */
export function parseEngines(list?: string, option = "--engines"): EngineName[] {
  const known = Object.keys(ENGINES) as EngineName[];
  const names = list === undefined ? known : list.split(",");
  const strange = names.filter((name) => !known.includes(name as EngineName));
  if (strange.length) throw new Error(`${option} takes ${known.join(",")}, not ${strange.join(",")}`);
  return names as EngineName[];
}

/** A folder on disk: a store in memory would be faster, but not durable. */
export function diskFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "overlay-bench-"));
  if (fileSystemOf(folder) === "tmpfs") throw new Error(`${folder} is in memory: set TMPDIR to a folder on a disk`);
  return folder;
}

export const fileSystemOf = (folder: string): string =>
  execFileSync("stat", ["-f", "-c", "%T", folder], { encoding: "utf8" }).trim();

async function startSqlite(): Promise<Engine> {
  const folder = diskFolder();
  const path = join(folder, "pool.db");
  return {
    name: "sqlite",
    url: `sqlite:${path}`,
    durability: "fdatasync of the write-ahead log behind every commit",
    store: () => openSqliteStore(path),
    load: async (rows) => inBatches(await openSqliteStore(path), rows),
    stop: async () => rmSync(folder, { recursive: true, force: true }),
  };
}

async function postgresEngine(): Promise<Engine> {
  const server = await startPostgres("disk");
  const [{ settings } = {}] = await server.sql(
    "SELECT string_agg(name || ' = ' || setting, ', ') AS settings FROM pg_settings " +
      "WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
  );
  return {
    name: "postgres",
    url: server.url(),
    durability: `the server's log is synced at every commit (${settings})`,
    store: () => openPostgresStore(server.url()),
    load: async (rows) => inBatches(await openPostgresStore(server.url()), rows),
    postgres: server,
    stop: () => server.stop(),
  };
}

async function etcdEngine(): Promise<Engine> {
  const cluster = await startEtcd("disk");
  const url = `etcd://${cluster.hosts}/overlay`;
  return {
    name: "etcd",
    url,
    durability: "three members on one disk; synced by two of them at every commit",
    store: () => openEtcdStore(url),
    load: (rows) => intoEtcd(cluster, rows),
    etcd: cluster,
    stop: () => cluster.stop(),
  };
}

/** In the order of their keys: each batch then touches few pages of the tables. */
async function inBatches(store: Store, rows: Row[]): Promise<void> {
  const sorted = [...rows].sort(([a], [b]) => (a < b ? -1 : 1));
  for (let at = 0; at < sorted.length; at += 20_000)
    await store.transact(async (tx) => {
      await tx.write(sorted.slice(at, at + 20_000));
    });
  await store.close();
}

/** etcd takes 128 operations in a Txn; concurrent batches share a sync. */
async function intoEtcd({ client }: EtcdCluster, rows: Row[]): Promise<void> {
  const keys = keysUnder("overlay/");
  const batches = Array.from({ length: Math.ceil(rows.length / 120) }, (_, i) => rows.slice(i * 120, (i + 1) * 120));
  const lane = async () => {
    for (let batch = batches.pop(); batch; batch = batches.pop()) {
      const success = batch.map(([key, value]) => ({
        request_put: { key: Buffer.from(keys.row(key)), value: Buffer.from(value) },
      }));
      await client.txn({ success });
    }
  };
  await Promise.all(Array.from({ length: 8 }, lane));
}
