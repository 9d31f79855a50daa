import { randomUUID } from "node:crypto";
import { chmodSync, existsSync, rmSync, statSync, writeFileSync } from "node:fs";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { indexOf, SEARCHES, type Search } from "../../../provider/ipam/store/queries";
import { expand, statements } from "../../../provider/ipam/store/sql";
import { openSqlite } from "../../../provider/ipam/store/sqlite";
import { loadSqlite, networkName, walIsSafe } from "../../../provider/ipam/store/sqlite-file";
import { Conflict, type Engine } from "../../../provider/ipam/store/store";
import { changesOf, engineContract, eventOf, find, headOf, leaseRow, remember, write } from "../engine";
import { newFolder } from "../servers/process";

const open = async (url: string, options: Parameters<typeof openSqlite>[1] = {}) =>
  remember(await openSqlite(url, options), url);

const folder = newFolder("memory");
afterAll(() => rmSync(folder, { recursive: true }));
const newPath = () => `${folder}/${randomUUID()}.db`;

const opened: Engine[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((engine) => engine.close()));
});
const openHere = async (...args: Parameters<typeof open>) => {
  const engine = await open(...args);
  opened.push(engine);
  return engine;
};

const sql = async (path: string, text: string): Promise<void> => {
  const db = new (await loadSqlite()).DatabaseSync(path, { readOnly: false });
  db.exec("PRAGMA busy_timeout = 5000");
  db.exec(text);
  db.close();
};

const lease = leaseRow("a", 1n);

