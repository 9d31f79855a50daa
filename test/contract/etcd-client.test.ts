import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import type { WatchResponse } from "../../provider/ipam/store/etcd/api";
import { codeOf, EtcdClient } from "../../provider/ipam/store/etcd/client";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import { freePort } from "./servers/process";

vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

const [UNAVAILABLE, DEADLINE_EXCEEDED, OUT_OF_RANGE] = [14, 4, 11];
const bytes = (text: string) => Buffer.from(text);
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
  const readValue = async (client: EtcdClient, key: string) =>
    (await client.range({ key: bytes(key) })).kvs[0]?.value.toString();

  test("put, range and delete", async () => {
    const client = connect(cluster.ports);
    for (const key of ["kv/a", "kv/b", "kv/c"]) await client.put({ key: bytes(key), value: bytes(key) });
    const all = { key: bytes("kv/"), range_end: bytes("kv0") };
    const { kvs, count } = await client.range({ ...all, limit: 2 });
    expect([kvs.map(({ key }) => key.toString()), count]).toEqual([["kv/a", "kv/b"], "3"]);
    await client.deleteRange({ key: bytes("kv/b") });
    expect((await client.range({ ...all, count_only: true })).count).toBe("2");
  });

  test("a transaction runs one branch or the other", async () => {
    const client = connect(cluster.ports);
    const put = (value: string) => ({ request_put: { key: bytes("txn"), value: bytes(value) } });
    const absent = { key: bytes("txn"), target: "CREATE", result: "EQUAL", create_revision: 0 } as const;
    const attempt = () => client.txn({ compare: [absent], success: [put("first")], failure: [put("second")] });
    expect((await attempt()).succeeded).toBe(true);
    expect((await attempt()).succeeded).toBe(false);
    expect(await readValue(client, "txn")).toBe("second");
  });

  test("a lease is granted, kept alive and revoked, and its keys go with it", async () => {
    const client = connect(cluster.ports);
    const { ID } = await client.grantLease(60);
    await client.put({ key: bytes("leased"), value: bytes("x"), lease: ID });
    expect(await client.keepLeaseAlive(ID)).toBe(60);
    expect(await readValue(client, "leased")).toBe("x");
    await client.revokeLease(ID);
    expect(await readValue(client, "leased")).toBeUndefined();
    expect(await client.keepLeaseAlive(ID)).toBe(0);
  });

  test("a call that an endpoint never answers goes to the next one, and calls after it go there at once", async () => {
    const silent = await listenSilently();
    const client = connect([silent.port, cluster.ports[0]!], 500);
    // Which endpoint comes first is random: two calls see both.
    await client.put({ key: bytes("silent"), value: bytes("1") });
    const started = performance.now();
    for (let i = 0; i < 20; i++) expect(await readValue(client, "silent")).toBe("1");
    expect(performance.now() - started).toBeLessThan(500);
    silent.close();
  });

  test("a call ends at its deadline when no endpoint answers", async () => {
    const silent = await listenSilently();
    const client = connect([silent.port], 300);
    const started = performance.now();
    const calls = [
      client.range({ key: bytes("x") }),
      client.keepLeaseAlive("1"),
      client.watch({ key: bytes("x") }, new AbortController().signal).next(),
    ];
    const results = await Promise.allSettled(calls);
    expect(results.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected"]);
    expect(codeOf((results[0] as PromiseRejectedResult).reason)).toBe(DEADLINE_EXCEEDED);
    expect(performance.now() - started).toBeLessThan(2000);
    silent.close();
  });

  test("a closed port is reported at once", async () => {
    const client = connect([await freePort()], 5000);
    const started = performance.now();
    const error = await client.range({ key: bytes("x") }).catch((error: unknown) => error);
    expect(codeOf(error)).toBe(UNAVAILABLE);
    expect(performance.now() - started).toBeLessThan(2000);
  });

  test("a watch from a revision that was compacted away ends with an error", async () => {
    const client = connect(cluster.ports);
    for (let i = 0; i < 3; i++) await client.put({ key: bytes("compacted"), value: bytes(`${i}`) });
    const { header } = await client.put({ key: bytes("compacted"), value: bytes("last") });
    await cluster.admin.compact(header.revision);
    const watch = client.watch({ key: bytes("compacted"), start_revision: "1" }, new AbortController().signal);
    const error = await watch.next().catch((error: unknown) => error);
    expect(codeOf(error)).toBe(OUT_OF_RANGE);
  });

  test("members are stopped one after another: calls go on, and a watch misses no change", async () => {
    const client = connect(cluster.ports);
    const aborting = new AbortController();
    const seen: string[] = [];
    const { header } = await client.put({ key: bytes("before"), value: bytes("") });
    const start_revision = String(BigInt(header.revision) + 1n);
    const watching = (async () => {
      const watch = client.watch({ key: bytes("w/"), range_end: bytes("w0"), start_revision }, aborting.signal);
      for await (const { events } of watch as AsyncIterable<WatchResponse>)
        for (const { type, kv } of events) seen.push(`${type} ${kv.key}`);
    })();
    const expected: string[] = [];
    for (let member = 0; member < 3; member++) {
      await cluster.members[member]!.kill("SIGKILL");
      for (let i = 0; i < 5; i++) {
        const key = `w/${member}/${i}`;
        // While a new leader is elected, all endpoints answer that there is none.
        await vi.waitFor(() => client.put({ key: bytes(key), value: bytes("x") }), { timeout: 10_000, interval: 50 });
        expected.push(`PUT ${key}`);
      }
      await cluster.start(member);
    }
    await client.deleteRange({ key: bytes("w/0/0") });
    expected.push("DELETE w/0/0");
    await vi.waitFor(() => expect([...new Set(seen)]).toEqual(expected), { timeout: 10_000 });
    aborting.abort();
    await watching;
  });
});
