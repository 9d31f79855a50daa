import { expect, test } from "vitest";
import { groupContainers, withContainerUsers } from "../../../cli/containers";
import { type ExportedResource, findRequiredLeases, sortByDepth } from "../../../cli/stack-export";
import { openIpam } from "../../../provider/ipam";
import type { Values } from "../../../provider/lifecycle/values";
import { readSettings } from "../../../provider/settings";
import { Stage } from "../lifecycle/stage";

const { tenantDefaults } = readSettings(() => undefined);
const exported = (type: string, props: Values): ExportedResource => ({
  source: "dev.json",
  type,
  props: props as never,
});
const container = (name: string, ...addresses: string[]) => ({ name, running: true, addresses });

test("a recovered address that a container has is used by it, whether or not a stack reserved it", async () => {
  const stage = await Stage.up();
  const found = [
    exported("OverlayNetwork", await stage.network()),
    exported("RunnerSubnet", await stage.runner("r1", "192.0.2.11")),
  ];
  const make = (name: string, ip: string, more: Values = {}) =>
    stage.make("IPReservation", name, { runner: "training/r1", ip, ...more });
  found.push(exported("IPReservation", await make("web", "10.128.64.10")));
  found.push(exported("IPReservation", await make("idle", "10.128.64.11")));
  found.push(exported("IPReservation", await make("named", "10.128.64.12", { usedBy: "box" })));
  const containers = [
    container("nginx", "10.128.64.10"),
    container("other", "10.128.64.12"),
    container("by-hand", "10.128.64.20"),
  ];
  const pool = await openIpam("memory:", { offerTtl: 3600, quarantine: 0 });
  const facts = findRequiredLeases(found, tenantDefaults);
  const recover = async () =>
    pool.importLeases(sortByDepth(await withContainerUsers(pool, facts, found, new Map([["training", containers]]))));
  expect((await recover()).conflicts).toEqual([]);
  const users = async () =>
    (await pool.leases("runner/training/r1")).map(({ owner, state, usedBy }) => [
      owner.split("::").at(-1),
      state,
      usedBy,
    ]);
  const expected = [
    ["web", "used", "nginx"],
    ["idle", "reserved", undefined],
    ["named", "used", "box"],
    ["docker/training/r1/by-hand", "used", "by-hand"],
  ];
  expect(await users()).toEqual(expected);
  expect(await pool.find({ name: "user/training/nginx" })).toMatchObject({ usedBy: "nginx" });
  const again = await recover();
  expect([again.added, again.conflicts]).toEqual([[], []]);
  expect(await users()).toEqual(expected);
  expect(await pool.admin.fsck()).toEqual([]);
});

test("only containers on Docker networks that our records list count", () => {
  const item = { kind: "docker", name: "kohakuriver-overlay", bridge: "kohaku-overlay" };
  const network = (name: string, bridge: string, containers: unknown[]) => ({ name, bridge, containers });
  const facts = {
    records: [{ network: "training", items: [item] }],
    docker: {
      answers: true,
      networks: [
        network("kohakuriver-overlay", "kohaku-overlay", [container("nginx", "10.128.64.10")]),
        network("bridge", "docker0", [container("other", "172.17.0.2")]),
      ],
    },
  };
  expect(groupContainers([{ facts: facts as never }])).toEqual(
    new Map([["training", [container("nginx", "10.128.64.10")]]]),
  );
});