describe("a file", () => {
  engineContract({
    newUrl: newPath,
    open,
    sql: (path, text) => sql(path, text("")),
    hasConnections: true,
    guardsConflict: false,
  });

  test("that every user of the machine can read is refused, unless its folder is closed to them", async () => {
    const path = newPath();
    await (await open(path)).close();
    chmodSync(path, 0o644);
    await (await open(path)).close();
    chmodSync(folder, 0o755);
    const refusal = {
      code: "STORE_UNAVAILABLE",
      what: expect.stringContaining("(mode 644)"),
      fix: expect.stringContaining(`chmod o-rw ${path}`),
    };
    await expect(open(path)).rejects.toMatchObject(refusal);
    chmodSync(path, 0o640);
    await (await open(path)).close();
    chmodSync(folder, 0o700);
  });

  test("every query seeks in indexes", async () => {
    const path = newPath();
    await openHere(path);
    const db = new (await loadSqlite()).DatabaseSync(path, { readOnly: true });
    const plans = Object.entries(statements).map(([name, { text }]) => {
      const rows = db.prepare(`EXPLAIN QUERY PLAN ${expand(text, "")}`).all() as { detail: string }[];
      return { name, plan: rows.map(({ detail }) => detail) };
    });
    db.close();
    for (const { name, plan } of plans) {
      const scans = plan.filter((line) => line.startsWith("SCAN ") && line !== "SCAN found");
      expect(scans.length, `${name}: ${plan.join("; ")}`).toBe(name === "secrets" ? 1 : 0);
      if (name !== "secrets") expect(plan.join("\n"), name).toContain("SEARCH ");
      const search: Search | undefined = SEARCHES[name as keyof typeof SEARCHES];
      const index = search && indexOf(search);
      if (index)
        expect(plan[0], name).toContain(`INDEX ${(search.through ?? search.table).name}_${index.columns.join("_")} (`);
    }
  });

  test("that another process has locked is a conflict at once, and can be read", async () => {
    const path = newPath();
    const [one, two] = [await openHere(path), await openHere(path)];
    const tx = await one.begin([], ["pool/p"]);
    const started = Date.now();
    expect(() => two.begin([], ["pool/q"])).toThrow(Conflict);
    expect(Date.now() - started).toBeLessThan(1000);
    expect(await find(two, { of: "lease", uid: "a" })).toEqual({});
    await tx.commit(changesOf({ leases: [lease] }));
    await write(two, { isVersion: true });
    expect(await find(two, { of: "lease", uid: "a" })).toEqual({ leases: [lease] });
  });

  test("that stays locked while it is opened", async () => {
    const path = newPath();
    const db = new (await loadSqlite()).DatabaseSync(path, { readOnly: false });
    db.exec("BEGIN EXCLUSIVE");
    await expect(open(path, { lockTimeoutMs: 100 })).rejects.toMatchObject({ code: "STORE_CONFLICT" });
    db.exec("ROLLBACK");
    db.close();
  });

  test("is made with its folder, for its user alone", async () => {
    const path = `${folder}/${randomUUID()}/deep/pool.db`;
    await openHere(path);
    expect([statSync(path).mode & 0o777, statSync(`${path}/..`.replace("pool.db/..", "")).mode & 0o777]).toEqual([
      0o600, 0o700,
    ]);
  });

  test("that is opened for reading shows the pool, and takes no writes", async () => {
    const path = newPath();
    await write(await openHere(path), { leases: [lease], documents: [{ kind: "secret", key: "k", value: "v" }] });
    const reader = await openHere(path, { readOnly: true });
    expect(reader.readOnly).toBe(true);
    expect(await find(reader, { of: "lease", uid: "a" })).toEqual({ leases: [lease] });
    expect(() => reader.begin([], [])).toThrow(/STORE_READ_ONLY/);
  });

  test("that is empty and read-only has no pool", async () => {
    const path = newPath();
    writeFileSync(path, "");
    chmodSync(path, 0o400);
    await expect(open(path, { readOnly: true })).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
  });

  const refused: [what: string, sql: string, code: string, text: string][] = [
    ["of a newer release", "UPDATE store SET layout = 99", "STORE_VERSION", "layout 99"],
    ["of an older release", "DROP TABLE store; CREATE TABLE kv (key)", "STORE_VERSION", "older release"],
  ];
  test.each(refused)("%s is left alone", async (_what, text, code, message) => {
    const path = newPath();
    await (await open(path)).close();
    await sql(path, text);
    await expect(open(path)).rejects.toMatchObject({ code, message: expect.stringContaining(message) });
  });

  test("that is no database", async () => {
    const path = newPath();
    writeFileSync(path, "x".repeat(5000));
    await expect(open(path)).rejects.toMatchObject({ code: "STORE_CORRUPT" });
  });

  test("where no file can be", async () => {
    const file = newPath();
    writeFileSync(file, "");
    await expect(open(`${file}/pool.db`)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  });

  test("has its commits in the write-ahead log", async () => {
    const path = newPath();
    await write(await openHere(path), { leases: [lease] });
    expect(existsSync(`${path}-wal`)).toBe(true);
  });

  test("many processes may make it at once", async () => {
    const path = newPath();
    const engines = await Promise.all(Array.from({ length: 5 }, () => openHere(path)));
    const ids = await Promise.all(engines.map(async (engine) => (await headOf(engine)).id));
    expect(new Set(ids).size).toBe(1);
  });

  test("a clock that leapt is noticed, and accepted by a repair", async () => {
    const path = newPath();
    const start = 1_795_000_000_000;
    let [now, uptime] = [start, 1000];
    const engine = await openHere(path, { clock: () => now, bootTime: () => ({ boot: "b", uptime }) });
    await write(engine, { isVersion: true });
    [now, uptime] = [start + 3_600_000, 2000];
    expect(() => engine.begin([])).toThrow(/STORE_CLOCK/);
    expect(() => engine.begin([], [])).toThrow(/STORE_CLOCK/);
    now = start - 3_600_000;
    expect(() => engine.begin([])).toThrow(/STORE_CLOCK/);
    expect(await engine.checkClock!(false)).toMatchObject({ repairable: true });
    expect(await engine.checkClock!(true)).toMatchObject({ repairable: true });
    expect(await engine.checkClock!(true)).toBeUndefined();
    await write(engine, { isVersion: true });
  });
});

describe("in memory", () => {
  test("is one database for all that open the same name, also after a close", async () => {
    const name = `memory:${randomUUID()}`;
    const [one, two] = [await openHere(name), await openHere(name)];
    await write(one, { leases: [lease], events: [eventOf(lease)] });
    expect(await find(two, { of: "lease", uid: "a" })).toEqual({ leases: [lease] });
    await one.close();
    expect(await headOf(await openHere(name))).toMatchObject({ version: 1, lastEvent: 1 });
  });

  test(":memory: is another one each time", async () => {
    await write(await openHere(":memory:"), { leases: [lease] });
    expect(await find(await openHere(":memory:"), { of: "lease", uid: "a" })).toEqual({});
  });
});

test.each([
  ["3.51.2", false],
  ["3.51.3", true],
  ["3.52.0", true],
  ["4.0.0", true],
])("the write-ahead log of SQLite %s is safe: %s", (version, isSafe) => expect(walIsSafe(version)).toBe(isSafe));

test.each([
  [0x6969, "NFS"],
  [-11317950, "CIFS"],
  [0x65735546, "FUSE"],
  [0x01021997, "9P"],
  [0xef53, undefined],
])("file system %d is %s", (type, name) => expect(networkName(type)).toBe(name));
