import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createSocketServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import type { EtcdClient } from "../../provider/pool/engines/etcd/client";
import { EtcdCommitLog, keysUnder } from "../../provider/pool/engines/etcd/commit-log";
import { FirstRowSearch } from "../../provider/pool/engines/etcd/first-row";
import { EtcdKv, put } from "../../provider/pool/engines/etcd/kv";
import { EtcdLock } from "../../provider/pool/engines/etcd/lock";
import { openEtcdStore } from "../../provider/pool/engines/etcd/store";
import { readClusterTime } from "../../provider/pool/engines/etcd/time";
import { parseEtcdUrl } from "../../provider/pool/engines/etcd/url";
import { Conflict } from "../../provider/pool/engines/server-engine";
import type { Row, Tx } from "../../provider/pool/storage/store";
import { contract } from "./contract";
import { rowContract } from "./rows/contract";
import { type Authority, type Certificate, newAuthority } from "./servers/certificates";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import type { EtcdAdmin } from "./servers/etcd-admin";
import { FaultyProxy } from "./servers/faulty-proxy";
import { freePort, removeFolder } from "./servers/process";
import { crashContract, serverContract } from "./servers/shared";
import { OpenStores } from "./servers/stores";
import { urlEngine } from "./url-engine";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

const write = async (tx: Tx): Promise<void> => {
  await tx.write([["x", "1"]]);
};
const countRows = async (tx: Tx): Promise<number> => (await tx.range("row/", "row0", 10_000)).length;

