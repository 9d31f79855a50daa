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
  const newPath = () => join(folder, `${files++}`, "pool.db");
  raceContract(() => `sqlite:${newPath()}`);
  contract({ name: "sqlite", newUrl: newPath, open: (path, clock) => openSqliteStore(path, { clock }) });
});
