import { expect, test } from "vitest";
import {
  changedPaths,
  isEqual,
  UNKNOWN,
  unknownPaths,
  withoutPaths,
  withUnknown,
} from "../../../provider/lifecycle/values";

test("unknown values are found, taken out and put back at any depth", () => {
  const values = {
    network: { networkName: "a", hubUnderlayIp: UNKNOWN },
    connection: UNKNOWN,
    subnets: ["x", UNKNOWN],
  };
  const paths = unknownPaths(values);
  expect(paths).toEqual([["network", "hubUnderlayIp"], ["connection"], ["subnets", "1"]]);
  expect(withoutPaths(values, paths)).toEqual({ network: { networkName: "a" }, subnets: ["x"] });
  expect(withUnknown({ network: { networkName: "a" }, subnets: ["x"] }, paths)).toEqual(values);
});

test.each([
  [{ a: 1 }, { a: 1 }, true],
  [{ a: 1, b: undefined }, { a: 1 }, true],
  [{ a: [1, 2] }, { a: [1, 2] }, true],
  [{ a: [1, 2] }, { a: [2, 1] }, false],
  [{ a: {} }, { a: [] }, false],
  [{ a: null }, {}, false],
])("%j and %j are equal: %s", (a, b, expected) => {
  expect(isEqual(a, b)).toBe(expected);
});

test("changes are named at the depth where they are", () => {
  expect(changedPaths({ n: { mtu: 1, x: 2 }, l: [1], k: 1 }, { n: { mtu: 3, x: 2 }, l: [2], m: 1 })).toEqual([
    ["n", "mtu"],
    ["l"],
    ["k"],
    ["m"],
  ]);
});
