import { describe } from "vitest";
import { memoryStore } from "../../provider/pool/stores/memory";
import { contract } from "./contract";

describe("memory", () => contract({ name: "memory", open: async (clock) => memoryStore(clock) }));
