import { defineConfig } from "vitest/config";

/** unit and contract run anywhere; lab and e2e make machines (`lab/`), one file after another, and need Linux and root. */
const anywhere = (name: string) => ({
  test: { name, include: [`test/${name}/**/*.test.ts`], testTimeout: 60_000, hookTimeout: 60_000 },
});
const inLab = (name: string, order: number, seconds: number) => ({
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    testTimeout: seconds * 1000,
    hookTimeout: seconds * 1000,
    fileParallelism: false,
    sequence: { groupOrder: order },
  },
});

export default defineConfig({
  test: { projects: [anywhere("unit"), anywhere("contract"), inLab("lab", 1, 60), inLab("e2e", 2, 300)] },
});
