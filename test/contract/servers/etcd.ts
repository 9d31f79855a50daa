import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { EtcdClient } from "../../../provider/ipam/store/etcd/client";
import type { Cluster } from "../../../provider/ipam/store/etcd/url";
import { EtcdAdmin } from "./etcd-admin";
import { freePort, newFolder, removeFolder, Server } from "./process";

const program = (process.env.PATH ?? "/usr/bin")
  .split(":")
  .map((folder) => join(folder, "etcd"))
  .find((path) => existsSync(path));

export const etcdMissing = program === undefined && "etcd is not installed (Debian: etcd-server)";

export interface EtcdCluster {
  /** For clients: `HOST:PORT,HOST:PORT,HOST:PORT`. */
  hosts: string;
  ports: number[];
  members: Server[];
  /** For operations that the store does not use. */
  client: EtcdClient;
  admin: EtcdAdmin;
  /** Index of the member that leads. */
  leader(): Promise<number>;
  start(member: number): Promise<void>;
  stop(): Promise<void>;
}

export interface EtcdSetup {
  /** How many members; three unless one is enough. */
  size?: number;
  flags?: string[];
  /** The login of tests, if the flags require TLS. */
  tls?: NonNullable<Cluster["tls"]>;
}

export async function startEtcd(where: "memory" | "disk", setup: EtcdSetup = {}): Promise<EtcdCluster> {
  const { size = 3, flags = [], tls } = setup;
  const folder = newFolder(where);
  const places = await Promise.all(Array.from({ length: size }, (_, i) => newPlace(join(folder, `n${i}`), tls)));
  const cluster = places.map(({ name, peer }) => `${name}=${peer}`).join(",");
  const members = places.map((place) => new Server(place.folder, [program!, ...flagsOf(place, cluster), ...flags]));
  const clientOf = (members: string[]) => new EtcdClient({ members, timeout: 2000, ...(tls && { tls }) });
  const clients = places.map(({ client }) => clientOf([client]));
  const client = clientOf(places.map(({ client }) => client));
  const admins = places.map(({ port }) => new EtcdAdmin(`127.0.0.1:${port}`, tls));
  const start = (i: number) => members[i]!.start(() => answers(clients[i]!));
  const stop = async () => {
    for (const one of [client, ...clients, ...admins]) one.close();
    await Promise.all(members.map((member) => member.kill("SIGKILL")));
    removeFolder(folder);
  };
  try {
    await Promise.all(members.map((_, i) => start(i)));
  } catch (error) {
    await stop();
    throw error;
  }
  const ports = places.map(({ port }) => port);
  return {
    hosts: ports.map((port) => `127.0.0.1:${port}`).join(","),
    ports,
    members,
    client,
    admin: admins[0]!,
    leader: async () => (await Promise.all(admins.map((admin) => admin.isLeader().catch(() => false)))).indexOf(true),
    start,
    stop,
  };
}

interface Place {
  name: string;
  folder: string;
  port: number;
  client: string;
  peer: string;
}

async function newPlace(folder: string, tls: unknown): Promise<Place> {
  mkdirSync(folder);
  const port = await freePort();
  const client = `${tls ? "https" : "http"}://127.0.0.1:${port}`;
  return { name: `n${port}`, folder, port, client, peer: `http://127.0.0.1:${await freePort()}` };
}

const flagsOf = ({ name, folder, client, peer }: Place, cluster: string): string[] => [
  `--name=${name}`,
  `--data-dir=${join(folder, "data")}`,
  `--listen-client-urls=${client}`,
  `--advertise-client-urls=${client}`,
  `--listen-peer-urls=${peer}`,
  `--initial-advertise-peer-urls=${peer}`,
  `--initial-cluster=${cluster}`,
];

const answers = (client: EtcdClient): Promise<boolean> =>
  client.txn({ success: [{ request_range: { key: "anything" } }] }).then(
    () => true,
    () => false,
  );
