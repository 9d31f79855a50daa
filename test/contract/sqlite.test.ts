import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe } from "vitest";
import { contract } from "./contract";
import { raceContract } from "./races";
import { urlEngine } from "./url-engine";

describe("sqlite", () => {
  const folder = mkdtempSync(join(tmpdir(), "overlay-contract-"));
  let files = 0;
  afterAll(() => rmSync(folder, { recursive: true }));
  const newUrl = () => `sqlite:${join(folder, `${files++}`, "pool.db")}`;
  const engine = urlEngine("sqlite", newUrl);
  raceContract(newUrl);
  contract(engine);
});
