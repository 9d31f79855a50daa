import { defineConfig } from "vitest/config";

/** Longer runs of `overlayctl serve` with real servers and Prometheus: not a part of `npm test`. */
const minutes = (n: number): number => n * 60_000;

export default defineConfig({
  test: {
    name: "service",
    include: ["test/service/**/*.test.ts"],
    testTimeout: minutes(10),
    hookTimeout: minutes(2),
    fileParallelism: false,
    globalSetup: "setup/build-for-tests.mts",
  },
});
