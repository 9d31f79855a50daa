import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { FreeRow, LeaseRow, PoolRow } from "../provider/ipam/decide/rows";
import { openEtcd } from "../provider/ipam/store/etcd/engine";
import { Keys } from "../provider/ipam/store/etcd/keys";
import { EtcdKv, put } from "../provider/ipam/store/etcd/kv";
import { parseEtcdUrl } from "../provider/ipam/store/etcd/url";
import { openPostgres } from "../provider/ipam/store/postgres";
import { openSqlite } from "../provider/ipam/store/sqlite";
import type { Engine as Tables } from "../provider/ipam/store/store";
import { writesOf } from "../provider/ipam/store/writes";
import { noChanges } from "../provider/ipam/transfer";
import { type EtcdCluster, etcdMissing, startEtcd } from "../test/contract/servers/etcd";
import { type PostgresServer, postgresMissing, startPostgres } from "../test/contract/servers/postgres";

/** A store on a real disk that syncs every commit, with its server if it has one. */
export interface Engine {
  name: EngineName;
  url: string;
  /** What an acknowledged commit survives. */
  durability: string;
  /** Writes rows directly to a store that no process has open. */
  load(content: Content): Promise<void>;
  postgres?: PostgresServer;
  etcd?: EtcdCluster;
  stop(): Promise<void>;
}

/** What a pool has. Only the counters of its row count, and free ranges that are there already must end where one of these does. */
export interface Content {
  pool: PoolRow;
  leases: LeaseRow[];
  free: FreeRow[];
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
    load: (content) => fill(openSqlite(path), content),
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
    load: (content) => fill(openPostgres(server.url()), content),
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
    load: (content) => intoEtcd(cluster, url, content),
    etcd: cluster,
    stop: () => cluster.stop(),
  };
}

async function fill(opening: Promise<Tables>, content: Content): Promise<void> {
  const tables = await opening;
  await inBatches(tables, content).finally(() => tables.close());
}

export async function inBatches(tables: Tables, content: Content): Promise<void> {
  const { pool, leases, free } = content;
  for (let at = 0; at < Math.max(leases.length, free.length); at += 5000) {
    const tx = await tables.begin([], [pool.name]);
    const pools = [withCounters(tx.rows.pools!, content)];
    const part = <R>(rows: R[]) => ({ put: rows.slice(at, at + 5000), deleted: [] });
    await tx.commit({
      ...noChanges(),
      pools: { put: pools, deleted: [] },
      leases: { ...part(leases), before: () => undefined },
      free: { ...part(free), cleared: [] },
    });
  }
}

function withCounters(stored: PoolRow[], { pool }: Content): PoolRow {
  const { reserved, held } = pool;
  return { ...stored.find(({ name }) => name === pool.name)!, reserved, held };
}

/** Concurrent batches share a sync. */
async function intoEtcd({ client }: EtcdCluster, url: string, content: Content): Promise<void> {
  const { pool, leases, free } = content;
  const tables = await openEtcd(url);
  const { rows } = await tables.begin([{ of: "pool", name: pool.name }]);
  await tables.close();
  const cluster = parseEtcdUrl(url);
  const kv = new EtcdKv(client, cluster);
  const keys = new Keys(cluster.prefix);
  const changes = {
    ...noChanges(),
    pools: { put: [withCounters(rows.pools!, content)], deleted: [] },
    leases: { put: leases, deleted: [], before: () => undefined },
    free: { put: free, deleted: [], cleared: [] },
  };
  const entries = writesOf(changes).flatMap(({ table, put: rows }) =>
    rows.flatMap((row) => keys.entriesOf(table, row)),
  );
  const puts = entries.map(([key, value]) => put(key, value));
  const size = 500;
  const batches = Array.from({ length: Math.ceil(puts.length / size) }, (_, i) => puts.slice(i * size, (i + 1) * size));
  const lane = async () => {
    for (let batch = batches.pop(); batch; batch = batches.pop()) await kv.txn([], batch);
  };
  await Promise.all(Array.from({ length: 8 }, lane));
}
