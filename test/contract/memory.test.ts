import { describe } from "vitest";
import { contract } from "./contract";
import { memoryEngine } from "./world";

describe("memory", () => contract(memoryEngine()));
