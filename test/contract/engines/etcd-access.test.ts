import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createSocketServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { type EtcdOptions, openEtcd } from "../../../provider/ipam/store/etcd/engine";
import { readClusterTime } from "../../../provider/ipam/store/etcd/time";
import { parseEtcdUrl } from "../../../provider/ipam/store/etcd/url";
import type { Engine } from "../../../provider/ipam/store/store";
import { find, leaseRow, offerRow, write } from "../engine";
import { type Authority, type Certificate, newAuthority } from "../servers/certificates";
import { type EtcdCluster, etcdMissing, startEtcd } from "../servers/etcd";
import type { EtcdAdmin } from "../servers/etcd-admin";
import { freePort, removeFolder } from "../servers/process";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

const CLAIM = { leases: [leaseRow("a", 1n)] };
const leasesIn = async (engine: Engine): Promise<string[]> =>
  ((await find(engine, { of: "lease", uid: "a" })).leases ?? []).map(({ uid }) => uid);

describe.skipIf(etcdMissing)(`access to etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  const engines: Engine[] = [];
  const open = async (url: string, options: EtcdOptions = {}): Promise<Engine> => {
    const engine = await openEtcd(url, options);
    engines.push(engine);
    return engine;
  };
  afterEach(async () => {
    for (const engine of engines.splice(0)) await engine.close();
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
      await write(store, CLAIM);
      expect(await leasesIn(store)).toEqual(["a"]);
    });

    test("a token that has expired is renewed", async () => {
      const store = await open(secureUrl(`writer:${hidden}`));
      await leasesIn(store);
      await sleep(2500);
      await write(store, { offers: [offerRow("x")] });
      expect(await leasesIn(store)).toEqual(["a"]);
    });

    test("with a user that may only read, previews work", async () => {
      const store = await open(secureUrl(`reader:${hidden}`));
      expect(store.readOnly).toBe(true);
      expect(await leasesIn(store)).toEqual(["a"]);
      await expect(write(store, CLAIM)).rejects.toMatchObject({
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
      await write(store, CLAIM);
      await troubled.admin.setSpaceAlarm("ACTIVATE");
      await expect(write(store, CLAIM)).rejects.toMatchObject({
        code: "STORE_READ_ONLY",
        message: expect.stringContaining("is full"),
      });
      const again = await open(url());
      expect(again.readOnly).toBe(true);
      expect(await leasesIn(again)).toEqual(["a"]);
      await troubled.admin.setSpaceAlarm("DEACTIVATE");
    });

    test("that has lost most of its members is unavailable", async () => {
      const store = await open(`${url()}?timeout=1`, { patience: 1 });
      for (const member of troubled.members.slice(1)) await member.kill("SIGKILL");
      await expect(write(store, CLAIM)).rejects.toMatchObject({ cause: { code: "STORE_UNAVAILABLE" } });
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
