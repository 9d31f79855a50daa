import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import type { Values } from "../../provider/lifecycle/values";
import { Ctl } from "../unit/cli/ctl";
import { Stage } from "../unit/lifecycle/stage";

/** Pools in pools, addresses in them, and a tenant's block that no stack holds: all of it comes back from an export. */
const ctl = new Ctl();
afterAll(() => ctl.remove());

const settings = ({ poolName, addressSpace, type, ranges }: Values): Values => ({
  poolName,
  addressSpace,
  type,
  ranges,
});

async function deploy(stage: Stage): Promise<[type: string, props: Values][]> {
  const runner = [await stage.network(), await stage.runner("r1", "192.0.2.11")] as const;
  const all = await stage.make("IPPool", "all", { ranges: ["10.0.0.0/16"] });
  const part = await stage.make("IPPool", "part", { parent: settings(all), prefixLength: 24 });
  const tenant = { org: "acme", project: "web" };
  return [
    ["IPReservation", await stage.make("IPReservation", "in-part", { pool: settings(part) })],
    ["IPReservation", await stage.make("IPReservation", "used", { runner: "training/r1", usedBy: "box" })],
    ["IPReservation", await stage.make("IPReservation", "any", { network: "training" })],
    ["IPReservation", await stage.make("IPReservation", "svc", { tenant, type: "clusterIP" })],
    ["IPReservation", await stage.make("IPReservation", "svc2", { tenant, type: "clusterIP" })],
    ["IPPool", part],
    ["IPPool", all],
    ["RunnerSubnet", runner[1]],
    ["OverlayNetwork", runner[0]],
  ];
}

test("recovered from an export in any order, no resource differs and nothing is given out twice", async () => {
  const stage = await Stage.up({ store: ctl.store });
  const made = await deploy(stage);
  await stage.pool.end();
  for (const end of ["", "-wal", "-shm", "-journal"]) rmSync(join(ctl.folder, `pool.db${end}`), { force: true });
  const resources = made.map(([type, props]) => ({
    urn: `urn:pulumi:dev::p::pulumi-nodejs:dynamic/overlay:${type}::${String(props.owner).split("::").at(-1)}`,
    type: `pulumi-nodejs:dynamic/overlay:${type}`,
    outputs: props,
  }));
  writeFileSync(join(ctl.folder, "dev.json"), JSON.stringify({ deployment: { resources } }));

  const plan = await ctl.must("recover", "--stack-export", "dev.json", "--yes");
  expect(plan.map(({ action, type }) => `${action} ${type}`).sort()).toEqual([
    ...Array(4).fill("add IPPool"), // two of them the tenant's
    ...Array(5).fill("add IPReservation"),
    "add OverlayNetwork",
    "add RunnerSubnet",
  ]);
  expect(await ctl.must("store", "check")).toEqual([]);

  const again = await Stage.up({ store: ctl.store });
  for (const [type, props] of made) {
    expect(await again.of(type).diff(props, props)).toMatchObject({ changes: false });
  }
  expect(await again.refusal("IPReservation", "x", { runner: "training/r1", usedBy: "box" })).toMatch(
    /^RESERVATION_EXISTS/,
  );
  await again.pool.end();
});
