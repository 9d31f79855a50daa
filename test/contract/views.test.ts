import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { formatIp, parseIp } from "../../provider/addressing/ip";
import { openStore } from "../../provider/ipam";
import { lockKey } from "../../provider/pool/engines/postgres/schema";
import { parsePostgresUrl } from "../../provider/pool/engines/postgres/url";
import { by, createPool, extents, openIpam, type Pool } from "./fixture";
import { type PostgresServer, postgresMissing, startPostgres } from "./servers/postgres";

vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

type Found = Record<string, unknown>;
interface Engine {
  url: string;
  /** Runs SQL as a user would, without the pool. */
  query(sql: string): Promise<Found[]>;
  /** Makes it a store of the previous release: without views, and with rows of version 2. */
  age(): Promise<void>;
  stop(): Promise<void>;
}

const OLD_ROWS = [
  "UPDATE kv SET value = replace(value, ',\"capacity\":\"256\"', '') WHERE key = 'p/pool%2Flb'",
  "UPDATE kv SET value = '2' WHERE key = 'v'",
];
const VIEWS = ["history", "leases", "free_ranges", "pools"];
const SETTINGS = { offerTtl: 3600, quarantine: 300, actor: "ops@ci" };
const STACK = "prod/urn:pulumi:prod::shop::overlay:index:StaticIP::";
const TENANT = { org: "acme", project: "web" };

async function startSqlite(): Promise<Engine> {
  const folder = mkdtempSync(join(tmpdir(), "overlay-views-"));
  const path = join(folder, "pool.db");
  const { DatabaseSync } = createRequire(__filename)("@photostructure/sqlite");
  const query = async (sql: string) => {
    const db = new DatabaseSync(path);
    const rows = db.prepare(sql).all();
    db.close();
    return rows.map((row: Found) => ({ ...row }));
  };
  return {
    url: `sqlite:${path}`,
    query,
    age: async () => {
      const views = VIEWS.map((view) => `DROP VIEW ${view}`);
      for (const sql of [...views, "PRAGMA user_version = 0", ...OLD_ROWS]) await query(sql);
    },
    stop: async () => rmSync(folder, { recursive: true }),
  };
}

async function startServer(): Promise<Engine & { server: PostgresServer }> {
  const server = await startPostgres("memory");
  return {
    server,
    url: server.url(),
    query: (sql) => asked(server, sql),
    age: async () => {
      for (const sql of [...OLD_ROWS, "UPDATE layout SET version = 2", `DROP VIEW ${VIEWS.join(", ")}`])
        await asked(server, sql);
    },
    stop: () => server.stop(),
  };
}

async function asked({ port }: PostgresServer, sql: string, user = "overlay"): Promise<Found[]> {
  const options = "-c search_path=overlay -c timezone=UTC";
  const client = new Client({ host: "127.0.0.1", port, user, database: "overlay", options });
  await client.connect();
  const { rows } = await client.query(sql).finally(() => client.end());
  return rows;
}

