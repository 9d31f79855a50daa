import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Client } from "pg";
import { freePort, newFolder, removeFolder, Server, tied } from "./process";

/** Debian keeps each version's programs apart; elsewhere they are on the path. */
function programs(): string | undefined {
  const base = "/usr/lib/postgresql";
  const versions = existsSync(base) ? readdirSync(base).sort((a, b) => Number(b) - Number(a)) : [];
  const folders = [...versions.map((version) => join(base, version, "bin")), ...(process.env.PATH ?? "").split(":")];
  return folders.find((folder) => existsSync(join(folder, "initdb")));
}

export const postgresMissing = programs() === undefined && "PostgreSQL is not installed (Debian: postgresql)";

/** It refuses to run as root. */
export const USER = "postgres";

interface Fields {
  login?: string;
  host?: string;
  port?: number;
  database?: string;
  [option: string]: unknown;
}

export interface PostgresServer {
  /** An address of its database; further fields go into the query. */
  url(fields?: Fields): string;
  sql(text: string): Promise<Record<string, unknown>[]>;
  port: number;
  folder: string;
  /** Without a checkpoint, as after a power cut. */
  crash(): Promise<void>;
  start(): Promise<void>;
  stop(): Promise<void>;
}

export interface PostgresSetup {
  /** As in postgresql.conf. */
  settings?: string[];
  /** Lines of pg_hba.conf for TCP connections. Default: all are trusted. */
  hba?: string[];
  /** Follows this server. */
  standbyOf?: PostgresServer;
  /** A prefix of its command, such as one that enters a network namespace. */
  within?: string[];
}

export async function startPostgres(where: "memory" | "disk", setup: PostgresSetup = {}): Promise<PostgresServer> {
  const [folder, port] = [newFolder(where, USER), await freePort()];
  const server = new Server(folder, commandOf(folder, port, setup.settings ?? []), USER, setup.within);
  const sql = async (text: string, database = "overlay") => {
    const client = new Client({ host: folder, port, user: "overlay", database });
    await client.connect();
    return (await client.query(text).finally(() => client.end())).rows;
  };
  const start = () => server.start(() => sql("SELECT 1", "postgres").then(Boolean, () => false));
  const stop = async () => {
    await server.kill("SIGQUIT");
    removeFolder(folder);
  };
  try {
    makeData(folder, setup);
    await start();
    if (!setup.standbyOf) await sql("CREATE DATABASE overlay", "postgres");
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    url: (fields) => urlOf({ port, ...fields }),
    sql,
    port,
    folder,
    crash: () => server.kill("SIGQUIT"),
    start,
    stop,
  };
}

function commandOf(folder: string, port: number, settings: string[]): string[] {
  const own = [
    `port=${port}`,
    "listen_addresses=127.0.0.1",
    `unix_socket_directories=${folder}`,
    "max_connections=200",
  ];
  const options = [...own, ...settings].flatMap((option) => ["-c", option]);
  return [join(programs()!, "postgres"), "-D", join(folder, "data"), ...options];
}

function makeData(folder: string, { hba, standbyOf }: PostgresSetup): void {
  const data = join(folder, "data");
  const args = standbyOf
    ? `pg_basebackup -h ${standbyOf.folder} -p ${standbyOf.port} -U overlay -D ${data} -R -c fast`
    : `initdb -D ${data} -U overlay --auth=trust --no-sync --locale=C.UTF-8`;
  const [program, ...rest] = tied(join(programs()!, args).split(" "), "KILL", USER) as [string, ...string[]];
  execFileSync(program, rest, { stdio: "ignore", cwd: folder });
  if (hba) writeFileSync(join(data, "pg_hba.conf"), ["local all all trust", ...hba, ""].join("\n"));
}

function urlOf({ login = "overlay", host = "127.0.0.1", port, database = "overlay", ...options }: Fields): string {
  return `postgres://${login}@${host}:${port}/${database}?${new URLSearchParams(options as Record<string, string>)}`;
}
