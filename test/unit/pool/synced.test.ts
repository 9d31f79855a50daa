import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { openPool } from "../../../provider/ipam";
import { by, createPool, extents } from "../../contract/fixture";

vi.mock("node:fs", async (original) => {
  const real = await original<typeof fs>();
  return { ...real, fdatasyncSync: vi.fn(real.fdatasyncSync) };
});

/** After a power cut the file and its log are as at the last sync. */
function keepSynced(path: string, copy: string): () => void {
  const [synced, files] = [vi.mocked(fs.fdatasyncSync), ["", "-wal"]];
  synced.mockImplementation(() => {
    for (const end of files) fs.copyFileSync(path + end, copy + end);
  });
  return () => synced.mockReset();
}

/** How often the log was synced before these were answered. */
async function syncs(act: () => Promise<unknown>): Promise<number> {
  const counted = vi.mocked(fs.fdatasyncSync);
  counted.mockClear();
  await act();
  return counted.mock.calls.length;
}

test("SQLite syncs a lease before it is answered, once for concurrent claims; an offer is not synced", async () => {
  const folder = fs.mkdtempSync(join(tmpdir(), "overlay-synced-"));
  const pool = await openPool(`sqlite:${folder}/pool.db`, { offerTtl: 3600, quarantine: 300 });
  await createPool(pool, { kind: "id", extents: extents("1-99") });
  expect(await syncs(() => pool.claim(by("a")))).toBe(1);
  expect(await syncs(() => pool.offer(by("b")))).toBe(0);
  expect(await syncs(() => pool.claim(by("b")))).toBe(1);
  expect(await syncs(() => Promise.all([pool.offer(by("c")), pool.claim(by("d")), pool.claim(by("e"))]))).toBe(1);
  expect(await syncs(async () => pool.release("pool/p", (await pool.find("pool/p", { owner: "a" }))!.leaseId))).toBe(1);
  await pool.end();
  fs.rmSync(folder, { recursive: true });
});

test("after a power cut SQLite has the version that the last claim returned, whatever previews have offered since", async () => {
  const folder = fs.mkdtempSync(join(tmpdir(), "overlay-synced-"));
  const terms = { offerTtl: 3600, quarantine: 300 };
  const end = keepSynced(`${folder}/pool.db`, `${folder}/disk.db`);
  const pool = await openPool(`sqlite:${folder}/pool.db`, terms);
  await createPool(pool, { kind: "id", extents: extents("1-99") });
  const { id } = await pool.identity();
  const lease = await pool.claim(by("a"));
  await pool.offer(by("b"));
  const unsynced = await pool.identity();
  end();
  const survived = await openPool(`sqlite:${folder}/disk.db`, terms);
  await survived.mustInclude({ id, ...pool.versionOf(lease)! });
  await expect(survived.mustInclude(unsynced)).rejects.toThrow(/^STORE_LOST/);
  await Promise.all([pool.end(), survived.end()]);
  fs.rmSync(folder, { recursive: true });
});
