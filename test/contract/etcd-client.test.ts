import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import type { RequestOp } from "../../provider/ipam/store/etcd/api";
import { codeOf, EtcdClient } from "../../provider/ipam/store/etcd/client";
import { del, get, isAbsent, put } from "../../provider/ipam/store/etcd/kv";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import { freePort } from "./servers/process";

vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

const [UNAVAILABLE, DEADLINE_EXCEEDED] = [14, 4];
const endpoint = (port: number) => `http://127.0.0.1:${port}`;

/** A peer that accepts connections and never answers. */
async function listenSilently(): Promise<{ port: number; server: Server; close(): void }> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => void sockets.push(socket)).listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  return { port: (server.address() as { port: number }).port, server, close };
}

describe.skipIf(etcdMissing)(`the client of etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  let cluster: EtcdCluster;
  const clients: EtcdClient[] = [];
  beforeAll(async () => {
    cluster = await startEtcd("memory");
  });
  afterEach(() => {
    for (const client of clients.splice(0)) client.close();
  });
  afterAll(() => cluster?.stop());

  const connect = (ports: number[], timeout = 1000): EtcdClient => {
    const client = new EtcdClient({ members: ports.map(endpoint), timeout });
    clients.push(client);
    return client;
  };
  const write = (client: EtcdClient, ...success: RequestOp[]) => client.txn({ success });
  const readAll = async (client: EtcdClient, key: string, end?: string): Promise<string[]> => {
    const { responses } = await write(client, get({ key, ...(end !== undefined && { end }) }));
    return responses[0]!.response_range.kvs.map(({ value }) => value);
  };

  test("put, range and delete", async () => {
    const client = connect(cluster.ports);
    await write(client, ...["kv/a", "kv/b", "kv/ü\u{1f600}"].map((key) => put(key, key)));
    expect(await readAll(client, "kv/", "kv0")).toEqual(["kv/a", "kv/b", "kv/ü\u{1f600}"]);
    await write(client, del("kv/b"));
    expect(await readAll(client, "kv/", "kv0")).toEqual(["kv/a", "kv/ü\u{1f600}"]);
  });

  test("a transaction runs one branch or the other", async () => {
    const client = connect(cluster.ports);
    const attempt = () =>
      client.txn({ compare: [isAbsent("txn")], success: [put("txn", "first")], failure: [put("txn", "second")] });
    expect((await attempt()).succeeded).toBe(true);
    expect((await attempt()).succeeded).toBe(false);
    expect(await readAll(client, "txn")).toEqual(["second"]);
  });

  test("a call that an endpoint never answers goes to the next one, and calls after it go there at once", async () => {
    const silent = await listenSilently();
    const client = connect([silent.port, cluster.ports[0]!], 500);
    // Which endpoint comes first is random: two calls see both.
    await write(client, put("silent", "1"));
    const started = performance.now();
    for (let i = 0; i < 20; i++) expect(await readAll(client, "silent")).toEqual(["1"]);
    expect(performance.now() - started).toBeLessThan(500);
    silent.close();
  });

  test("a call ends at its deadline when no endpoint answers", async () => {
    const silent = await listenSilently();
    const client = connect([silent.port], 300);
    const started = performance.now();
    const error = await client.txn({}).catch((error: unknown) => error);
    expect(codeOf(error)).toBe(DEADLINE_EXCEEDED);
    expect(performance.now() - started).toBeLessThan(2000);
    silent.close();
  });

  test("a closed port is reported at once", async () => {
    const client = connect([await freePort()], 5000);
    const started = performance.now();
    const error = await client.txn({}).catch((error: unknown) => error);
    expect(codeOf(error)).toBe(UNAVAILABLE);
    expect(performance.now() - started).toBeLessThan(2000);
  });

  test("members are stopped one after another: calls go on", async () => {
    const client = connect(cluster.ports);
    const expected: string[] = [];
    for (let member = 0; member < 3; member++) {
      await cluster.members[member]!.kill("SIGKILL");
      for (let i = 0; i < 5; i++) {
        const key = `m/${member}/${i}`;
        // While a new leader is elected, all endpoints answer that there is none.
        await vi.waitFor(() => write(client, put(key, key)), { timeout: 10_000, interval: 50 });
        expected.push(key);
      }
      await cluster.start(member);
    }
    expect(await readAll(client, "m/", "m0")).toEqual(expected);
  });
});
