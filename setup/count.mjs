/**
 * A vitest reporter: prints the slowest files before vitest's summary, and leaves the totals in the file COUNT_FILE, for
 * setup/test.mjs.
 */
import { writeFileSync } from "node:fs";
import { relative } from "node:path";

const SLOWEST = 10;

export default class Count {
  /**
   * A file that does not load, and an error outside any test, are failures, too.
   * @param {readonly import("vitest/node").TestModule[]} modules
   * @param {readonly unknown[]} errors
   */
  onTestRunEnd(modules, errors) {
    const count = { passed: 0, failed: errors.length, skipped: 0, pending: 0 };
    for (const module of modules) {
      count.failed += module.errors().length;
      for (const test of module.children.allTests()) count[test.result().state]++;
    }
    printSlowest(modules);
    writeFileSync(String(process.env.COUNT_FILE), JSON.stringify(count));
  }
}

/** @param {readonly import("vitest/node").TestModule[]} modules */
function printSlowest(modules) {
  const times = modules.map((module) => ({ file: relative(process.cwd(), module.moduleId), seconds: seconds(module) }));
  console.log(`\nThe slowest of ${modules.length} files:`);
  for (const { file, seconds } of times.sort((a, b) => b.seconds - a.seconds).slice(0, SLOWEST))
    console.log(`${seconds.toFixed(1).padStart(7)} s  ${file}`);
}

/** From loading the file to the end of its last hook. @param {import("vitest/node").TestModule} module */
function seconds(module) {
  const { collectDuration, prepareDuration, setupDuration, environmentSetupDuration, duration } = module.diagnostic();
  return (collectDuration + prepareDuration + setupDuration + environmentSetupDuration + duration) / 1000;
}
