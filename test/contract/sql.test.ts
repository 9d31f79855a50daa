import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { openIpam } from "../../provider/ipam";
import { loadSqlite } from "../../provider/ipam/store/sqlite-file";
import { by, createPool, type Pool, poolOf, ranges } from "./fixture";
import { postgresMissing, startPostgres } from "./servers/postgres";

vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

type Found = Record<string, unknown>;

interface Store {
  url: string;
  /** Runs SQL as an operator does, without the pool. */
  query(sql: string): Promise<Found[]>;
  stop(): Promise<void>;
}

const SETTINGS = { offerTtl: 3600, quarantine: 300, actor: "ops@ci" };
const STACK = "prod/urn:pulumi:prod::shop::overlay:index:StaticIP::";
const TENANT = { org: "acme", project: "web" };

async function startSqlite(): Promise<Store> {
  const folder = mkdtempSync(join(tmpdir(), "overlay-sql-"));
  const path = join(folder, "pool.db");
  const { DatabaseSync } = await loadSqlite();
  const query = async (sql: string) => {
    const db = new DatabaseSync(path, { readOnly: true });
    const rows = db.prepare(sql).all() as Found[];
    db.close();
    return rows;
  };
  return { url: `sqlite:${path}`, query, stop: async () => rmSync(folder, { recursive: true }) };
}

async function startServer(): Promise<Store> {
  const server = await startPostgres("memory");
  const query = async (sql: string) => {
    const options = "-c search_path=overlay";
    const client = new Client({ host: "127.0.0.1", port: server.port, user: "overlay", database: "overlay", options });
    await client.connect();
    return (await client.query(sql).finally(() => client.end())).rows as Found[];
  };
  return { url: server.url(), query, stop: () => server.stop() };
}

/** The queries of docs/stores.md, by their titles; those for one engine say so. */
function documented(engine: string): Map<string, string> {
  const text = readFileSync(join(__dirname, "../../docs/stores.md"), "utf8");
  const blocks = [...text.matchAll(/\n([^\n]+):\n+```sql\n([^`]+)```/g)];
  const named = blocks.map(([, title, sql]) => [.../^(.+?)(?:, on (\w+))?$/.exec(title!)!.slice(1), sql!]);
  return new Map(named.filter(([, only]) => (only ?? engine) === engine).map(([title, , sql]) => [title!, sql!]));
}

async function fill(pool: Pool): Promise<void> {
  await createPool(pool, { name: "pool/lb", ranges: ranges("10.1.2.0/24"), tenant: TENANT });
  await createPool(pool, { name: "pool/v6", ranges: ranges("fd00:0:0:1::/64") });
  await createPool(pool, { name: "pool/ports", kind: "port", ranges: ranges("8000-8099") });
  const more = { pool: "pool/lb", tenant: TENANT };
  await pool.claim({ ...by(`${STACK}web`), ...more, values: ranges("10.1.2.3"), usedBy: "web-1" });
  await pool.claim({ ...by("overlayctl/lb/job"), ...more, values: ranges("10.1.2.4"), ttl: 3600 });
  const old = await pool.claim({ ...by("before"), ...more, values: ranges("10.1.2.5") });
  await pool.release("pool/lb", old.leaseId);
  await pool.claim({ ...by("v6"), pool: "pool/v6", values: ranges("fd00:0:0:1::a:0:b") });
  await pool.claim({ ...by(`${STACK}port`), pool: "pool/ports" });
}

const STORES: [string, string | false, () => Promise<Store>][] = [
  ["SQLite", false, startSqlite],
  ["PostgreSQL", postgresMissing, startServer],
];

describe.each(STORES)("the tables of %s", (name, missing, start) => {
  describe.skipIf(missing)("answer the queries of docs/stores.md", () => {
    let store: Store;
    const answers: Record<string, Found[]> = {};
    beforeAll(async () => {
      store = await start();
      const ipam = await openIpam(store.url, SETTINGS);
      await fill(poolOf(ipam));
      await ipam.end();
      for (const [title, sql] of documented(name)) answers[title] = await store.query(sql);
    });
    afterAll(() => store?.stop());

    test("who holds an address", () => {
      expect(answers["Who holds 10.1.2.3, from the address to the network that it is in"]).toMatchObject([
        { pool: "pool/lb", state: "used", owner: `${STACK}web`, used_by: "web-1", expires: null },
        { pool: "space/address", state: "reserved" },
      ]);
    });

    test("what a stack holds", () => {
      const held = answers["What the stack `prod` of the project `shop` holds"]!;
      expect(held.map(({ pool, owner }) => [pool, owner])).toEqual([
        ["pool/lb", `${STACK}web`],
        ["pool/ports", `${STACK}port`],
      ]);
    });

    test("what expires next", () => {
      const [job, ...more] = answers["What expires within a day"]!;
      expect([job, more]).toMatchObject([{ pool: "pool/lb", owner: "overlayctl/lb/job" }, []]);
      const expires = job!.expires instanceof Date ? job!.expires.getTime() : Date.parse(`${job!.expires}Z`);
      expect(Math.abs(expires - Date.now() - 3_600_000)).toBeLessThan(600_000);
    });

    test("how full the pools are", () => {
      const full = answers["How full each pool is (of fewer than 2<sup>48</sup> values)"]!.filter(({ name }) =>
        ["pool/lb", "pool/ports"].includes(String(name)),
      );
      expect(
        full.map(({ name, ...counts }) => [
          name,
          ...["leases", "held", "capacity", "percent"].map((of) => Number(counts[of])),
        ]),
      ).toEqual([
        ["pool/ports", 1, 1, 100, 1],
        ["pool/lb", 2, 2, 256, 0.8],
      ]);
    });

    test("what happened to an address", () => {
      expect(answers["What happened to 10.1.2.5"]!.map(({ what, owner, made_by }) => [what, owner, made_by])).toEqual([
        ["claimed", "before", "ops@ci"],
        ["released", "before", "ops@ci"],
      ]);
    });

    test("with conversions of addresses", async () => {
      const [head, ...lines] = readFileSync(join(__dirname, "../../docs/stores.md"), "utf8")
        .split("\n")
        .filter((line) => /^\| (10\.0\.0\.5|to )/.test(line))
        .map((line) => line.split(/ \| |^\| | \|$/).map((cell) => cell.replaceAll("\\|", "|")));
      const column = head!.indexOf(name);
      const [digits, v4, v6] = lines.map((cells) => /`([^`]+)`/.exec(cells[column]!)?.[1]);
      const ask = async (expression: string, first: string) =>
        (await store.query(`SELECT ${expression} AS found FROM (SELECT '${first}' AS first) AS range`))[0]!.found;
      const value = "00000000000000000000ffff0a000005";
      expect(await ask(digits!, value)).toBe(value);
      expect(String(await ask(v4!, value))).toBe(name === "SQLite" ? String(0x0a000005) : "10.0.0.5");
      if (v6) expect(await ask(v6, "fd00000000000001000000000000000b")).toBe("fd00:0:0:1::b");
    });
  });
});
