import { describe } from "vitest";
import { contract } from "./contract";
import { memoryEngine } from "./fixture";

describe("memory", () => {
  contract(memoryEngine());
});
