import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe } from "vitest";
import { openSqliteStore } from "../../provider/pool/engines/sqlite/store";
import { contract } from "./contract";
import { raceContract } from "./races";

describe("sqlite", () => {
  const folder = mkdtempSync(join(tmpdir(), "overlay-contract-"));
  let files = 0;
  afterAll(() => rmSync(folder, { recursive: true }));
  raceContract(() => `sqlite:${join(folder, `${files++}`, "pool.db")}`);
  contract({ name: "sqlite", open: (clock) => openSqliteStore(join(folder, `${files++}`, "pool.db"), { clock }) });
});
