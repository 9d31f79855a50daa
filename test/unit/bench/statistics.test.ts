import { expect, test } from "vitest";
import { compareRounds, countDuplicates, summarize } from "../../../bench/pool/statistics";

test.each([
  [[7], { median: 7, min: 7, max: 7 }],
  [[3, 9, 1], { median: 3, min: 1, max: 9 }],
  [[4, 1, 2, 10], { median: 3, min: 1, max: 10 }],
])("the rounds %j are summarized", (rounds, summary) => {
  expect(summarize(rounds)).toEqual(summary);
});

test.each([
  // In the second round the machine is half as fast for both.
  [[200, 100, 220], [100, 50, 110], { median: 2, min: 2, max: 2 }],
  [[10, 30], [10, 10], { median: 2, min: 1, max: 3 }],
  // A round that only one side has does not count.
  [[10, 20, 90], [10, 10], { median: 1.5, min: 1, max: 2 }],
  [[10, 20], [10, 10, 90], { median: 1.5, min: 1, max: 2 }],
])("%j against %j is compared round by round", (a, b, summary) => {
  expect(compareRounds(a, b)).toEqual(summary);
});

test.each([
  [[], 0],
  [["a", "b"], 0],
  [["a", "b", "a", "a"], 2],
])("%j has %i duplicates", (values, count) => {
  expect(countDuplicates(values)).toBe(count);
});
