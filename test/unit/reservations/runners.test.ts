import { beforeEach, describe, expect, test } from "vitest";
import { parseIp } from "../../../provider/addressing/ip";
import {
  type Context,
  describeRunnerConfig,
  findLeases,
  heartbeatRunner,
  importAddresses,
  ipOf,
  reportInput,
  reportRunner,
  reserve,
  useAddress,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { codeOf } from "./answers";

/** What runners ask for and report. */
let stage: Stage;
let context: Context;
beforeEach(async () => {
  stage = await Stage.up();
  context = { pool: stage.pool.ipam };
  await stage.network("training", { subnets: "10.10.0.0/16/8/8" });
  await stage.runner("node1", "192.0.2.11");
});

describe("the configuration of a runner", () => {
  const config = {
    runnerName: "node1",
    networkName: "training",
    runnerId: 1,
    subnet: "10.10.1.0/24",
    subnets: ["10.10.1.0/24"],
    gateway: "10.10.1.1",
    hubIp: "10.10.1.254",
    firstIp: "10.10.1.2",
    lastIp: "10.10.1.191",
    usableIps: 190,
    vni: 101,
    tunnel: "vxlan",
    vxlanPort: 4789,
    mtu: "auto",
    masquerade: true,
    hub: "192.0.2.1",
    hubDevice: "ovl1",
    runnerDevice: "ovl1",
    bridge: "overlay-br",
    bridgeMac: expect.stringMatching(/^02(:[0-9a-f]{2}){5}$/),
    runnerMac: expect.stringMatching(/^02(:[0-9a-f]{2}){5}$/),
    dockerNetwork: "pulumi-overlay",
    dockerRange: "10.10.1.192/26",
    routes: [{ to: "10.10.0.0/16", via: "10.10.1.254" }],
    lastSeen: "2030-01-01T00:00:00Z",
  };

  test("is that of the resource", async () => {
    expect(await describeRunnerConfig(context, { runner: "node1" })).toEqual(config);
  });

  test("has what the runner overrides, and both families", async () => {
    const hubConnection = { host: "192.0.2.2" };
    await stage.network("dual", {
      subnets: ["10.20.0.0/16/8/8", "fd00:1::/48/16/64"],
      hubUnderlayIp: "198.51.100.1",
      vxlanPort: 8472,
      hubConnection,
    });
    const made = await stage.make("RunnerSubnet", "r", {
      network: "dual",
      connection: { host: "192.0.2.12" },
      hubConnection,
      runnerDevice: "overlay0",
      mtu: 1400,
      masquerade: false,
      docker: { networkName: "lab", range: "1/2" },
    });
    const found = await describeRunnerConfig(context, { runner: "dual/r" });
    expect(found).toMatchObject({
      runnerDevice: "overlay0",
      mtu: 1400,
      masquerade: false,
      hubUnderlayIp: "198.51.100.1",
      vxlanPort: 8472,
      dockerNetwork: "lab",
      dockerRange: "10.20.1.128/25",
      dockerRange6: made.dockerRange6,
      subnets: ["10.20.1.0/24", "fd00:1:0:1::/64"],
      gateway6: "fd00:1:0:1::1",
      routes: [
        { to: "10.20.0.0/16", via: "10.20.1.254" },
        { to: "fd00:1::/48", via: "fd00:1:0:1::fe" },
      ],
    });
    for (const key of ["lastIp", "usableIps", "hubDevice", "vni", "lastIp6"] as const)
      expect(found[key]).toEqual(made[key]);
  });

  test("of a runner that is not there is refused", async () => {
    expect(await codeOf(describeRunnerConfig(context, { runner: "nobody" }))).toBe("POOL_NOT_FOUND");
  });
});

test("a heartbeat renews lastSeen", async () => {
  stage.pass(90);
  expect(await heartbeatRunner(context, { runner: "node1" })).toEqual({
    network: "training",
    runner: "node1",
    runnerId: 1,
    lastSeen: "2030-01-01T00:01:30Z",
  });
});

describe("a report", () => {
  const report = (input: object) => reportRunner(context, reportInput.parse({ runner: "node1", ...input }));
  const running = (name: string, last: number) => ({ name, ip: `10.10.1.${last}` });
  const used = async () => (await findLeases(context, { state: "used" })).map((lease) => [lease.usedBy, ipOf(lease)]);

  test("marks what is in use, once, and is a heartbeat", async () => {
    await reserve(context, { runner: "node1", by: "db", ip: parseIp("10.10.1.5") });
    stage.pass(60);
    const input = { containers: [running("web", 4), running("db", 5)], vms: [running("vm1", 6)] };
    const first = await report(input);
    expect(first).toMatchObject({ unchanged: 0, conflicts: [], gone: [], lastSeen: "2030-01-01T00:01:00Z" });
    expect(first.used.map(({ usedBy, ip, state }) => [usedBy, ip, state]).sort()).toEqual([
      ["db", "10.10.1.5", "used"],
      ["vm1", "10.10.1.6", "used"],
      ["web", "10.10.1.4", "used"],
    ]);
    expect(await report(input)).toMatchObject({ used: [], unchanged: 3, conflicts: [] });
    expect((await findLeases(context, { labels: ["vm=true"] })).map(ipOf)).toEqual(["10.10.1.6"]);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("does not list what Docker picks by itself, and marks what is quarantined as used", async () => {
    await useAddress(context, { ip: parseIp("10.10.1.9"), by: "old" });
    await report({ containers: [], complete: true, free: true, olderThan: 0 });
    const { unmanaged, used: now } = await report({ containers: [running("web", 200), running("api", 9)] });
    expect(unmanaged).toEqual([{ name: "web", ip: "10.10.1.200" }]);
    expect(now).toMatchObject([{ ip: "10.10.1.9", usedBy: "api" }]);
  });

  test("answers contradictions, and changes nothing for them", async () => {
    const holder = await reserve(context, { runner: "node1", ip: parseIp("10.10.1.21") });
    await useAddress(context, { ip: parseIp("10.10.1.20"), by: "other" });
    const made = await stage.make("IPReservation", "kept", { runner: "training/node1", ip: "10.10.1.22" });
    await useAddress(context, { ip: parseIp("10.10.1.30"), by: "web" });
    await stage.preview("IPReservation", "planned", { runner: "training/node1", ip: "10.10.1.23" });
    const before = await used();
    const { conflicts, used: now } = await report({
      containers: [
        running("a", 20),
        running("b", 21),
        running("c", 22),
        running("d", 23),
        running("e", 1),
        { name: "f", ip: "10.10.2.7" },
        running("web", 31),
        running("g", 40),
      ],
    });
    const found = conflicts.map(({ name, ip, code, holder }) => [name, ip, code, holder]).sort();
    expect(found).toEqual([
      ["a", "10.10.1.20", "IP_IN_USE", "other"],
      ["b", "10.10.1.21", "IP_IN_USE", holder.lease.owner],
      ["c", "10.10.1.22", "IP_IN_USE", made.owner],
      ["d", "10.10.1.23", "IP_IN_USE", "org/urn:pulumi:dev::p::overlay:index:IPReservation::planned"],
      ["e", "10.10.1.1", "IP_OUTSIDE_POOL", undefined],
      ["f", "10.10.2.7", "IP_OUTSIDE_POOL", undefined],
      ["web", "10.10.1.31", "RESERVATION_EXISTS", "web"],
    ]);
    expect(conflicts.find(({ name }) => name === "a")!.reason).toBe("10.10.1.20 is used by other.");
    expect(now.map(({ ip }) => ip)).toEqual(["10.10.1.40"]);
    expect(await used()).toEqual([...before, ["g", "10.10.1.40"]]);
  });

  describe("of what has gone", () => {
    beforeEach(async () => {
      for (const [name, last] of [
        ["web", 4],
        ["db", 5],
      ] as const)
        await useAddress(context, { ip: parseIp(`10.10.1.${last}`), by: name });
      await useAddress(context, { ip: parseIp("10.10.1.6"), by: "vm1", vm: true });
      await importAddresses(context, [{ ip: parseIp("10.10.1.7"), by: "daemon" }]);
      stage.pass(61);
    });

    test.each([
      ["is not complete", { containers: [], free: true }, [], []],
      ["does not say free", { containers: [], complete: true }, ["10.10.1.4", "10.10.1.5"], []],
      ["has no list of VMs", { containers: [], complete: true, free: true }, ["10.10.1.4", "10.10.1.5"], "all"],
      ["has no list of containers", { vms: [], complete: true, free: true }, ["10.10.1.6"], "all"],
      [
        "has one left",
        { containers: [{ name: "db", ip: "10.10.1.5" }], complete: true, free: true },
        ["10.10.1.4"],
        "all",
      ],
      [
        "names another container there",
        { containers: [{ name: "x", ip: "10.10.1.4" }], complete: true, free: true },
        ["10.10.1.5"],
        "all",
      ],
    ])("one that %s", async (_, input, gone, released) => {
      const result = await report(input);
      expect(result.gone.map(({ ip }) => ip)).toEqual(gone);
      expect(result.released.map(({ ip }) => ip)).toEqual(released === "all" ? gone : released);
      expect(await used()).toHaveLength(4 - result.released.length);
    });

    test("one that is older than a lease", async () => {
      await useAddress(context, { ip: parseIp("10.10.1.8"), by: "young" });
      const input = { containers: [], complete: true, free: true };
      expect((await report(input)).gone.map(({ usedBy }) => usedBy)).toEqual(["web", "db"]);
      expect((await report({ ...input, olderThan: 0 })).gone.map(({ usedBy }) => usedBy)).toEqual(["young"]);
    });

    test("what a stack holds goes back to the stack", async () => {
      const made = await stage.make("IPReservation", "job", { runner: "training/node1" });
      await useAddress(context, { token: String(made.token), by: "job" });
      stage.pass(61);
      const { released } = await report({ containers: [], complete: true, free: true });
      expect(released.map(({ usedBy }) => usedBy).sort()).toEqual(["db", "job", "web"]);
      expect(await findLeases(context, { state: "reserved" })).toMatchObject([{ owner: made.owner }]);
    });

    test("a container that has got another address", async () => {
      const input = { containers: [running("web", 40), running("db", 5)], complete: true };
      expect(await report(input)).toMatchObject({ conflicts: [{ name: "web", code: "RESERVATION_EXISTS" }], used: [] });
      expect(await report({ ...input, free: true })).toMatchObject({
        released: [{ ip: "10.10.1.4" }],
        used: [{ ip: "10.10.1.40", usedBy: "web" }],
        conflicts: [],
      });
    });
  });

  test("with both families records both addresses in one lease", async () => {
    const hubConnection = { host: "192.0.2.2" };
    await stage.network("dual", { subnets: ["10.20.0.0/16/8/8", "fd00:1::/48/16/64"], hubConnection });
    await stage.make("RunnerSubnet", "r", { network: "dual", connection: { host: "192.0.2.12" }, hubConnection });
    const container = { name: "web", ip: "10.20.1.9", ip6: "fd00:1:0:1::9" };
    const first = await report({ runner: "dual/r", containers: [container] });
    expect(first.used).toMatchObject([{ ip: "10.20.1.9", ip6: "fd00:1:0:1::9", usedBy: "web" }]);
    expect(await report({ runner: "dual/r", containers: [container] })).toMatchObject({ unchanged: 1, used: [] });
    const moved = await report({ runner: "dual/r", containers: [{ ...container, ip6: "fd00:1:0:1::a" }] });
    expect(moved.conflicts).toMatchObject([{ reason: "web holds 10.20.1.9 without fd00:1:0:1::a." }]);
  });

  test("of many workloads is compared with many leases in little time", async () => {
    const hubConnection = { host: "192.0.2.2" };
    await stage.network("wide", { subnets: "10.32.0.0/12/4/16", hubConnection });
    await stage.make("RunnerSubnet", "w", { network: "wide", connection: { host: "192.0.2.12" }, hubConnection });
    const pool = "runner/wide/w";
    for (let at = 0; at < 2000; at += 500)
      await stage.pool.ipam.claim(
        Array.from({ length: 500 }, (_, i) => ({
          pool,
          owner: `o${at + i}`,
          type: "IPReservation",
          usedBy: `c${at + i}`,
        })),
      );
    stage.pass(61);
    // Docker's own addresses, which need no lease.
    const workloads = (kind: string) =>
      Array.from({ length: 4000 }, (_, i) => ({
        name: `${kind}${i}`,
        ip: `10.33.${200 + (i % 50)}.${1 + (i % 250)}`,
      }));
    const input = { runner: "wide/w", containers: workloads("c"), vms: workloads("v"), complete: true };
    const parsed = reportInput.parse(input);
    const before = process.cpuUsage();
    const { gone, unmanaged } = await reportRunner(context, parsed);
    expect([gone.length, unmanaged.length]).toEqual([2000, 8000]);
    expect(process.cpuUsage(before).user / 1e6).toBeLessThan(1);
  });
});
