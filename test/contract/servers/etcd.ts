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
  /** For clients. */
  ports: number[];
  members: Server[];
  /** For what the store itself cannot do. */
  client: Etcd3;
  /** Index of the leading member, as the others see it. */
  leader(): Promise<number>;
  start(member: number): Promise<void>;
  stop(): Promise<void>;
}

/** A cluster of three, or of one where that is enough. */
export async function startEtcd(where: "memory" | "disk", { size = 3, flags = [] as string[], tls = undefined as IOptions["credentials"] } = {}): Promise<EtcdCluster> {
  const folder = newFolder(where);
  const names = Array.from({ length: size }, (_, i) => `n${i}`);
  const ports = await Promise.all(names.map(async () => ({ client: await freePort(), peer: await freePort() })));
  const scheme = tls ? "https" : "http";
  const clientUrl = (i: number) => `${scheme}://127.0.0.1:${ports[i]!.client}`;
  const peerUrl = (i: number) => `http://127.0.0.1:${ports[i]!.peer}`;
  const options = { defaultCallOptions: () => ({ deadline: Date.now() + 2000 }), ...(tls && { credentials: tls }) };
  const clients = names.map((_, i) => new Etcd3({ hosts: clientUrl(i), ...options }));
  const members = names.map((name, i) => {
    const own = join(folder, name);
    mkdirSync(own);
    const urls = { "listen-client-urls": clientUrl(i), "advertise-client-urls": clientUrl(i), "listen-peer-urls": peerUrl(i), "initial-advertise-peer-urls": peerUrl(i) };
    const settings = { name, "data-dir": join(own, "data"), ...urls, "initial-cluster": names.map((n, j) => `${n}=${peerUrl(j)}`).join(","), "heartbeat-interval": "50", "election-timeout": "500" };
    return new Server(own, [program!, ...Object.entries(settings).map(([key, value]) => `--${key}=${value}`), ...flags]);
  });
  const isReady = (i: number) => clients[i]!.get("ready").then(() => true, () => false);
  const start = (i: number) => members[i]!.start(() => isReady(i));
  await Promise.all(names.map((_, i) => start(i)));
  return {
    ports: ports.map(({ client }) => client),
    members,
    client: new Etcd3({ hosts: names.map((_, i) => clientUrl(i)), ...options }),
    leader: async () => {
      const states = await Promise.all(clients.map((client) => client.maintenance.status().catch(() => undefined)));
      return states.findIndex((state) => state && state.leader === state.header.member_id);
    },
    start,
    stop: async () => {
      for (const client of clients) client.close();
      await Promise.all(members.map((member) => member.kill("SIGKILL")));
      removeFolder(folder);
    },
  };
}
