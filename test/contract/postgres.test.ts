import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { openPostgresStore } from "../../provider/pool/engines/postgres/store";
import { VIEWS } from "../../provider/pool/engines/view-names";
import { LAYOUT } from "../../provider/pool/storage/layout";
import type { Tx } from "../../provider/pool/storage/store";
import { snapshot } from "../../provider/pool/storage/transfer";
import { contract } from "./contract";
import { by, createPool, extents, openPool, type Pool } from "./fixture";
import { rowContract } from "./rows/contract";
import { type Authority, newAuthority } from "./servers/certificates";
import { FaultyProxy } from "./servers/faulty-proxy";
import { type PostgresServer, postgresMissing, startPostgres, USER } from "./servers/postgres";
import { freePort, removeFolder } from "./servers/process";
import { crashContract, serverContract } from "./servers/shared";
import { OpenStores } from "./servers/stores";
import { urlEngine } from "./url-engine";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

const write = async (tx: Tx): Promise<void> => {
  await tx.write([["x", "1"]]);
};

describe.skipIf(postgresMissing)(`postgres${postgresMissing ? `: ${postgresMissing}` : ""}`, () => {
  const stores = new OpenStores();
  let server: PostgresServer;
  let schemas = 0;
  beforeAll(async () => {
    server = await startPostgres("memory");
  });
  afterEach(() => stores.closeAll());
  afterAll(() => server?.stop());

  const newUrl = (proxy?: FaultyProxy) =>
    server.url({ schema: `s${schemas++}`, ...(proxy && { port: proxy.ports[0]! }) });
  const open = async (url: string, options = {}) => stores.add(await openPostgresStore(url, options));

  const engine = urlEngine("postgres", newUrl);
  contract(engine);
  rowContract({ ...engine, openStore: (url, clock) => open(url, { clock }) });
  const dumpWithoutSecrets = async (url: string): Promise<string> => {
    const schema = new URL(url).searchParams.get("schema")!;
    const tables = await server.sql(
      `SELECT table_name AS name FROM information_schema.tables WHERE table_schema = '${schema}' AND table_name <> 'secrets'`,
    );
    const dump = tables.map(({ name }) => `SELECT t::text AS line FROM ${schema}.${name} t`).join(" UNION ALL ");
    return (await server.sql(dump)).map(({ line }) => line).join("\n");
  };
  const commitBytes = "overlay commit\0";
  serverContract({ newUrl, open, startProxy: () => FaultyProxy.to([server.port]), commitBytes, dumpWithoutSecrets });

  describe("crash", () => {
    let durable: PostgresServer;
    beforeAll(async () => {
      // An acknowledged commit must be on disk, whatever the server's setting is.
      durable = await startPostgres("disk", { settings: ["synchronous_commit=off"] });
    });
    afterAll(() => durable?.stop());
    crashContract({ newUrl: () => durable.url(), open }, async () => {
      await durable.crash();
      await durable.start();
    });
  });

  describe("read-only", () => {
    const terms = { offerTtl: 3600, quarantine: 300 };
    const version = async (tx: Tx): Promise<unknown> => await tx.get("v");

    test.each([
      ["a user that may only read", "GRANT SELECT ON ALL TABLES IN SCHEMA shown TO reader"],
      [
        "a user whose sessions may only read",
        "ALTER ROLE reader SUPERUSER; ALTER ROLE reader SET default_transaction_read_only = on",
      ],
    ])("%s serves previews", async (_who, grant) => {
      await (await openPool(server.url({ schema: "shown" }), terms)).end();
      await server.sql(`CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA shown TO reader; ${grant}`);
      const store = await open(server.url({ schema: "shown", login: "reader" }));
      expect(store.readOnly).toBe(true);
      expect(await store.read(version)).toBe(String(LAYOUT));
      await expect(store.transact(write)).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
      await server.sql("DROP OWNED BY reader; DROP ROLE reader");
    });

    test("a standby serves previews", async () => {
      await (await openPool(server.url({ schema: "followed" }), terms)).end();
      const standby = await startPostgres("memory", { standbyOf: server });
      try {
        const store = await openPostgresStore(standby.url({ schema: "followed" }));
        expect(store.readOnly).toBe(true);
        expect(await store.read(version)).toBe(String(LAYOUT));
        await expect(store.transact(write)).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
        await store.close();
        await expect(openPostgresStore(standby.url({ schema: "missing" }))).rejects.toMatchObject({
          code: "STORE_READ_ONLY",
          message: expect.stringContaining("has no pool in the schema missing yet"),
        });
      } finally {
        await standby.stop();
      }
    });
  });

  test("concurrent transactions all commit, and leave no lock", async () => {
    const url = newUrl();
    const crowd = await Promise.all(Array.from({ length: 4 }, () => open(url)));
    const add = async (tx: Tx): Promise<void> => {
      const sum = Number((await tx.get("sum")) ?? 0);
      await tx.write([["sum", String(sum + 1)]]);
    };
    await Promise.all(
      crowd.map(async (store) => {
        for (let i = 0; i < 40; i++) await store.transact(add);
      }),
    );
    const sum = async (tx: Tx): Promise<unknown> => await tx.get("sum");
    expect(await crowd[0]!.read(sum)).toBe("160");
    const locks = () => server.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory'");
    await vi.waitFor(async () => expect(await locks()).toEqual([]), { timeout: 5000 });
  });

  test("a server that has lost commits allocates nothing more", async () => {
    const store = await open(newUrl());
    for (let i = 0; i < 3; i++) await store.transact(write);
    await server.sql(`DELETE FROM s${schemas - 1}.log WHERE number > 1`);
    await expect(store.transact(write)).rejects.toMatchObject({
      code: "STORE_LOST",
      message: expect.stringContaining("went back from version 3 to 1"),
    });
  });

  test("a restored dump is refused by a stack that has seen a newer version, also after new commits", async () => {
    const url = newUrl();
    const schema = `s${schemas - 1}`;
    const withPool = async <T>(act: (pool: Pool) => Promise<T>): Promise<T> => {
      const pool = await openPool(url, { offerTtl: 3600, quarantine: 300 });
      return act(pool).finally(() => pool.end());
    };
    await withPool((pool) => createPool(pool, { extents: extents("10.0.0.0/29") }));
    for (const table of ["kv", "log"])
      await server.sql(`CREATE TABLE ${schema}.dump_${table} AS TABLE ${schema}.${table}`);
    await sleep(1000);
    const seen = await withPool(async (pool) => {
      await pool.claim(by("first stack"));
      return pool.identity();
    });
    for (const table of ["kv", "log"])
      await server.sql(`TRUNCATE ${schema}.${table}; INSERT INTO ${schema}.${table} TABLE ${schema}.dump_${table}`);
    await expect(withPool((pool) => pool.mustInclude(seen))).rejects.toMatchObject({ code: "STORE_LOST" });
    await sleep(1000);
    for (const owner of ["second stack", "third stack"]) await withPool((pool) => pool.claim(by(owner)));
    await expect(withPool((pool) => pool.mustInclude(seen))).rejects.toMatchObject({ code: "STORE_LOST" });
  });

  test("tables of a newer program are not changed", async () => {
    const url = newUrl();
    await (await open(url)).close();
    await server.sql(`UPDATE s${schemas - 1}.layout SET version = 99`);
    await expect(open(url)).rejects.toMatchObject({
      code: "STORE_VERSION",
      message: expect.stringContaining("layout 99"),
    });
  });

  describe("secrets", () => {
    const terms = { offerTtl: 3600, quarantine: 300 };
    const SECRET = "swordfish";
    const holding = (tables: string[], schema: string) =>
      server.sql(
        tables
          .map((table) => `SELECT '${table}' AS found FROM ${schema}.${table} t WHERE t::text LIKE '%${SECRET}%'`)
          .join(" UNION ALL "),
      );

    test("are in a table of their own, and not in the log", async () => {
      const url = newUrl();
      const [pool, other] = [await openPool(url, terms), await openPool(url, terms)];
      await pool.replaceSecret("ring", () => SECRET);
      expect(await other.findSecret("ring")).toBe(SECRET);
      expect(await other.replaceSecret("ring", (kept) => `${kept} and more`)).toBe(`${SECRET} and more`);
      expect(await pool.replaceSecret("ring", (kept) => `${kept}!`)).toBe(`${SECRET} and more!`);
      await Promise.all([pool.end(), other.end()]);
      expect(await holding(["kv", "log", "secrets"], `s${schemas - 1}`)).toEqual([{ found: "secrets" }]);
      const rows = await snapshot(await open(url));
      expect(rows).toContainEqual(["k/ring", `${SECRET} and more!`]);
      expect(rows.map(([key]) => key)).toEqual(rows.map(([key]) => key).sort());
    });

    test("are moved there from the table of an earlier program, with its grants for writing", async () => {
      const url = newUrl();
      const schema = `s${schemas - 1}`;
      const pool = await openPool(url, terms);
      await pool.replaceSecret("ring", () => SECRET);
      await pool.end();
      await server.sql(`
        ALTER TABLE ${schema}.kv DROP CONSTRAINT no_secrets;
        INSERT INTO ${schema}.kv TABLE ${schema}.secrets; DROP TABLE ${schema}.secrets;
        UPDATE ${schema}.log SET writes = '[["k/ring","${SECRET}"]]' WHERE number = 1;
        DROP VIEW ${VIEWS.map((view) => `${schema}.${view}`)}; UPDATE ${schema}.layout SET version = 1;
        CREATE ROLE old_writer LOGIN; CREATE ROLE old_reader LOGIN;
        GRANT USAGE ON SCHEMA ${schema} TO old_writer, old_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA ${schema} TO old_writer, old_reader;
        GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO old_writer`);
      expect(await holding(["kv", "log"], schema)).toHaveLength(2);
      await (await openPool(url, terms)).end();
      expect(await holding(["kv", "log", "secrets"], schema)).toEqual([{ found: "secrets" }]);
      const writer = await openPool(server.url({ schema, login: "old_writer" }), terms);
      expect(await writer.replaceSecret("ring", (kept) => `${kept} again`)).toBe(`${SECRET} again`);
      await writer.end();
      const reader = await openPool(server.url({ schema, login: "old_reader" }), terms);
      await expect(reader.findSecret("ring")).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
      await reader.end();
      await server.sql("DROP OWNED BY old_writer, old_reader; DROP ROLE old_writer, old_reader");
    });

    test("cannot be read by the roles of docs/postgresql-roles.sql for reading and for a tenant", async () => {
      const tenants = [
        { org: "acme", project: "web" },
        { org: "other", project: "web" },
      ];
      const owner = await openPool(server.url(), terms);
      await owner.replaceSecret("ring", () => SECRET);
      for (const [i, tenant] of tenants.entries()) {
        const name = `pool/${tenant.org}`;
        await createPool(owner, { name, extents: extents(`10.0.${i}.0/29`), tenant });
        await owner.claim({ ...by("stack"), pool: name, tenant });
      }
      await server.sql(readFileSync(join(__dirname, "../../docs/postgresql-roles.sql"), "utf8"));
      await server.sql(`
        CREATE ROLE w LOGIN IN ROLE overlay_writer; CREATE ROLE r LOGIN IN ROLE overlay_reader;
        CREATE ROLE t LOGIN IN ROLE overlay_tenant_acme_web`);
      const as = (role: string, text: string) => server.sql(`SET ROLE ${role}; ${text}`);

      const writer = await openPool(server.url({ login: "w" }), terms);
      expect(await writer.findSecret("ring")).toBe(SECRET);
      await writer.claim({ ...by("writer"), pool: "pool/acme", tenant: tenants[0]! });
      await writer.end();

      const reader = await openPool(server.url({ login: "r" }), terms);
      expect((await reader.pools()).map(({ name }) => name)).toEqual(
        expect.arrayContaining(["pool/acme", "pool/other"]),
      );
      expect(await reader.leases("pool/acme")).toHaveLength(2);
      await expect(reader.claim({ ...by("reader"), pool: "pool/acme", tenant: tenants[0]! })).rejects.toMatchObject({
        code: "STORE_READ_ONLY",
      });
      await reader.end();
      for (const view of ["leases", "pools", "free_ranges", "history"]) await as("r", `SELECT FROM overlay.${view}`);
      for (const text of [
        "SELECT FROM overlay.secrets",
        "DELETE FROM overlay.kv",
        "UPDATE overlay.kv SET value = ''",
        "INSERT INTO overlay.kv VALUES ('x', '')",
        "DELETE FROM overlay.log",
      ])
        await expect(as("r", text)).rejects.toThrow("permission denied");

      for (const table of ["kv", "log", "secrets"])
        await expect(as("t", `SELECT FROM overlay.${table}`)).rejects.toThrow("permission denied");
      const client = new Client({ host: "127.0.0.1", port: server.port, user: "t", database: "overlay" });
      await client.connect();
      const { rows } = await client
        .query("SELECT key FROM overlay.tenant_acme_web ORDER BY key")
        .finally(() => client.end());
      expect(rows.map(({ key }) => key.split("/").slice(0, 2).join("/"))).toEqual([
        "l/pool%2Facme",
        "l/pool%2Facme",
        "p/pool%2Facme",
      ]);
      await owner.end();
    });
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
      const store = await open(secure.url({ login, sslmode, sslrootcert: authority.ca, ...place }));
      expect(store.readOnly).toBe(false);
    });

    test("another machine without TLS, where the URL says so, is warned about", async () => {
      const warnings: string[] = [];
      const warn = (text: string) => void warnings.push(text);
      await open(server.url({ schema: "exposed", host: REMOTE, sslmode: "disable" }), { warn });
      expect(warnings).toEqual([
        `PostgreSQL at ${REMOTE}:${server.port}/overlay is used without TLS, because of sslmode=disable.`,
      ]);
    });

    test("a certificate instead of a password", async () => {
      const { cert: sslcert, key: sslkey } = authority.issue("certified", "DNS:client");
      await open(secure.url({ login: "certified", sslmode: "verify-ca", sslrootcert: authority.ca, sslcert, sslkey }));
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
      const error = await open(secure.url(fields())).catch((error: unknown) => error as Error & { code: string });
      expect(error).toMatchObject({ code, message: expect.stringContaining(text) });
      expect(everythingIn(error)).not.toMatch(/not.{1,3}to.{1,3}be.{1,3}seen/);
    });
  });

  test("a closed port is STORE_UNAVAILABLE", async () => {
    const port = await freePort();
    await expect(open(server.url({ port }))).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining(`PostgreSQL at 127.0.0.1:${port}/overlay cannot be used: connect ECONNREFUSED`),
    });
  });

  test("a server that never answers is STORE_UNAVAILABLE", async () => {
    const port = await freePort();
    const silent = createServer().listen(port, "127.0.0.1");
    await expect(open(server.url({ port, connect_timeout: 1 }))).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("timeout"),
    });
    silent.close();
  });
});

/** An error as a log would show it, with its causes. */
const everythingIn = (error: unknown): string => inspect(error, { depth: 10, showHidden: true });
