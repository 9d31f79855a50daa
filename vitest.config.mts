import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";

/** Most tests wait for servers, hosts or timers part of the time: more files than cores run at once. vitest would leave one core idle. */
const atOnce = Math.min(4, availableParallelism() + 1);

/** Some tests run the command line or whole programs, on dist/. */
const globalSetup = "setup/build-for-tests.mts";

/** unit and contract run anywhere; lab and e2e, after them, make hosts (`lab/`) and need Linux and root. Labs see nothing of each other. */
const project = (name: string, groupOrder: number, seconds: number) => ({
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    testTimeout: seconds * 1000,
    hookTimeout: seconds * 1000,
    maxWorkers: atOnce,
    globalSetup,
    sequence: { groupOrder },
  },
});

export default defineConfig({
  test: {
    projects: [project("unit", 0, 60), project("contract", 0, 60), project("lab", 1, 60), project("e2e", 1, 300)],
  },
});
