import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startEtcd } from "../../test/contract/servers/etcd";
import { startPostgres } from "../../test/contract/servers/postgres";

/** Stores for scenarios: SQLite files, PostgreSQL databases, or prefixes in etcd. */

export type StoreName = "sqlite" | "postgres" | "etcd";

/** Gives each scenario an empty store. */
export interface TestStore {
  create(): Promise<string>;
  drop(url: string): Promise<void>;
  stop(): Promise<void>;
}

export async function startStore(name: StoreName): Promise<TestStore> {
  if (name === "sqlite") return sqliteFiles();
  if (name === "postgres") return postgresDatabases();
  if (name === "etcd") return etcdPrefixes();
  throw new Error(`--store takes sqlite, postgres or etcd, not ${String(name)}`);
}

function sqliteFiles(): TestStore {
  const folder = mkdtempSync(join(tmpdir(), "overlay-fuzz-store-"));
  let made = 0;
  return {
    create: async () => `sqlite:${join(folder, `${++made}.db`)}`,
    drop: async (url) => {
      const file = url.replace(/^sqlite:/, "");
      for (const suffix of ["", "-wal", "-shm"]) rmSync(file + suffix, { force: true });
    },
    stop: async () => rmSync(folder, { recursive: true, force: true }),
  };
}

async function postgresDatabases(): Promise<TestStore> {
  const server = await startPostgres("memory");
  let made = 0;
  return {
    create: async () => {
      const database = `fuzz${++made}`;
      await server.sql(`CREATE DATABASE ${database}`);
      return server.url({ database });
    },
    drop: async (url) => {
      await server.sql(`DROP DATABASE ${new URL(url).pathname.slice(1)} WITH (FORCE)`);
    },
    stop: () => server.stop(),
  };
}

async function etcdPrefixes(): Promise<TestStore> {
  const cluster = await startEtcd("memory", { size: 1 });
  let made = 0;
  return {
    create: async () => `etcd://${cluster.hosts}/fuzz${++made}`,
    drop: async () => {},
    stop: () => cluster.stop(),
  };
}
