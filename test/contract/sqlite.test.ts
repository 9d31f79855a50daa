import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, describe, expect, test, vi } from "vitest";
import { loadSqlite } from "../../provider/ipam/store/sqlite-file";
import { contract } from "./contract";
import { by, createPool, ranges } from "./fixture";
import { retentionContract } from "./retention";
import { newProcesses, processContract, restoreContract } from "./servers/shared";
import { urlEngine } from "./url-engine";

vi.setConfig({ testTimeout: 60_000 });

describe("sqlite", () => {
  const folder = mkdtempSync(join(tmpdir(), "overlay-contract-"));
  afterAll(() => rmSync(folder, { recursive: true }));
  const newUrl = () => `sqlite:${join(folder, randomUUID(), "pool.db")}`;
  const fileOf = (url: string) => url.replace("sqlite:", "");
  const open = newProcesses();

  contract(urlEngine("sqlite", newUrl));
  retentionContract(urlEngine("sqlite", newUrl));
  processContract(newUrl);

  const sql = async (file: string, text: string): Promise<void> => {
    const db = new (await loadSqlite()).DatabaseSync(file, { readOnly: false });
    db.exec("PRAGMA busy_timeout = 5000");
    db.exec(text);
    db.close();
  };

  /** As `.backup` of the command sqlite3. */
  const saveTo = (url: string, backup: string) => sql(fileOf(url), `VACUUM INTO '${backup}'`);

  describe("a backup whose rows are written into the file", () => {
    const backUp = async (url: string) => {
      const backup = `${fileOf(url)}.backup`;
      await saveTo(url, backup);
      return async () => {
        const db = new (await loadSqlite()).DatabaseSync(fileOf(url), { readOnly: false });
        db.exec(`ATTACH '${backup}' AS backup`);
        const tables = db.prepare("SELECT name FROM backup.sqlite_master WHERE type = 'table'").all();
        const copies = (tables as { name: string }[]).map(
          ({ name }) => `DELETE FROM main."${name}"; INSERT INTO main."${name}" SELECT * FROM backup."${name}";`,
        );
        db.exec(`BEGIN IMMEDIATE; ${copies.join(" ")} COMMIT`);
        db.close();
      };
    };
    restoreContract({ newUrl, backUp });
  });

  describe("a backup that is put in the place of the file", () => {
    const backUp = async (url: string) => {
      const backup = `${fileOf(url)}.backup`;
      await saveTo(url, backup);
      return async () => {
        for (const suffix of ["-wal", "-shm"]) rmSync(fileOf(url) + suffix, { force: true });
        renameSync(backup, fileOf(url));
      };
    };
    restoreContract({ newUrl, backUp });
  });

  test("a file that may only be read serves reads, has a reason why it offers nothing, and refuses claims", async () => {
    const url = newUrl();
    const writer = await open(url);
    await createPool(writer, { ranges: ranges("10.0.0.0/29") });
    await writer.claim(by("a"));
    const reader = await open(`${url}?mode=ro`);
    expect((await reader.describe()).whyNoOffers).toBe("the store is read-only");
    expect(await reader.find({ pool: "pool/p", owner: "a" })).toMatchObject({ state: "reserved" });
    await expect(reader.claim(by("b"))).rejects.toMatchObject({ code: "STORE_READ_ONLY" });
    expect(await writer.leases("pool/p")).toHaveLength(1);
  });

  test("a file that another process has locked for a moment is waited for", async () => {
    const url = newUrl();
    const pool = await open(url);
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const rival = new (await loadSqlite()).DatabaseSync(fileOf(url), { readOnly: false });
    rival.exec("BEGIN IMMEDIATE");
    setTimeout(() => rival.exec("COMMIT"), 300);
    const started = performance.now();
    await pool.claim(by("a"));
    expect(performance.now() - started).toBeGreaterThan(250);
    rival.close();
  });

  test("a page that was overwritten is STORE_CORRUPT, and nothing is given out", async () => {
    const url = newUrl();
    const pool = await open(url);
    await createPool(pool, { ranges: ranges("10.0.0.0/20") });
    await pool.claim(by("a"));
    await sql(fileOf(url), "PRAGMA wal_checkpoint(TRUNCATE)");
    const bytes = readFileSync(fileOf(url));
    bytes.fill(0xa5, 4096);
    writeFileSync(fileOf(url), bytes);
    const claim = open(url).then((broken) => broken.claim(by("b")));
    await expect(claim).rejects.toMatchObject({ code: "STORE_CORRUPT" });
  });

  /** What the kernel had on disk when a value was printed: strace shows writes and syncs of the log in their order. */
  test.skipIf(!existsSync("/usr/bin/strace"))("a claim is on disk before it is answered", async () => {
    const url = newUrl();
    const trace = join(folder, "trace");
    const worker = [
      process.execPath,
      "--import",
      "tsx",
      join(__dirname, "servers/claim-worker.ts"),
      url,
      "w",
      "20",
      "1",
    ];
    const calls = "trace=write,writev,pwrite64,fdatasync,fsync";
    const args = ["-f", "-y", "-e", calls, "-e", "signal=none", "-o", trace, ...worker];
    await promisify(execFile)("strace", args);
    const lines = readFileSync(trace, "utf8").split("\n");
    let [isSynced, answers] = [true, 0];
    for (const line of lines) {
      if (/ pwrite64\(\d+<[^>]*pool\.db-wal>/.test(line)) isSynced = false;
      if (/ (fdatasync|fsync)\(\d+<[^>]*pool\.db-wal>.*= 0/.test(line)) isSynced = true;
      if (!/ write\(1<.*claimed /.test(line)) continue;
      answers++;
      expect(isSynced, line).toBe(true);
    }
    expect(answers).toBe(20);
  });
});
