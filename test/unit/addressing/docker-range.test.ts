import { expect, test } from "vitest";
import {
  canUseDocker,
  dockerRange,
  maxDockerShare,
  parseLayout,
  runnerLayout,
  withoutDockerRange,
} from "../../../provider/addressing/layout";

test.each([
  ["10.128.0.0/12/6/14", 1, 4, "10.128.112.0/20", "10.128.111.255", 12285n],
  ["10.128.0.0/12/6/14", 63, 16, "10.143.252.0/22", "10.143.251.255", 15357n],
  ["10.1.0.0/16/8/8", 3, 4, "10.1.3.192/26", "10.1.3.191", 190n],
  ["10.1.0.0/16/8/8", 3, 2, "10.1.3.128/25", "10.1.3.127", 126n],
  ["fd00:128::/48/16/64", 2, 4, "fd00:128:0:2:8000::/66", "fd00:128:0:2:ffff:ffff:ffff:fffe", 3n * 2n ** 62n - 4n],
])("%s, runner %i, 1/%i: Docker has %s", (text, id, share, cidr, lastIp, count) => {
  const layout = parseLayout(text);
  const runner = runnerLayout(layout, id);
  const range = dockerRange(layout, runner, share);
  expect(range.cidr).toBe(cidr);
  const left = withoutDockerRange(runner, range);
  expect(left.lastIp).toBe(lastIp);
  expect(left.usable.reduce((sum, { first, last }) => sum + last - first + 1n, 0n)).toBe(count);
});

test("without Docker the runner keeps all of its subnet", () => {
  const runner = runnerLayout(parseLayout("10.128.0.0/12/6/14"), 1);
  expect(withoutDockerRange(runner, undefined)).toBe(runner);
});

test.each([
  [["10.128.0.0/12/6/14"], true],
  [["10.128.0.0/12/6/14", "fd00:128::/48/16/64"], true],
  [["10.128.0.0/12/6/14", "fd00:128::/40/6/82"], false],
  [["fd00:128::/48/16/64"], false],
])("a Docker network can carry %j: %s", (texts, fits) => {
  expect(canUseDocker(texts.map(parseLayout))).toBe(fits);
});

test("at least eight addresses are left to Docker", () => {
  expect(maxDockerShare(parseLayout("10.1.0.0/16/8/8"))).toBe(32);
});
