/** A vitest reporter that leaves the totals in the file COUNT_FILE, for setup/test.mjs. */
import { writeFileSync } from "node:fs";

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
    writeFileSync(String(process.env.COUNT_FILE), JSON.stringify(count));
  }
}
