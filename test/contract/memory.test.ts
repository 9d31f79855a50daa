import { describe } from "vitest";
import { contract } from "./contract";
import { memoryEngine } from "./fixture";
import { rowContract } from "./rows/contract";
import { memoryRowEngine } from "./rows/fixture";

describe("memory", () => {
  contract(memoryEngine());
  rowContract(memoryRowEngine());
});
