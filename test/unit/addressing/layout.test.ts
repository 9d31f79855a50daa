import { expect, test } from "vitest";
import { formatIp, parseIp } from "../../../provider/addressing/ip";
import { parseLayout, runnerLayout } from "../../../provider/addressing/layout";
import { isOverlayError } from "../../../provider/errors";
import vectors from "../../vectors/overlay_subnet.json";

const codeOf = (act: () => unknown): string => {
  try {
    act();
  } catch (error) {
    if (isOverlayError(error)) return error.code;
    throw error;
  }
  return "none";
};

const OUR_CODES: Record<string, string> = {
  FORMAT: "SUBNET_FORMAT",
  NOT_INTEGER: "SUBNET_FORMAT",
  BASE_IP: "SUBNET_FORMAT",
  BITS_NOT_32: "SUBNET_BITS",
  PREFIX_RANGE: "SUBNET_RANGE",
  NODE_BITS_RANGE: "SUBNET_RANGE",
  SUBNET_BITS_RANGE: "SUBNET_RANGE",
};

test.each(vectors.invalid)("the recorded invalid layout '$config' is refused", ({ config, error }) => {
  expect(codeOf(() => parseLayout(config))).toBe(OUR_CODES[error]);
});

const refusedHere = (v: (typeof vectors.valid)[number]): string | undefined => {
  if (v.originalFlaws.includes("LENIENT_SYNTAX_ACCEPTED")) return "SUBNET_FORMAT";
  if (v.originalFlaws.includes("HOST_BITS_SILENTLY_MASKED")) return "SUBNET_NOT_ALIGNED";
  if (v.config.startsWith("224.")) return "SUBNET_RANGE";
  return undefined;
};

test.each(vectors.valid)("the recorded layout '$config' gives the recorded networks", (v) => {
  const refused = refusedHere(v);
  if (refused) return expect(codeOf(() => parseLayout(v.config))).toBe(refused);
  const layout = parseLayout(v.config);
  expect(layout).toMatchObject({
    text: v.normalized,
    cidr: v.networkCidr,
    hubIp: v.hostIp,
    maxRunners: v.maxRunners,
    ipsPerRunner: BigInt(v.ipsPerRunnerClaimed),
    runnerPrefix: v.runnerPrefix,
  });
  for (const runner of v.runners) {
    const lost = layout.subnetBits > 8 ? 1n : 0n; // the original drops the last usable address
    expect(runnerLayout(layout, runner.runnerId)).toMatchObject({
      subnet: runner.subnet,
      gateway: runner.gateway,
      hubIp: runner.hostIpOnSubnet,
      firstIp: runner.firstIp,
      lastIp: formatIp(parseIp(runner.lastIp) + lost),
    });
  }
  for (const { runnerId } of v.rejectedRunnerIds) {
    expect(codeOf(() => runnerLayout(layout, runnerId))).toBe("SUBNET_RANGE");
  }
});

test("usable addresses leave out network, gateway, hub and the last address", () => {
  const { usable } = runnerLayout(parseLayout("10.128.0.0/12/6/14"), 1);
  expect(usable.map(({ first, last }) => `${formatIp(first)}-${formatIp(last)}`)).toEqual([
    "10.128.64.2-10.128.64.253",
    "10.128.64.255-10.128.127.254",
  ]);
  expect(usable.reduce((sum, { first, last }) => sum + last - first + 1n, 0n)).toBe(16380n);
});

test("IPv6 uses the same offsets", () => {
  const layout = parseLayout("fd00:128::/40/16/72");
  expect(layout).toMatchObject({ family: 6, cidr: "fd00:128::/40", hubIp: "fd00:128::1", maxRunners: 65535 });
  expect(layout.ipsPerRunner).toBe(2n ** 72n - 4n);
  expect(runnerLayout(layout, 3)).toMatchObject({
    subnet: "fd00:128:0:300::/56",
    gateway: "fd00:128:0:300::1",
    hubIp: "fd00:128:0:300::fe",
    firstIp: "fd00:128:0:300::2",
    lastIp: "fd00:128:0:3ff:ffff:ffff:ffff:fffe",
  });
});

test.each([
  ["127.0.0.0/12/6/14", "SUBNET_RANGE"],
  ["126.0.0.0/7/9/16", "SUBNET_RANGE"],
  ["224.0.0.0/12/6/14", "SUBNET_RANGE"],
  ["ff02::/40/16/72", "SUBNET_RANGE"],
  ["fe80::/40/16/72", "SUBNET_RANGE"],
  ["9000::/40/16/72", "SUBNET_RANGE"],
  ["fd00::1/40/16/72", "SUBNET_NOT_ALIGNED"],
  ["fd00::/40/16/71", "SUBNET_BITS"],
  ["fd00::/40/17/71", "SUBNET_RANGE"],
  ["10.0.0.0/8/8/1e1", "SUBNET_FORMAT"],
  ["10.0.0.0/08/8/16", "SUBNET_FORMAT"],
  ["10.0.0.0/8/08/16", "SUBNET_FORMAT"],
  ["10.0.0.0%eth0/8/8/16", "SUBNET_FORMAT"],
  ["10.0.0.0/8/8/16\n", "SUBNET_FORMAT"],
])("'%s' is refused with %s", (config, code) => {
  expect(codeOf(() => parseLayout(config))).toBe(code);
});
