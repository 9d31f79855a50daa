import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { Etcd3, type IOptions } from "etcd3";
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
  /** For what the store itself cannot do. */
  client: Etcd3;
  /** Index of the member that leads. */
  leader(): Promise<number>;
  start(member: number): Promise<void>;
  stop(): Promise<void>;
}

export interface EtcdSetup {
  /** How many members; three unless one is enough. */
  size?: number;
  flags?: string[];
  /** How we come in where the flags ask for TLS. */
  credentials?: IOptions["credentials"];
}

export async function startEtcd(where: "memory" | "disk", setup: EtcdSetup = {}): Promise<EtcdCluster> {
  const { size = 3, flags = [], credentials } = setup;
  const folder = newFolder(where);
  const places = await Promise.all(
    Array.from({ length: size }, (_, i) => newPlace(join(folder, `n${i}`), credentials)),
  );
  const cluster = places.map(({ name, peer }) => `${name}=${peer}`).join(",");
  const members = places.map((place) => new Server(place.folder, [program!, ...flagsOf(place, cluster), ...flags]));
  const deadline = () => ({ deadline: Date.now() + 2000 });
  const clientOf = (hosts: string | string[]) =>
    new Etcd3({ hosts, defaultCallOptions: deadline, ...(credentials && { credentials }) });
  const clients = places.map(({ client }) => clientOf(client));
  const client = clientOf(places.map(({ client }) => client));
  const start = (i: number) => members[i]!.start(() => answers(clients[i]!));
  const stop = async () => {
    for (const one of [client, ...clients]) one.close();
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
    leader: async () => {
      const states = await Promise.all(clients.map((client) => client.maintenance.status().catch(() => undefined)));
      return states.findIndex((state) => state && state.leader === state.header.member_id);
    },
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

const answers = (client: Etcd3): Promise<boolean> =>
  client.get("anything").then(
    () => true,
    () => false,
  );
