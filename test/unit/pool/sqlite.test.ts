import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, expect, test } from "vitest";
import { networkName, openSqliteStore, walIsSafe } from "../../../provider/pool/engines/sqlite/store";
import type { Tx } from "../../../provider/pool/storage/store";
import { by, createPool, extents, openPool } from "../../contract/fixture";

const top = mkdtempSync(join(tmpdir(), "overlay-sqlite-"));
afterAll(() => rmSync(top, { recursive: true }));
const settings = { offerTtl: 3600, quarantine: 300 };

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(top, "t-"));
});

const put = (key: string, value: string) => async (tx: Tx) => {
  await tx.write([[key, value]]);
};

test("a new pool file and its folder are accessible to their user only", async () => {
  const pool = await openPool(`sqlite:${folder}/deep/er/pool.db`, settings);
  expect(statSync(join(folder, "deep")).mode & 0o777).toBe(0o700);
  expect(statSync(join(folder, "deep/er/pool.db")).mode & 0o777).toBe(0o600);
  await pool.end();
});

test("claimed leases are there after the process has ended", async () => {
  const first = await openPool(`sqlite:${folder}/pool.db`, settings);
  await createPool(first, { kind: "id", extents: extents("1-9") });
  const lease = await first.claim(by("a"));
  await first.end();
  const second = await openPool(`sqlite:${folder}/pool.db`, settings);
  expect(await second.find("pool/p", { owner: "a" })).toEqual(lease);
  await second.end();
});

test("a read-only store can be read, has a reason why it offers nothing, and refuses claims", async () => {
  const writer = await openPool(`sqlite:${folder}/pool.db`, settings);
  await createPool(writer, { kind: "id", extents: extents("1-9") });
  await writer.claim(by("a"));
  const reader = await openPool(`sqlite:${folder}/pool.db?mode=ro`, settings);
  expect(reader.whyNoOffers).toBe("the store is read-only");
  expect(await reader.find("pool/p", { owner: "a" })).toMatchObject({ state: "reserved" });
  await expect(reader.claim(by("b"))).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
  expect(await writer.leases("pool/p")).toHaveLength(1);
  await reader.end();
  await writer.end();
});

test("a file that is not a database is STORE_CORRUPT", async () => {
  writeFileSync(join(folder, "pool.db"), "this was never a database, however long it is ".repeat(100));
  await expect(openPool(`sqlite:${folder}/pool.db`, settings)).rejects.toMatchObject({ code: "STORE_CORRUPT" });
});

test("a store with an older layout is migrated: index rows that are not needed are removed", async () => {
  const first = await openPool(`sqlite:${folder}/pool.db`, settings);
  await createPool(first, { extents: extents("10.0.0.0/24") });
  const { uid } = await first.claim(by("a"));
  await first.end();
  const store = await openSqliteStore(join(folder, "pool.db"));
  await store.transact(put("v", "1"));
  await store.transact(put(`x/pool%2Fp/h/0000000000ff/${uid}`, uid));
  await store.close();
  const pool = await openPool(`sqlite:${folder}/pool.db`, settings);
  expect(await pool.fsck()).toEqual([]);
  expect(await pool.find("pool/p", { owner: "a" })).toMatchObject({ uid });
  await pool.end();
});

/** Runs SQL on the file, as a user would. */
function query(sql: string): unknown[] {
  const { DatabaseSync } = createRequire(__filename)("@photostructure/sqlite");
  const db = new DatabaseSync(join(folder, "pool.db"));
  try {
    return db.prepare(sql).all();
  } finally {
    db.close();
  }
}

test("views of an older release are replaced; a table of the same name is not", async () => {
  await (await openPool(`sqlite:${folder}/pool.db`, settings)).end();
  for (const sql of ["DROP VIEW leases", "CREATE VIEW leases AS SELECT 1 AS old", "PRAGMA user_version = 1"])
    query(sql);
  await (await openPool(`sqlite:${folder}/pool.db`, settings)).end();
  expect(query("SELECT child_pool FROM leases")).toEqual([]);
  for (const sql of ["DROP VIEW leases", "CREATE TABLE leases (mine TEXT)", "PRAGMA user_version = 1"]) query(sql);
  await (await openPool(`sqlite:${folder}/pool.db`, settings)).end();
  expect(query("SELECT mine FROM leases")).toEqual([]);
});

test("a store of a newer version is not changed", async () => {
  const store = await openSqliteStore(join(folder, "pool.db"));
  await store.transact(put("v", "6"));
  await store.close();
  await expect(openPool(`sqlite:${folder}/pool.db`, settings)).rejects.toMatchObject({
    message: "STORE_VERSION: The store has layout 6; this program knows layouts up to 5. Update pulumi-overlay.",
  });
});

test("a path that cannot be a file is STORE_UNAVAILABLE, with the reason", async () => {
  mkdirSync(join(folder, "pool.db"));
  await expect(openPool(`sqlite:${folder}/pool.db`, settings)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  writeFileSync(join(folder, "file"), "");
  await expect(openPool(`sqlite:${folder}/file/pool.db`, settings)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
  });
  await expect(openPool(`sqlite:${folder}/missing.db?mode=ro`, settings)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
  });
});

test("a process waits for a locked file, and fails after a timeout", async () => {
  const path = join(folder, "pool.db");
  const [patient, hasty] = [await openSqliteStore(path), await openSqliteStore(path, { lockTimeout: 0.1 })];
  const { DatabaseSync } = await import("@photostructure/sqlite");
  const rival = new DatabaseSync(path);
  rival.exec("BEGIN IMMEDIATE");
  const waiting = patient.transact(put("a", "1"));
  await expect(hasty.transact(put("b", "2"))).rejects.toMatchObject({ code: "STORE_CONFLICT" });
  rival.exec("ROLLBACK");
  await waiting;
  rival.close();
  await patient.close();
  await hasty.close();
});

test.each(["postgress://x/y", "nonsense", "", "sqlite:"])("the store '%s' is not a setting", async (url) => {
  await expect(openPool(url, settings)).rejects.toMatchObject({ code: "SETTING_INVALID" });
});

test.each([
  ["3.51.2", false],
  ["3.51.3", true],
  ["3.45.1", false],
  ["3.53.0", true],
  ["4.0.0", true],
])("SQLite %s may use a write-ahead log: %s", (version, safe) => {
  expect(walIsSafe(version)).toBe(safe);
});

test.each([
  [0x6969, "NFS"],
  [0xff534d42, "CIFS"],
  [-11317950, "CIFS"],
  [0xfe534d42, "SMB"],
  [0xef53, undefined],
  [0x01021994, undefined],
])("file system %i is %s", (type, name) => {
  expect(networkName(type)).toBe(name);
});
