import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { inspect } from "node:util";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { findSpec, findUsage, historyOf, listSpecs } from "../../provider/ipam/interface";
import { openPostgres, type PostgresOptions } from "../../provider/ipam/store/postgres";
import { TABLES } from "../../provider/ipam/store/schema";
import type { Engine } from "../../provider/ipam/store/store";
import { contract } from "./contract";
import { by, createPool, openPool, ranges } from "./fixture";
import { retentionContract } from "./retention";
import { type Authority, newAuthority } from "./servers/certificates";
import { FaultyProxy } from "./servers/faulty-proxy";
import { type PostgresServer, postgresMissing, startPostgres, USER } from "./servers/postgres";
import { freePort, removeFolder } from "./servers/process";
import { crashContract, newProcesses, processContract, restoreContract } from "./servers/shared";
import { urlEngine } from "./url-engine";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

describe.skipIf(postgresMissing)(`postgres${postgresMissing ? `: ${postgresMissing}` : ""}`, () => {
  let server: PostgresServer;
  let schemas = 0;
  const engines: Engine[] = [];
  beforeAll(async () => {
    server = await startPostgres("memory");
  });
  afterEach(async () => {
    for (const engine of engines.splice(0)) await engine.close();
  });
  afterAll(() => server?.stop());

  const newUrl = () => server.url({ schema: `s${schemas++}` });
  const schemaOf = (url: string) => new URL(url).searchParams.get("schema") ?? "overlay";
  const open = newProcesses();
  const openEngine = async (url: string, options?: PostgresOptions): Promise<Engine> => {
    const engine = await openPostgres(url, options);
    engines.push(engine);
    return engine;
  };

  contract(urlEngine("postgres", newUrl));
  retentionContract(urlEngine("postgres", newUrl));
  processContract(newUrl);

  describe("a dump whose rows are written into the tables", () => {
    const backUp = async (url: string) => {
      const tables = TABLES.map(({ name }) => `${schemaOf(url)}.${name}`);
      await server.sql(tables.map((name) => `CREATE TABLE ${name}_dump AS TABLE ${name}`).join("; "));
      const restore = tables.map((name) => `TRUNCATE ${name}; INSERT INTO ${name} TABLE ${name}_dump`).join("; ");
      return async () => void (await server.sql(restore));
    };
    restoreContract({ newUrl, backUp });
  });

  describe("a server that is killed", () => {
    let durable: PostgresServer;
    beforeAll(async () => {
      // An acknowledged commit must be on disk, whatever the server's setting is.
      durable = await startPostgres("disk", { settings: ["synchronous_commit=off"] });
    });
    afterAll(() => durable?.stop());
    crashContract(
      "and starts again",
      () => durable.url(),
      async () => {
        await durable.crash();
        await durable.start();
      },
    );
  });

  describe("a standby that takes over", () => {
    let [primary, standby]: PostgresServer[] = [];
    let proxy: FaultyProxy;
    beforeEach(async () => {
      primary = await startPostgres("memory");
      proxy = await FaultyProxy.to([primary.port]);
      await (await openPool(primary.url(), { offerTtl: 3600, quarantine: 300 })).end();
      standby = await startPostgres("memory", { standbyOf: primary });
    });
    afterEach(async () => {
      await proxy?.end();
      await primary?.stop();
      await standby?.stop();
    });
    const urlOf = () => primary!.url({ port: proxy.ports[0]! });
    const failOver = async () => {
      await primary!.crash();
      await standby!.sql("SELECT pg_promote()");
      proxy.targets[0] = standby!.port;
      proxy.disconnect();
    };
    const set = (of: PostgresServer, setting: string) =>
      of.sql(`ALTER SYSTEM SET ${setting}`).then(() => of.sql("SELECT pg_reload_conf()"));

    describe("with synchronous replication", () => {
      beforeEach(async () => {
        await set(primary!, "synchronous_standby_names = '*'");
        const isSync = () => primary!.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        await vi.waitFor(async () => expect(await isSync()).toHaveLength(1), { timeout: 10_000 });
      });
      crashContract("under load", urlOf, failOver);
    });

    describe("without the last commits", () => {
      const backUp = async () => {
        const where = async () => (await primary!.sql("SELECT pg_current_wal_lsn() AS at"))[0]!.at;
        const behind = `SELECT 1 WHERE pg_last_wal_replay_lsn() < '${await where()}'`;
        await vi.waitFor(async () => expect(await standby!.sql(behind)).toEqual([]), { timeout: 10_000 });
        await set(standby!, "primary_conninfo = ''");
        const isGone = () => primary!.sql("SELECT 1 FROM pg_stat_replication");
        await vi.waitFor(async () => expect(await isGone()).toEqual([]), { timeout: 10_000 });
        return failOver;
      };
      restoreContract({ newUrl: urlOf, backUp });
    });

    test("serves reads before, and takes no writes", async () => {
      const pool = await open(standby!.url());
      expect((await pool.describe()).whyNoOffers).toBe("the store is read-only");
      expect(await listSpecs(pool)).toEqual([]);
      await expect(pool.claim(by("a"))).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
      await expect(openEngine(standby!.url({ schema: "missing" }))).rejects.toMatchObject({
        code: "STORE_READ_ONLY",
        message: expect.stringContaining("has no pool in the schema missing yet"),
      });
    });
  });

  test("reads that begin before a commit of their process, and are answered after it, find no commit lost", async () => {
    const pool = await open(newUrl());
    await createPool(pool, { ranges: ranges("10.0.0.0/20") });
    let isOver = false;
    const claims = (async () => {
      for (let i = 0; i < 300; i++) await pool.claim(by(`${i}`));
      isOver = true;
    })();
    const reading = [1, 2, 3].map(async () => {
      while (!isOver) await findUsage(pool, "pool/p");
    });
    await Promise.all([claims, ...reading]);
  });

  test("sessions that may only read serve reads", async () => {
    const url = newUrl();
    await createPool(await open(url), { ranges: ranges("10.0.0.0/29") });
    await server.sql("CREATE ROLE quiet LOGIN SUPERUSER; ALTER ROLE quiet SET default_transaction_read_only = on");
    const pool = await open(server.url({ schema: schemaOf(url), login: "quiet" }));
    expect(await findSpec(pool, "pool/p")).toMatchObject({ name: "pool/p" });
    await expect(pool.claim(by("a"))).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
  });

  test("the roles of docs/postgresql-roles.sql", async () => {
    const terms = { offerTtl: 3600, quarantine: 300 };
    const tenants = [
      { org: "acme", project: "web" },
      { org: "other", project: "web" },
    ];
    const owner = await open(server.url());
    const webhook = { id: "w", url: "https://example.com", secret: "swordfish", createdAt: 1 };
    await owner.replaceSecret("ring", () => "swordfish");
    await owner.webhooks.add(webhook);
    for (const [i, tenant] of tenants.entries()) {
      const name = `pool/${tenant.org}`;
      await createPool(owner, { name, ranges: ranges(`10.0.${i}.0/29`), tenant });
      await owner.claim(by("stack", { pool: name, tenant }));
    }
    await server.sql(readFileSync(join(__dirname, "../../docs/postgresql-roles.sql"), "utf8"));
    await server.sql(`CREATE ROLE w LOGIN IN ROLE overlay_writer; CREATE ROLE r LOGIN IN ROLE overlay_reader;
      CREATE ROLE t LOGIN IN ROLE overlay_tenant_acme_web`);
    const claim = by("other stack", { pool: "pool/acme", tenant: tenants[0]! });

    const writer = await open(server.url({ login: "w" }));
    expect(await writer.findSecret("ring")).toBe("swordfish");
    expect(await writer.webhooks.list()).toEqual([webhook]);
    await writer.claim(claim);

    const reader = await openPool(server.url({ login: "r" }), terms);
    expect((await listSpecs(reader, { prefix: "pool/" })).map(({ name }) => name)).toEqual(["pool/acme", "pool/other"]);
    expect(await reader.leases("pool/acme")).toHaveLength(2);
    expect(await historyOf(reader, "pool/acme")).toHaveLength(2);
    await reader.describe(await reader.describe());
    const refused = { code: "STORE_READ_ONLY" };
    await expect(reader.claim(claim)).rejects.toMatchObject(refused);
    await expect(reader.findSecret("ring")).rejects.toMatchObject(refused);
    await expect(reader.webhooks.list()).rejects.toMatchObject(refused);
    await reader.end();

    const as = async (user: string, text: string): Promise<Record<string, unknown>[]> => {
      const client = new Client({ host: "127.0.0.1", port: server.port, user, database: "overlay" });
      await client.connect();
      return (await client.query(text).finally(() => client.end())).rows;
    };
    for (const { name } of TABLES) {
      const rows = name === "secret" ? undefined : await as("r", `SELECT t::text AS line FROM overlay.${name} t`);
      expect(JSON.stringify(rows ?? ""), name).not.toContain("swordfish");
      await expect(as("r", `DELETE FROM overlay.${name}`)).rejects.toThrow("permission denied");
      await expect(as("t", `SELECT FROM overlay.${name}`)).rejects.toThrow("permission denied");
    }
    await expect(as("r", "SELECT FROM overlay.secret")).rejects.toThrow("permission denied");
    expect(await as("t", "SELECT name FROM overlay.tenant_acme_web_pools")).toEqual([{ name: "pool/acme" }]);
    const leases = await as("t", "SELECT owner, pool FROM overlay.tenant_acme_web_leases ORDER BY owner");
    expect(leases).toEqual([
      { owner: "other stack", pool: "pool/acme" },
      { owner: "stack", pool: "pool/acme" },
    ]);
  });

  describe("with TLS and passwords", () => {
    let secure: PostgresServer;
    let authority: Authority;
    /** Did not issue the server's certificate. */
    let otherAuthority: Authority;
    /** Linux routes it to this machine, but the store cannot know that, and treats it as another one. */
    const REMOTE = "0.0.0.0";
    const secret = "not/to:be@seen";
    const login = `overlay:${encodeURIComponent(secret)}`;
    beforeAll(async () => {
      [authority, otherAuthority] = [newAuthority(USER), newAuthority()];
      const { cert, key } = authority.issue("server", "DNS:localhost");
      secure = await startPostgres("memory", {
        settings: ["ssl=on", `ssl_cert_file=${cert}`, `ssl_key_file=${key}`, `ssl_ca_file=${authority.ca}`],
        hba: ["hostssl overlay certified all cert", "hostssl overlay all all scram-sha-256"],
      });
      await secure.sql(`ALTER ROLE overlay PASSWORD '${secret}'; CREATE ROLE certified LOGIN SUPERUSER`);
    });
    afterAll(async () => {
      await secure?.stop();
      for (const { folder } of [authority, otherAuthority]) removeFolder(folder);
    });

    test.each([
      ["require", {}],
      ["verify-ca", { host: "127.0.0.1" }],
      ["verify-full", { host: "localhost" }],
    ])("sslmode %s", async (sslmode, place) => {
      const store = await openEngine(secure.url({ login, sslmode, sslrootcert: authority.ca, ...place }));
      expect(store.readOnly).toBe(false);
    });

    test("another machine without TLS, where the URL says so, is warned about", async () => {
      const warnings: string[] = [];
      const warn = (text: string) => void warnings.push(text);
      await openEngine(server.url({ schema: "exposed", host: REMOTE, sslmode: "disable" }), { warn });
      expect(warnings).toEqual([
        `PostgreSQL at ${REMOTE}:${server.port}/overlay is used without TLS, because of sslmode=disable.`,
      ]);
    });

    test("a certificate instead of a password", async () => {
      const { cert: sslcert, key: sslkey } = authority.issue("certified", "DNS:client");
      await openEngine(
        secure.url({ login: "certified", sslmode: "verify-ca", sslrootcert: authority.ca, sslcert, sslkey }),
      );
    });

    const refusals: [
      what: string,
      fields: () => Parameters<PostgresServer["url"]>[0] & object,
      code: string,
      text: string,
    ][] = [
      [
        "a wrong password",
        () => ({ login: `${login}x`, sslmode: "require" }),
        "STORE_UNAVAILABLE",
        "refuses overlay: password authentication failed",
      ],
      ["no TLS", () => ({ login, sslmode: "disable" }), "STORE_UNAVAILABLE", "refuses overlay: no pg_hba.conf entry"],
      [
        "an unknown authority",
        () => ({ login, sslmode: "verify-full", host: "localhost" }),
        "STORE_UNAVAILABLE",
        "certificate",
      ],
      [
        "another authority",
        () => ({ login, host: "localhost", sslrootcert: otherAuthority.ca }),
        "STORE_UNAVAILABLE",
        "certificate",
      ],
      ["another machine of an unknown authority", () => ({ login, host: REMOTE }), "STORE_UNAVAILABLE", "certificate"],
      [
        "another machine of an unknown authority, with sslmode=require",
        () => ({ login, host: REMOTE, sslmode: "require" }),
        "STORE_UNAVAILABLE",
        "certificate",
      ],
      [
        "another machine with another host's certificate, with sslmode=require",
        () => ({ login, host: REMOTE, sslmode: "require", sslrootcert: authority.ca }),
        "STORE_UNAVAILABLE",
        "certificate",
      ],
      [
        "another machine without TLS",
        () => ({ login, host: REMOTE, port: server.port }),
        "STORE_UNAVAILABLE",
        "does not support SSL",
      ],
      ["another host's certificate", () => ({ login, sslrootcert: authority.ca }), "STORE_UNAVAILABLE", "certificate"],
      [
        "a server without TLS",
        () => ({ login, sslmode: "require", port: server.port }),
        "STORE_UNAVAILABLE",
        "does not support SSL",
      ],
      [
        "an unknown database",
        () => ({ login, sslmode: "require", database: "other" }),
        "STORE_UNAVAILABLE",
        "no pg_hba.conf entry",
      ],
      [
        "an unknown database, elsewhere",
        () => ({ port: server.port, database: "other" }),
        "STORE_UNAVAILABLE",
        'database "other" does not exist',
      ],
      [
        "an unknown option",
        () => ({ login, sslmode: "require", colour: "red" }),
        "SETTING_INVALID",
        "'colour' is not one of",
      ],
      [
        "an unknown sslmode",
        () => ({ login, sslmode: "perhaps" }),
        "SETTING_INVALID",
        "disable, require, verify-ca, verify-full",
      ],
      [
        "a missing file",
        () => ({ login, sslrootcert: "/missing.pem" }),
        "SETTING_INVALID",
        "sslrootcert cannot be read",
      ],
      ["not a number as port", () => ({ login, port: "x" as unknown as number }), "SETTING_INVALID", "it is not a URL"],
    ];
    test.each(refusals)("%s is reported without a secret", async (_what, fields, code, text) => {
      const error = await openEngine(secure.url(fields())).catch((error: unknown) => error as Error & { code: string });
      expect(error).toMatchObject({ code, message: expect.stringContaining(text) });
      expect(everythingIn(error)).not.toMatch(/not.{1,3}to.{1,3}be.{1,3}seen/);
    });
  });

  test("a closed port is STORE_UNAVAILABLE", async () => {
    const port = await freePort();
    await expect(openEngine(server.url({ port }))).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining(`PostgreSQL at 127.0.0.1:${port}/overlay cannot be used: connect ECONNREFUSED`),
    });
  });

  test("a server that never answers is STORE_UNAVAILABLE", async () => {
    const port = await freePort();
    const silent = createServer().listen(port, "127.0.0.1");
    await expect(openEngine(server.url({ port, connect_timeout: 1 }))).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("timeout"),
    });
    silent.close();
  });
});

/** An error as a log would show it, with its causes. */
const everythingIn = (error: unknown): string => inspect(error, { depth: 10, showHidden: true });
