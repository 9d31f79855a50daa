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

export interface PostgresServer {
  /** An address of its database; further fields go into the query. */
  url(fields?: { login?: string; host?: string; port?: number; database?: string; [option: string]: unknown }): string;
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
  /** Lines of pg_hba.conf for those who come over the network; without, everybody is trusted. */
  hba?: string[];
  /** Follows this server. */
  standbyOf?: PostgresServer;
}

export async function startPostgres(where: "memory" | "disk", setup: PostgresSetup = {}): Promise<PostgresServer> {
  const { settings = [], hba, standbyOf } = setup;
  const [folder, port, bin] = [newFolder(where, USER), await freePort(), programs()!];
  const data = join(folder, "data");
  const [make, ...args] = standbyOf ? backupOf(standbyOf, data) : newDatabase(data);
  const [program, ...rest] = tied([join(bin, make!), ...args], "KILL", USER) as [string, ...string[]];
  execFileSync(program, rest, { stdio: "ignore", cwd: folder });
  if (hba) writeFileSync(join(data, "pg_hba.conf"), ["local all all trust", ...hba, ""].join("\n"));
  const options = [
    `port=${port}`,
    "listen_addresses=127.0.0.1",
    `unix_socket_directories=${folder}`,
    "max_connections=200",
  ];
  const command = [join(bin, "postgres"), "-D", data, ...[...options, ...settings].flatMap((option) => ["-c", option])];
  const server = new Server(folder, command, USER);
  const url: PostgresServer["url"] = ({
    login = "overlay",
    host = "127.0.0.1",
    database = "overlay",
    ...rest
  } = {}) => {
    const { port: at = port, ...options } = rest;
    return `postgres://${login}@${host}:${at}/${database}?${new URLSearchParams(options as Record<string, string>)}`;
  };
  const sql = async (text: string, database = "overlay") => {
    const client = new Client({ host: folder, port, user: "overlay", database });
    await client.connect();
    return (await client.query(text).finally(() => client.end())).rows;
  };
  const isReady = () => sql("SELECT 1", "postgres").then(Boolean, () => false);
  await server.start(isReady);
  if (!standbyOf) await sql("CREATE DATABASE overlay", "postgres");
  return {
    url,
    sql,
    port,
    folder,
    crash: () => server.kill("SIGQUIT"),
    start: () => server.start(isReady),
    stop: async () => {
      await server.kill("SIGQUIT");
      removeFolder(folder);
    },
  };
}

const newDatabase = (data: string): string[] => [
  "initdb",
  "-D",
  data,
  "-U",
  "overlay",
  "--auth=trust",
  "--no-sync",
  "--locale=C.UTF-8",
];

const backupOf = ({ folder, port }: PostgresServer, data: string): string[] => [
  "pg_basebackup",
  "-h",
  folder,
  "-p",
  String(port),
  "-U",
  "overlay",
  "-D",
  data,
  "-R",
  "-c",
  "fast",
];
