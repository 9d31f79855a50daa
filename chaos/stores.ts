import { setTimeout as sleep } from "node:timers/promises";
import { ENGINES } from "../bench/engines";
import { FaultyProxy } from "../test/contract/servers/faulty-proxy";
import { type PostgresServer, postgresMissing, startPostgres } from "../test/contract/servers/postgres";

/** A store on a disk, and what happens to its server during a run. */
export interface Store {
  url: string;
  /** A crash and restart of the server. false: it was not possible now. */
  fault?: { name: string; inject(): Promise<boolean> };
  stop(): Promise<void>;
}

/** A run continues past its time until it has reached these numbers. */
interface Aim {
  claims: number;
  kills: number;
  crashes: number;
}

export const STORES: Record<string, { missing: string | false; aim: Aim; start(): Promise<Store> }> = {
  sqlite: {
    missing: ENGINES.sqlite.missing,
    aim: { claims: 20_000, kills: 30, crashes: 0 },
    start: () => ENGINES.sqlite.start(),
  },
  postgres: { missing: postgresMissing, aim: { claims: 5000, kills: 10, crashes: 10 }, start: restartedPostgres },
  failover: { missing: postgresMissing, aim: { claims: 2000, kills: 10, crashes: 3 }, start: replicatedPostgres },
  etcd: { missing: ENGINES.etcd.missing, aim: { claims: 5000, kills: 10, crashes: 10 }, start: etcdWithoutLeaders },
};

/** Parses `sqlite,postgres`. Default: all stores. */
export function parseStores(list = Object.keys(STORES).join(",")): string[] {
  const names = list.split(",");
  const strange = names.filter((name) => !Object.hasOwn(STORES, name));
  if (strange.length) throw new Error(`--engines takes ${Object.keys(STORES).join(",")}, not ${strange.join(",")}`);
  return names;
}

async function restartedPostgres(): Promise<Store> {
  const engine = await ENGINES.postgres.start();
  const inject = async () => {
    await engine.postgres!.crash();
    await sleep(Math.random() * 500);
    await engine.postgres!.start();
    return true;
  };
  return { ...engine, fault: { name: "immediate restarts of PostgreSQL", inject } };
}

async function etcdWithoutLeaders(): Promise<Store> {
  const engine = await ENGINES.etcd.start();
  const { leader, members, start } = engine.etcd!;
  const inject = async () => {
    const index = await leader();
    if (index < 0) return false;
    await members[index]!.kill("SIGKILL");
    await sleep(500 + Math.random() * 1500);
    await start(index);
    return true;
  };
  return { ...engine, fault: { name: "leaders of etcd killed", inject } };
}

/**
 * A primary and a standby with synchronous replication, behind one address. The standby of a crashed primary is promoted and gets a standby of its
 * own, a copy of its settings; until that follows, commits of the new primary wait.
 */
async function replicatedPostgres(): Promise<Store> {
  let primary = await startPostgres("disk");
  await primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
  await primary.sql("SELECT pg_reload_conf()");
  let standby = await followerOf(primary);
  const proxy = await FaultyProxy.to([primary.port]);
  const inject = async () => {
    if (!(await isSynchronous(primary))) return false;
    await primary.crash();
    await standby.sql("SELECT pg_promote()");
    proxy.targets[0] = standby.port;
    proxy.disconnect();
    await primary.stop();
    primary = standby;
    standby = await followerOf(primary);
    return true;
  };
  return {
    url: primary.url({ port: proxy.ports[0]! }),
    fault: { name: "primaries killed, standbys promoted", inject },
    stop: async () => {
      await proxy.end();
      await Promise.all([primary.stop(), standby.stop()]);
    },
  };
}

const followerOf = (server: PostgresServer): Promise<PostgresServer> => startPostgres("disk", { standbyOf: server });

const isSynchronous = async (server: PostgresServer): Promise<boolean> =>
  (await server.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")).length > 0;
