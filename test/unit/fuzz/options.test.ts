import { expect, test } from "vitest";
import { fuzzPrograms } from "../../../fuzz/programs";

test.each([
  ["workers", "x"],
  ["workers", "0"],
  ["workers", "1.5"],
  ["seed", "first"],
  ["minutes", ""],
  ["minutes", "Infinity"],
  ["programs", "-1"],
  ["shrink-seconds", "1m"],
])("fuzz refuses --%s %j", async (name, value) => {
  await expect(fuzzPrograms([`--${name}=${value}`])).rejects.toThrow(`--${name} is "${value}"; it must be a number`);
});
