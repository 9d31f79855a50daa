import { defineConfig } from "vitest/config";

/** Emulated machines, which take minutes to boot: not a part of `npm test`. */
const minutes = (n: number): number => n * 60_000;

export default defineConfig({
  test: {
    name: "vm",
    include: ["test/vm/**/*.test.ts"],
    testTimeout: minutes(20),
    hookTimeout: minutes(20),
    fileParallelism: false,
    bail: 1,
  },
});