describe.skipIf(etcdMissing)(`etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  const stores = new OpenStores();
  let cluster: EtcdCluster;
  let prefixes = 0;
  beforeAll(async () => {
    cluster = await startEtcd("memory");
  });
  afterEach(() => stores.closeAll());
  afterAll(() => cluster?.stop());

  const newUrl = (proxy?: FaultyProxy) => {
    const ports = proxy?.ports ?? cluster.ports;
    return `etcd://${ports.map((port) => `127.0.0.1:${port}`).join(",")}/p${prefixes++}`;
  };
  const open = async (url: string, options = {}) => stores.add(await openEtcdStore(url, options));

  const engine = urlEngine("etcd", newUrl);
  contract(engine);
  rowContract({ ...engine, openStore: (url, clock) => open(url, { clock }) });
  const dumpWithoutSecrets = async (url: string): Promise<string> => {
    const { prefix } = parseEtcdUrl(url);
    const { kvs } = await cluster.client.range(rangeUnder(prefix));
    const others = kvs.filter(({ key }) => !key.toString().startsWith(`${prefix}row/k/`));
    return others.map(({ key, value }) => `${key} ${value}`).join("\n");
  };
  const commitBytes = '"writes":';
  serverContract({ newUrl, open, startProxy: () => FaultyProxy.to(cluster.ports), commitBytes, dumpWithoutSecrets });

  describe("the leader is killed", () => {
    let durable: EtcdCluster;
    beforeAll(async () => {
      durable = await startEtcd("disk");
    });
    afterAll(() => durable?.stop());
    crashContract({ newUrl: () => `etcd://${durable.hosts}/crash`, open }, async () => {
      const leader = await durable.leader();
      await durable.members[leader]!.kill("SIGKILL");
      await vi.waitFor(async () => expect(await durable.leader()).not.toBe(-1), { timeout: 15_000, interval: 100 });
      await durable.start(leader);
    });
  });

  describe("more rows than etcd takes in one Txn", () => {
    const rows = Array.from({ length: 1000 }, (_, i): Row => [`row/${i}`, "x".repeat(200)]);
    const writeAll = async (tx: Tx): Promise<void> => {
      await tx.write(rows);
    };

    test("are written all or none", async () => {
      const url = newUrl();
      const [store, other] = [await open(url), await open(url)];
      await other.transact(write);
      await store.transact(writeAll);
      expect(await other.transact(countRows)).toBe(1000);
      expect(await other.read(countRows)).toBe(1000);
      const failing = store.transact(async (tx) => {
        await tx.write(rows.map(([key]) => [key, null]));
        throw new Error("changed my mind");
      });
      await expect(failing).rejects.toThrow("changed my mind");
      expect(await store.read(countRows)).toBe(1000);
    });

    /** A client that fails after so many calls. */
    class DyingKv extends EtcdKv {
      calls = 0;
      override txn(...args: Parameters<EtcdKv["txn"]>): ReturnType<EtcdKv["txn"]> {
        if (this.calls-- <= 0) throw new Error("killed");
        return super.txn(...args);
      }
    }
    const parts = 9;
    test.each([
      ["before the commit: none are there", parts, 0],
      ["after the commit: all are there", parts + 1, 1000],
      ["while the rows are moved to their keys: all are there", parts + 6, 1000],
      ["just before the end: all are there", parts + 1 + 2 * parts, 1000],
    ])("by a process that dies %s", async (_when, calls, there) => {
      const url = newUrl();
      const { prefix } = parseEtcdUrl(url);
      const dying = new DyingKv(cluster.client, parseEtcdUrl(url));
      const log = new EtcdCommitLog(dying, keysUnder(prefix), { revision: "0" });
      dying.calls = calls;
      const commit = { number: 1, id: "half", at: 0, writes: rows };
      await expect(log.commit({ number: 0, id: "", at: 0 }, commit, [])).rejects.toThrow("killed");
      expect(await (await open(url)).read(countRows)).toBe(there);
      const store = await open(url);
      expect(await store.transact(countRows)).toBe(there);
      await store.transact(writeAll);
      expect(await countUnder(cluster.client, `${prefix}part/`)).toBe(0);
    });
  });

  test("a process that was killed while it held the lock blocks others until its lease has expired", async () => {
    const url = newUrl();
    const store = await open(url);
    const { prefix } = parseEtcdUrl(url);
    const kv = new EtcdKv(cluster.client, parseEtcdUrl(url));
    await kv.txn([], [put(keysUnder(prefix).lock("dead"), "", await kv.grantLease(2))]);
    await store.transact(write);
    expect(await countUnder(cluster.client, `${prefix}lock/`)).toBe(0);
  });

  test("the lock is granted in the order of requests, and a lease is renewed while the lock is held", async () => {
    const url = newUrl();
    const [kv, keys] = [new EtcdKv(cluster.client, parseEtcdUrl(url)), keysUnder(parseEtcdUrl(url).prefix)];
    const log = new EtcdCommitLog(kv, keys, { revision: "0" }, new FirstRowSearch(kv), true);
    const queued = (count: number) =>
      vi.waitFor(async () => expect(await countUnder(cluster.client, keys.lock())).toBe(count), { timeout: 30_000 });
    const renew = vi.spyOn(kv, "keepLeaseAlive");
    const order: string[] = [];
    const acquire = async (name: string) => {
      const lock = await new EtcdLock(kv, keys, log).acquire(60_000);
      order.push(name);
      return lock;
    };
    const first = await acquire("first");
    const second = acquire("second");
    await queued(2);
    const third = acquire("third");
    await queued(3);
    // Each of the three renews its lease three times in the two seconds that a lease lives.
    await vi.waitFor(() => expect(renew.mock.calls.length).toBeGreaterThan(12), { timeout: 60_000 });
    expect(order).toEqual(["first"]);
    await first.unlock();
    await (await second).unlock();
    await (await third).unlock();
    expect(order).toEqual(["first", "second", "third"]);
    await queued(0);
  }, 120_000);

  test("a wait for the lock times out, and its key is deleted from the queue", async () => {
    const url = newUrl();
    const [kv, keys] = [new EtcdKv(cluster.client, parseEtcdUrl(url)), keysUnder(parseEtcdUrl(url).prefix)];
    const log = new EtcdCommitLog(kv, keys, { revision: "0" }, new FirstRowSearch(kv), true);
    const holder = await new EtcdLock(kv, keys, log).acquire(10_000);
    await expect(new EtcdLock(kv, keys, log).acquire(200)).rejects.toBeInstanceOf(Conflict);
    expect(await countUnder(cluster.client, keys.lock())).toBe(1);
    await holder.unlock();
  });

  test("after many concurrent transactions the lock queue is empty", async () => {
    const url = newUrl();
    const crowd = await Promise.all(Array.from({ length: 4 }, () => open(url)));
    const often = async (i: number) => {
      for (let j = 0; j < 10; j++)
        await crowd[i]!.transact(async (tx) => {
          const before = await countRows(tx);
          await tx.write([[`row/${String(before).padStart(4, "0")}`, `${i}/${j}`]]);
        });
    };
    await Promise.all(crowd.map((_, i) => often(i)));
    expect(await crowd[0]!.read(countRows)).toBe(40);
    const queueLength = () => countUnder(cluster.client, `${parseEtcdUrl(url).prefix}lock/`);
    await vi.waitFor(async () => expect(await queueLength()).toBe(0), { timeout: 5000 });
  });

  test("a cluster that has lost commits allocates nothing more", async () => {
    const url = newUrl();
    const store = await open(url);
    for (let i = 0; i < 3; i++) await store.transact(write);
    await cluster.client.deleteRange(rangeUnder(parseEtcdUrl(url).prefix));
    await expect(store.transact(write)).rejects.toMatchObject({
      code: "STORE_LOST",
      message: expect.stringContaining("went back from version 3 to 0"),
    });
  });

  test("an invalid entry of the log is named", async () => {
    const url = newUrl();
    const [kv, keys] = [new EtcdKv(cluster.client, parseEtcdUrl(url)), keysUnder(parseEtcdUrl(url).prefix)];
    const log = new EtcdCommitLog(kv, keys, { revision: "0" });
    await kv.txn([], [put(keys.log(1), '{"number":1,"id":"a","at":0}'), put(keys.log(2), '{"number":2}')]);
    expect([await log.findId(1), await log.findId(3)]).toEqual(["a", undefined]);
    await expect(log.findId(2)).rejects.toMatchObject({
      code: "STORE_CORRUPT",
      message: expect.stringContaining(keys.log(2)),
    });
  });

  test("a revision that was compacted away is not needed", async () => {
    const url = newUrl();
    const [store, other] = [await open(url), await open(url)];
    await store.transact(write);
    const { header } = await cluster.client.put({ key: Buffer.from("outside"), value: Buffer.from("1") });
    await cluster.admin.compact(header.revision);
    expect(await store.transact(countRows)).toBe(0);
    expect(await other.read(countRows)).toBe(0);
  });

  describe("clocks of members", () => {
    const hour = 3_600_000;
    test.each([
      ["agree", [0, 0, 0]],
      ["one is ahead", [0, hour, 0]],
      ["one is behind", [-hour, 0, 0]],
      ["one is silent", [0, undefined, 0]],
    ])("%s", async (_how, offsets) => {
      const members = offsets.map((offset) =>
        createServer((_request, response) => {
          if (offset === undefined) return void response.destroy();
          response.setHeader("Date", new Date(Date.now() + offset).toUTCString());
          response.end();
        }).listen(0, "127.0.0.1"),
      );
      await Promise.all(members.map((member) => new Promise((done) => member.once("listening", done))));
      const hosts = members.map((member) => `127.0.0.1:${(member.address() as { port: number }).port}`);
      expect(Math.abs((await readClusterTime(parseEtcdUrl(`etcd://${hosts.join(",")}`))) - Date.now())).toBeLessThan(
        2000,
      );
      for (const member of members) member.close();
    });
  });

  describe("with TLS, certificates of clients, and passwords", () => {
    let secure: EtcdCluster;
    let authority: Authority;
    let otherAuthority: Authority | undefined;
    let own: Certificate;
    const secret = "not/to:be@seen";
    const hidden = encodeURIComponent(secret);
    beforeAll(async () => {
      authority = newAuthority();
      const server = authority.issue("server", "DNS:localhost,IP:127.0.0.1");
      own = authority.issue("client", "DNS:client");
      secure = await startEtcd("memory", {
        size: 1,
        flags: [
          `--cert-file=${server.cert}`,
          `--key-file=${server.key}`,
          `--trusted-ca-file=${authority.ca}`,
          "--client-cert-auth",
          "--auth-token-ttl=1",
        ],
        tls: { ca: readFileSync(authority.ca), cert: readFileSync(own.cert), key: readFileSync(own.key) },
      });
      await secureUsers(secure.admin, secret);
    });
    afterAll(async () => {
      await secure?.stop();
      for (const { folder } of [authority, ...(otherAuthority ? [otherAuthority] : [])]) removeFolder(folder);
    });

    /** An authority that did not issue the server's certificate. */
    const newOtherAuthority = () => {
      otherAuthority = newAuthority();
      return otherAuthority;
    };
    const files = () => ({ ca: authority.ca, cert: own.cert, key: own.key });
    const secureUrl = (login: string, options: Record<string, string> = files()) =>
      `etcd://${login ? `${login}@` : ""}${secure.hosts}/secure?${new URLSearchParams(options)}`;

    test("everything works", async () => {
      const store = await open(secureUrl(`writer:${hidden}`));
      expect(store.readOnly).toBe(false);
      await store.transact(write);
      expect(await store.read(countRows)).toBe(0);
    });

    test("a token that has expired is renewed", async () => {
      const store = await open(secureUrl(`writer:${hidden}`));
      await store.transact(write);
      await sleep(2500);
      await store.transact(write);
      expect(await store.read(countRows)).toBe(0);
    });

    test("with a user that may only read, previews work", async () => {
      const store = await open(secureUrl(`reader:${hidden}`));
      expect(store.readOnly).toBe(true);
      expect(await store.read(countRows)).toBe(0);
      await expect(store.transact(write)).rejects.toMatchObject({
        code: "STORE_READ_ONLY",
        message: expect.stringContaining("does not let reader write"),
      });
    });

    const refusals: [what: string, url: () => string, code: string, text: string][] = [
      ["a wrong password", () => secureUrl(`writer:${hidden}x`), "STORE_UNAVAILABLE", "refuses writer"],
      ["no user", () => secureUrl(""), "STORE_UNAVAILABLE", "users without a name"],
      ["a user without a role", () => secureUrl(`nobody:${hidden}`), "STORE_UNAVAILABLE", "does not let nobody read"],
      ["no TLS", () => secureUrl(`writer:${hidden}`, {}), "STORE_UNAVAILABLE", "cannot be used"],
      [
        "another machine of an unknown authority",
        () => `etcd://writer:${hidden}@0.0.0.0:${secure.ports[0]}/secure`,
        "STORE_UNAVAILABLE",
        "certificate",
      ],
      [
        "an unknown authority",
        () => secureUrl(`writer:${hidden}`, { tls: "true" }),
        "STORE_UNAVAILABLE",
        "cannot be used",
      ],
      [
        "another authority",
        () => secureUrl(`writer:${hidden}`, { ...files(), ca: newOtherAuthority().ca }),
        "STORE_UNAVAILABLE",
        "cannot be used",
      ],
      [
        "no certificate of our own",
        () => secureUrl(`writer:${hidden}`, { ca: authority.ca }),
        "STORE_UNAVAILABLE",
        "cannot be used",
      ],
      [
        "an unknown option",
        () => secureUrl(`writer:${hidden}`, { colour: "red" }),
        "SETTING_INVALID",
        "'colour' is not one of",
      ],
      [
        "a missing file",
        () => secureUrl(`writer:${hidden}`, { ca: "/missing.pem" }),
        "SETTING_INVALID",
        "ca cannot be read",
      ],
      ["a plain % in the password", () => secureUrl("writer:not%to:be"), "SETTING_INVALID", "%25"],
      ["no hosts", () => `etcd://writer:${hidden}@/x`, "SETTING_INVALID", "it does not have that form"],
    ];
    test.each(refusals)("%s is reported without a secret", async (_what, url, code, text) => {
      const error = await open(url()).catch((error: unknown) => error as Error & { code: string });
      expect(error).toMatchObject({ code, message: expect.stringContaining(text) });
      expect(inspect(error, { depth: 10, showHidden: true })).not.toMatch(/not.{1,3}to.{1,3}be/);
    });
  });

  describe("a cluster", () => {
    let troubled: EtcdCluster;
    const url = () => `etcd://${troubled.hosts}/troubled`;
    beforeAll(async () => {
      troubled = await startEtcd("memory");
    });
    afterAll(() => troubled?.stop());

    test("that is full still serves previews", async () => {
      const store = await open(url());
      await store.transact(write);
      await troubled.admin.setSpaceAlarm("ACTIVATE");
      await expect(store.transact(write)).rejects.toMatchObject({
        code: "STORE_READ_ONLY",
        message: expect.stringContaining("is full"),
      });
      const again = await open(url());
      expect(again.readOnly).toBe(true);
      expect(await again.read(countRows)).toBe(0);
      await troubled.admin.setSpaceAlarm("DEACTIVATE");
    });

    test("that has lost most of its members is unavailable", async () => {
      const store = await open(`${url()}?timeout=1`, { timeouts: { conflict: 5, server: 1 } });
      for (const member of troubled.members.slice(1)) await member.kill("SIGKILL");
      await expect(store.transact(write)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
      await expect(open(`${url()}?timeout=1`)).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        message: expect.stringContaining(`etcd at ${troubled.hosts}/troubled cannot be used`),
      });
    });
  });

  test("a closed port is STORE_UNAVAILABLE", async () => {
    const port = await freePort();
    await expect(open(`etcd://127.0.0.1:${port}/x`)).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining(`etcd at 127.0.0.1:${port}/x cannot be used`),
    });
  });

  test("a server that never answers is STORE_UNAVAILABLE", async () => {
    const port = await freePort();
    const silent = createSocketServer().listen(port, "127.0.0.1");
    await expect(open(`etcd://127.0.0.1:${port}/x?timeout=1`)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    silent.close();
  });
});

/** root, and users that may write, only read, or do nothing under `secure/`. */
async function secureUsers(admin: EtcdAdmin, password: string): Promise<void> {
  await admin.addUser("root", password, "secure");
  await admin.addUser("writer", password, "secure", "READWRITE");
  await admin.addUser("reader", password, "secure", "READ");
  await admin.addUser("nobody", password, "secure");
  await admin.enableAuth();
}

/** All keys that begin with `prefix`, which ends with a slash. */
const rangeUnder = (prefix: string) => ({
  key: Buffer.from(prefix),
  range_end: Buffer.from(prefix.replace(/\/$/, "0")),
});

const countUnder = async (client: EtcdClient, prefix: string): Promise<number> =>
  Number((await client.range({ ...rangeUnder(prefix), count_only: true })).count);
