import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import type { OverlayError } from "../../../provider/errors";
import { openSqlite } from "../../../provider/ipam/store/sqlite";
import { by, createPool, openPool, ranges } from "../../contract/fixture";

const folder = mkdtempSync(join(tmpdir(), "overlay-observer-"));
afterAll(() => rmSync(folder, { recursive: true }));

test("an observer is told of commits with their changes, of transactions, and of operations that failed", async () => {
  const seen: string[] = [];
  const pool = await openPool("memory:", {
    offerTtl: 60,
    quarantine: 0,
    observer: {
      claimFailed: (place, error) => seen.push(`${place} ${(error as OverlayError).code}`),
      committed: (events) => seen.push(events.map(({ id, what, owner }) => `${id} ${what} ${owner}`).join(", ")),
      operationFailed: (error) => seen.push(`failed: ${(error as OverlayError).code}`),
      transaction: (kind, seconds) => seen.push(`${kind}${seconds >= 0 ? "" : "?"}`),
    },
  });
  await createPool(pool, { ranges: ranges("10.0.0.0/29") });
  seen.length = 0;
  await Promise.allSettled([pool.claim(by("a")), pool.claim(by("b")), pool.claim(by("c", { pool: "pool/none" }))]);
  expect(seen.sort()).toEqual([
    "2 claimed a, 3 claimed b",
    "failed: POOL_NOT_FOUND",
    "pool/none POOL_NOT_FOUND",
    "write",
  ]);
  seen.length = 0;
  await expect(pool.events({ after: 99 })).rejects.toThrow(/^EVENTS_LOST/);
  expect(seen).toEqual(["read", "failed: EVENTS_LOST"]);
  await pool.end();
});

test("a transaction that waits for another process counts as a conflict", async () => {
  let conflicts = 0;
  const settings = { offerTtl: 60, quarantine: 0, observer: { conflict: () => conflicts++ } };
  const pool = await openPool(`sqlite:${folder}/pool.db`, settings);
  const other = await openSqlite(`${folder}/pool.db`);
  const held = await other.begin([], []);
  setTimeout(() => held.rollBack(), 100);
  await createPool(pool, { ranges: ranges("10.0.0.0/20") });
  await Promise.all([pool.end(), other.close()]);
  expect(conflicts).toBeGreaterThan(0);
});
