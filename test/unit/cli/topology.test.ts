import { afterAll, expect, test } from "vitest";
import { findSpec } from "../../../provider/ipam/interface";
import { dataEntries } from "../../../provider/ipam/types";
import { Ctl, deploy, lifecyclesOn, ownerOf } from "./ctl";

/** A network in the store, with a runner that is only offered. */
const ctl = new Ctl();
afterAll(() => ctl.remove());

test("a table, JSON and a chart in which offers are dashed", async () => {
  await ctl.withPool(async (pool) => {
    const { network } = await deploy(pool, ["node1"]);
    const { settings } = (await findSpec(pool, "network/training"))!.data as unknown as { settings: object };
    await lifecyclesOn(pool).runners.check({ owner: ownerOf("RunnerSubnet", "node2"), dryRun: true }, undefined, {
      network: settings,
      connection: { host: "192.0.2.99", port: 2222 },
      hubConnection: network.hubConnection,
    });
  });
  expect((await ctl.run("topology", "training", "--mermaid")).stdout).toBe(
    [
      "flowchart LR",
      '  hub(("training hub<br/>10.128.0.1<br/>192.0.2.1"))',
      '  r1["node1<br/>10.128.64.0/18<br/>192.0.2.10"]',
      '  r2["node2<br/>10.128.128.0/18<br/>192.0.2.99:2222"]',
      "  hub == 101 === r1",
      "  hub -. 102 .- r2",
      "  %% training: 10.128.0.0/12, 2 runners",
      "",
    ].join("\n"),
  );
  const [hub, first, second] = await ctl.must("topology", "training");
  const tunnel = { tunnel: "vxlan", topology: "hub" };
  expect(hub).toEqual({ network: "training", cidr: "10.128.0.0/12", hub: "192.0.2.1", hubIp: "10.128.0.1", ...tunnel });
  expect(first).toMatchObject({ runner: "node1", id: 1, vni: 101, device: "ovl1", state: "reserved" });
  expect(second).toMatchObject({ runner: "node2", id: 2, host: "192.0.2.99:2222", state: "offered" });
  expect(await ctl.refusal("topology", "nothing")).toBe("1 POOL_NOT_FOUND");
});

test("a mesh of WireGuard has no VNIs, and shows which runners send to each other directly", async () => {
  const mesh = new Ctl();
  await mesh.withPool(async (pool) => {
    await deploy(pool, ["node1", "node2", "node3"], { tunnel: "wireguard", topology: "mesh" });
    const [first, second] = await pool.leases("network/training");
    for (const [lease, to] of [
      [first!, 2],
      [second!, 1],
    ] as const)
      await pool.change(lease.pool, lease.leaseId, {
        data: { ...dataEntries(lease), directRoutes: [`${to}:0a1b2c3d`] },
      });
  });
  const [hub, ...runners] = await mesh.must("topology", "training");
  expect(hub).toMatchObject({ tunnel: "wireguard", topology: "mesh" });
  expect(runners.map(({ runner, vni, device, direct }) => [runner, vni, device, direct])).toEqual([
    ["node1", undefined, "ovlW0", [2]],
    ["node2", undefined, "ovlW0", [1]],
    ["node3", undefined, "ovlW0", []],
  ]);
  const { stdout } = await mesh.run("topology", "training", "--mermaid");
  expect(stdout.match(/^ {2}(?:hub|r\d) [-=].*$/gm)).toEqual([
    "  hub == wireguard === r1",
    "  hub == wireguard === r2",
    "  hub == wireguard === r3",
    "  r1 --- r2",
  ]);
  mesh.remove();
});
