import { describe } from "vitest";
import { createMemoryStore } from "../../provider/pool/engines/memory/store";
import { contract } from "./contract";

describe("memory", () => contract({ name: "memory", open: async (clock) => createMemoryStore(clock) }));
