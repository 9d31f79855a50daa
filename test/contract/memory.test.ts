import { describe } from "vitest";
import { contract } from "./contract";
import { memoryEngine } from "./fixture";
import { retentionContract } from "./retention";

describe("memory", () => {
  contract(memoryEngine());
  retentionContract(memoryEngine());
});
