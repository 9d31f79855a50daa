import { describe } from "vitest";
import type { RowEngine } from "./fixture";
import { migrationContract } from "./migration";
import { rowsOfPoolContract } from "./ipam";
import { storeContract } from "./store";

/** What must hold for every engine that keeps a pool as rows of keys and values. */
export function rowContract(engine: RowEngine): void {
  describe("store", () => storeContract(engine));
  describe("migration", () => migrationContract(engine));
  describe("rows of a pool", () => rowsOfPoolContract(engine));
}
