import { afterAll, beforeAll, expect, test } from "vitest";
import { must } from "./lab-stack";
import { LiveTunnels, RUNNERS } from "./live-tunnels";

/** New keys for a live network with WireGuard. */
let live: LiveTunnels;
const SUBNETS = { tunnel: "wireguard" } as const;

const publicKeys = () => [
  live.stack.props("OverlayNetwork", "training").hubPublicKey,
  ...RUNNERS.map((name) => live.stack.props("RunnerSubnet", name).publicKey),
];

beforeAll(async () => {
  live = await LiveTunnels.up(SUBNETS);
});
afterAll(async () => {
  await live?.lab.down();
});

test.each([1, 2, 3])("no packet is lost while all get keys of generation %i", async (keyGeneration) => {
  const before = publicKeys();
  expect(await live.lostDuring(() => live.put({ ...SUBNETS, keyGeneration }))).toEqual({});
  const device = `vxkrW${keyGeneration % 2}`;
  for (const host of ["hub", ...RUNNERS]) {
    expect(await live.devices(host)).toBe(device);
    const file = keyGeneration % 2 === 0 ? "tunnel.key" : "tunnel-1.key";
    expect(await must(live.lab, host, "cd /var/lib/overlay/training; ls *.key")).toBe(file);
  }
  expect(publicKeys().filter((key) => before.includes(key))).toEqual([]);
  expect(await live.drift()).toEqual([]);
});

test("a runner alone can have newer keys than the network", async () => {
  const one = () => live.stack.runner("r1", { keyGeneration: 4 });
  live.stack.nextRun();
  expect(await live.lostDuring(one)).toEqual({});
  expect(await live.devices("hub")).toBe("vxkrW0 vxkrW1");
  expect(await live.devices("r1")).toBe("vxkrW0");
  expect(await live.devices("r2")).toBe("vxkrW1");
  expect(await live.drift()).toEqual([]);
});
