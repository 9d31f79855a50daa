import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";
import { OVERLAYCTL } from "./ctl";

/** Needs no store: neither a file nor a URL is given. */
function simulate(...args: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [OVERLAYCTL, "simulate", ...args], {
    encoding: "utf8",
    env: { PATH: process.env.PATH },
  });
  return { status, stdout, stderr };
}

function simulateAsJson(...args: string[]): Record<string, number | string>[] {
  const { status, stdout } = simulate(...args, "--json");
  expect(status).toBe(0);
  const lines = stdout.trim().split("\n");
  return lines.map((line) => JSON.parse(line));
}

test.each([
  {
    tunnel: "vxlan",
    hub: { devices: 8, routes: 1, peers: 0, handshakesPerSecond: 0 },
    runner: { devices: 2, routes: 2, peers: 0, handshakesPerSecond: 0 },
    all: { devices: 14, routes: 14, peers: 0 },
  },
  {
    tunnel: "wireguard",
    hub: { devices: 2, routes: 8, peers: 7, handshakesPerSecond: 7 / 120 },
    runner: { devices: 2, routes: 4, peers: 1, handshakesPerSecond: 1 / 120 },
    all: { devices: 14, routes: 28, peers: 7 },
  },
])("seven runners with $tunnel: the hub, three runners and their sum", ({ tunnel, hub, runner, all }) => {
  const rows = simulateAsJson("--runners", "7", "--tunnel", tunnel);
  expect(rows).toMatchObject([
    { host: "hub", ...hub },
    { host: "runner 1", ...runner },
    { host: "runner 4", ...runner },
    { host: "runner 7", ...runner },
    { host: "all 7 runners", ...all },
    { topology: "hub", tunnel, runners: 7, changedByOneMore: 2 },
  ]);
});

test.each([
  {
    tunnel: "vxlan",
    hub: { devices: 8, routes: 1, peers: 0 },
    runner: { devices: 3, routes: 8, peers: 6, handshakesPerSecond: 0 },
    all: { devices: 21, routes: 56, peers: 42 },
  },
  {
    tunnel: "wireguard",
    hub: { devices: 2, routes: 8, peers: 7 },
    runner: { devices: 3, routes: 10, peers: 7, handshakesPerSecond: 7 / 120 },
    all: { devices: 21, routes: 70, peers: 49 },
  },
])("in a mesh with $tunnel each runner has all others as peers, and each is changed by one more", (expected) => {
  const { tunnel, hub, runner, all } = expected;
  const rows = simulateAsJson("--runners", "7", "--tunnel", tunnel, "--topology", "mesh");
  expect(rows).toMatchObject([
    { host: "hub", ...hub },
    { host: "runner 1", ...runner },
    { host: "runner 4", ...runner },
    { host: "runner 7", ...runner },
    { host: "all 7 runners", ...all },
    { topology: "mesh", tunnel, runners: 7, changedByOneMore: 9 },
  ]);
});

test("a hub's script grows by the same bytes with each runner, and one of 10,000 is planned within a minute", () => {
  const bytesOfHub = (runners: number): number =>
    simulateAsJson("--runners", String(runners))[0]!.scriptBytes as number;
  const [few, more] = [bytesOfHub(100), bytesOfHub(200)];
  const started = performance.now();
  expect(bytesOfHub(10_000) / (few + (more - few) * 99)).toBeCloseTo(1, 1);
  expect(performance.now() - started).toBeLessThan(60_000);
}, 120_000);

test("the table says which line is calculated", () => {
  const { stdout } = simulate("--runners", "1");
  expect(stdout.split("\n").map((line) => line.split("  ")[0])).toEqual([
    "host",
    "hub",
    "runner 1",
    "all 1 runners",
    "",
    "vxlan, hub: the hub and 1 of 1 runners were planned in full; the last line is theirs, multiplied.",
    "One more runner changes 2 hosts, its own included.",
    expect.stringMatching(/^Planning took \d+\.\d s and \d+ MB of memory\.$/),
    "",
  ]);
});

test.each([
  [[], "Required option '--runners <n>' not specified"],
  [["--runners", "0"], "It must be 1 to 10000"],
  [["--runners", "10001"], "It must be 1 to 10000"],
  [["--runners", "3", "--tunnel", "gre"], "Allowed choices are vxlan, wireguard"],
])("%j is refused", (args, reason) => {
  const { status, stderr } = simulate(...args);
  expect([status, stderr]).toEqual([2, expect.stringContaining(reason)]);
});