/** The queries of docs/stores.md, by their titles; those for one engine say so. */
function documented(engine: string): Map<string, string> {
  const text = readFileSync(join(__dirname, "../../docs/stores.md"), "utf8");
  const blocks = [...text.matchAll(/\n([^\n]+):\n+```sql\n([^`]+)```/g)];
  const named = blocks.map(([, title, sql]) => /^(.+?)(?:, on (\w+))?$/.exec(title!)!.slice(1).concat(sql!));
  return new Map(named.filter(([, only]) => (only ?? engine) === engine).map(([title, , sql]) => [title!, sql!]));
}

async function fill(pool: Ipam): Promise<void> {
  await createPool(pool, {
    name: "pool/lb",
    extents: extents("10.1.2.0/24"),
    tenant: TENANT,
    staticOnly: extents("10.1.2.9"),
  });
  await createPool(pool, { name: "pool/v6", extents: extents("fd00:0:0:1::/64") });
  await createPool(pool, { name: "pool/ports", kind: "port", extents: extents("8000-8099") });
  const more = { pool: "pool/lb", tenant: TENANT };
  await pool.claim({
    ...by(`${STACK}web`),
    ...more,
    want: extents("10.1.2.3"),
    usedBy: "web-1",
    labels: { role: "web" },
  });
  await pool.claim({ ...by("overlayctl/lb/job"), ...more, want: extents("10.1.2.4"), ttl: 3600 });
  const old = await pool.claim({ ...by("before"), ...more, want: extents("10.1.2.5") });
  await pool.release("pool/lb", old.leaseId);
  await pool.claim({ ...by("v6"), pool: "pool/v6", want: extents("fd00:0:0:1::a:0:b") });
  await pool.claim({ ...by(`${STACK}port`), pool: "pool/ports" });
}

const ENGINES: [string, string | false, () => Promise<Engine>][] = [
  ["SQLite", false, startSqlite],
  ["PostgreSQL", postgresMissing, startServer],
];

describe.each(ENGINES)("%s", (name, missing, start) => {
  describe.skipIf(missing)("views", () => {
    let engine: Engine;
    beforeAll(async () => {
      engine = await start();
      const pool = await openIpam(engine.url, SETTINGS);
      await fill(pool);
      await pool.end();
    });
    afterAll(() => engine?.stop());

    test("leases have their addresses, states, holders and times", async () => {
      const rows = await engine.query(
        "SELECT pool, address, number, state, owner, type, tenant, used_by, created_by FROM leases WHERE pool LIKE 'pool/%' ORDER BY pool, owner DESC",
      );
      const none = { address: null, number: null, tenant: null, used_by: null, created_by: "ops@ci" };
      const lease = { ...none, type: "IPReservation", state: "reserved" };
      const numbered = rows.map(({ number, ...row }) => ({ ...row, number: number === null ? null : Number(number) }));
      expect(numbered).toEqual([
        {
          ...lease,
          pool: "pool/lb",
          address: "10.1.2.3",
          owner: `${STACK}web`,
          state: "used",
          tenant: "acme/web",
          used_by: "web-1",
        },
        { ...lease, pool: "pool/lb", address: "10.1.2.4", owner: "overlayctl/lb/job", tenant: "acme/web" },
        {
          ...lease,
          pool: "pool/lb",
          address: "10.1.2.5",
          owner: "before",
          state: "quarantined",
          tenant: "acme/web",
          created_by: null,
        },
        { ...lease, pool: "pool/ports", number: 8000, owner: `${STACK}port` },
        { ...lease, pool: "pool/v6", address: "fd00::1:0:a:0:b", owner: "v6" },
      ]);
      const [times] = await engine.query("SELECT created_at, expires_at FROM leases WHERE address = '10.1.2.4'");
      const [created, expires] = ["created_at", "expires_at"].map((field) => timeOf(times![field]));
      expect(expires! - created!).toBe(3_600_000);
      expect(Math.abs(created! - Date.now())).toBeLessThan(600_000);
    });

    test("free_ranges has the values that no lease has", async () => {
      const rows = await engine.query(
        "SELECT address, last_address, static_only FROM free_ranges WHERE pool = 'pool/lb' ORDER BY address",
      );
      expect(rows.map(({ static_only, ...row }) => ({ ...row, static_only: Boolean(static_only) }))).toEqual(
        [
          { address: "10.1.2.0", last_address: "10.1.2.2", static_only: false },
          { address: "10.1.2.10", last_address: "10.1.2.255", static_only: false },
          { address: "10.1.2.6", last_address: "10.1.2.8", static_only: false },
          { address: "10.1.2.9", last_address: "10.1.2.9", static_only: true },
        ].sort((a, b) => (name === "SQLite" ? 0 : Number(parseIp(a.address) - parseIp(b.address)))),
      );
    });

    test("addresses are written as the pool writes them", async () => {
      const values = Array.from({ length: 300 }, (_, i) => randomAddress(i));
      const pool = await openIpam(engine.url, SETTINGS);
      await pool.importLeases(
        values.map((value, i) => ({
          pool: "space/default",
          owner: `random ${i}`,
          type: "IPPool",
          want: [{ first: value, last: value }],
        })),
      );
      await pool.end();
      const rows = await engine.query("SELECT owner, address FROM leases WHERE owner LIKE 'random %'");
      const found = new Map(rows.map(({ owner, address }) => [owner, address]));
      expect(values.map((_, i) => found.get(`random ${i}`))).toEqual(values.map(formatIp));
    });

    test("the queries of docs/stores.md give their answers", async () => {
      const queries = documented(name);
      const answers: Record<string, Found[]> = {};
      for (const [title, sql] of queries) answers[title] = await engine.query(sql);
      const [port] = await engine.query("SELECT pool FROM leases WHERE number = 8000");
      expect(port).toEqual({ pool: "pool/ports" });
      expect(Object.keys(answers)).toHaveLength(5);
      expect(answers["Who holds 10.1.2.3"]).toEqual([
        expect.objectContaining({ pool: "pool/lb", state: "used", owner: `${STACK}web`, used_by: "web-1" }),
      ]);
      expect(answers["What the stack `prod` of the project `shop` holds"]!.map(({ owner }) => owner)).toEqual([
        `${STACK}web`,
        `${STACK}port`,
      ]);
      expect(answers["What expires within a day"]!.map(({ address }) => address)).toEqual(["10.1.2.5", "10.1.2.4"]);
      const full = answers["How full each pool is"]!.filter(({ name }) => String(name).startsWith("pool/"));
      expect(
        full.map(({ name, held, capacity, percent }) => [name, Number(held), Number(capacity), Number(percent)]),
      ).toEqual([
        ["pool/ports", 1, 100, 1],
        ["pool/lb", 2, 256, 0.8],
        ["pool/v6", 1, 2 ** 64, 0],
      ]);
      expect(answers["What happened to 10.1.2.5"]!.map(({ what, owner, actor }) => [what, owner, actor])).toEqual([
        ["claimed", "before", "ops@ci"],
        ["released", "before", "ops@ci"],
      ]);
    });

    test("no view has secrets, tokens, or parts of tokens", async () => {
      const pool = await openIpam(engine.url, SETTINGS);
      await pool.replaceSecret("ring", () => "not-to-be-seen");
      await pool.end();
      const [lease] = await engine.query("SELECT value FROM kv WHERE key >= 'l/pool%2Flb' AND key < 'l/pool%2Flb0'");
      const { leaseId } = JSON.parse(String(lease!.value));
      for (const view of VIEWS) {
        const text = JSON.stringify(await engine.query(`SELECT * FROM ${view}`));
        for (const hidden of ["not-to-be-seen", leaseId]) expect(text).not.toContain(hidden);
      }
    });

    test("a store of the previous release gets the views when it is opened, and keeps its leases", async () => {
      const before = await engine.query("SELECT * FROM leases ORDER BY pool, uid, address");
      await engine.age();
      await expect(engine.query("SELECT * FROM leases")).rejects.toThrow();
      await (await openIpam(engine.url, SETTINGS)).end();
      expect(await engine.query("SELECT * FROM leases ORDER BY pool, uid, address")).toEqual(before);
      const [pool] = await engine.query("SELECT capacity FROM pools WHERE name = 'pool/lb'");
      expect(Number(pool!.capacity)).toBe(256);
    });

    test.each([
      ["table", "CREATE TABLE history (mine text)"],
      ["view", "CREATE VIEW pools AS SELECT 1 AS mine"],
    ])("a %s of the user's with the name of a view is kept, and a warning names it", async (kind, create) => {
      const relation = create.split(" ")[2]!;
      const errors = vi.spyOn(console, "error").mockImplementation(() => {});
      await engine.age();
      await engine.query(create);
      await (await openIpam(engine.url, SETTINGS)).end();
      const said = errors.mock.calls.flat().join("\n");
      errors.mockRestore();
      expect(said).toMatch(
        new RegExp(`^warning: The views leases, .* are not up to date .*${relation} exists and is not ours`),
      );
      await engine.query(`SELECT mine FROM ${relation}`);
      await engine.query(`DROP ${kind} ${relation}`);
      await (await openIpam(engine.url, SETTINGS)).end();
      expect(await engine.query("SELECT owner FROM leases WHERE address = '10.1.2.3'")).toHaveLength(1);
    });
  });
});

const timeOf = (value: unknown): number => (value instanceof Date ? value.getTime() : Date.parse(`${value}Z`));

/** Of either family, with runs of zeros; no two are the same. */
function randomAddress(i: number): bigint {
  if (i % 3 === 0) return parseIp(`172.16.${Math.floor(i / 200)}.${i % 200}`);
  const groups = Array.from({ length: 6 }, () => (Math.random() < 0.6 ? 0 : Math.floor(Math.random() * 0x10000)));
  return parseIp([0x2001, ...groups, i].map((group) => group.toString(16)).join(":"));
}

describe.skipIf(postgresMissing)("PostgreSQL", () => {
  let engine: Awaited<ReturnType<typeof startServer>>;
  beforeAll(async () => {
    engine = await startServer();
    const pool = await openIpam(engine.url, SETTINGS);
    await fill(pool);
    await pool.end();
  });
  afterAll(() => engine?.stop());

  test("a role that may read the views sees them, and none of the tables", async () => {
    await engine.query(
      `CREATE ROLE dashboard LOGIN; GRANT USAGE ON SCHEMA overlay TO dashboard; GRANT SELECT ON ${VIEWS} TO dashboard`,
    );
    expect(await asked(engine.server, "SELECT owner FROM leases WHERE address = '10.1.2.3'", "dashboard")).toHaveLength(
      1,
    );
    for (const table of ["kv", "log", "secrets"])
      await expect(asked(engine.server, `SELECT FROM ${table}`, "dashboard")).rejects.toThrow("permission denied");
  });

  test("users that may read the rows may read the views, also where these are made later", async () => {
    await engine.query(`
      CREATE ROLE rows_reader LOGIN; CREATE ROLE rows_writer LOGIN; GRANT USAGE ON SCHEMA overlay TO rows_reader, rows_writer;
      GRANT SELECT ON layout, kv, log TO rows_reader; GRANT SELECT ON layout TO rows_writer;
      GRANT SELECT, INSERT, UPDATE, DELETE ON kv, log, secrets TO rows_writer`);
    await engine.age();
    // A user that may not make views can use the store without them, and does not wait for the lock of commits.
    const lock = lockKey(parsePostgresUrl(engine.url));
    const holder = new Client({ host: "127.0.0.1", port: engine.server.port, user: "overlay", database: "overlay" });
    await holder.connect();
    await holder.query("SELECT pg_advisory_lock($1)", [lock]);
    for (const login of ["rows_reader", "rows_writer"])
      await (await openStore(engine.server.url({ login }), SETTINGS)).close();
    await holder.end();
    expect(await engine.query("SELECT version FROM layout")).toEqual([{ version: 2 }]);
    await (await openIpam(engine.url, SETTINGS)).end();
    // Views of the previous release, with the same columns, are replaced.
    const definition = "SELECT pg_get_viewdef('pools'::regclass) AS text";
    const [current] = await engine.query(definition);
    await engine.query(`UPDATE layout SET version = 3;
      CREATE OR REPLACE VIEW pools AS ${String(current!.text).replace("COALESCE(counts.quarantined, 0)", "0")}`);
    expect(await engine.query(definition)).not.toEqual([current]);
    await (await openIpam(engine.url, SETTINGS)).end();
    expect(await engine.query(definition)).toEqual([current]);
    for (const login of ["rows_reader", "rows_writer"]) {
      expect(await asked(engine.server, "SELECT owner FROM leases WHERE address = '10.1.2.3'", login)).toHaveLength(1);
      await (await openIpam(engine.server.url({ login }), SETTINGS)).end();
    }
  });
});
