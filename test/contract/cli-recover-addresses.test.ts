import { rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import type { Values } from "../../provider/lifecycle/values";
import { Ctl } from "../unit/cli/ctl";
import { Stage } from "../unit/lifecycle/stage";

/** Child pools, addresses in them, and a tenant's block that no stack holds: all are recovered from an export. */
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
  await useByToken(stage, made);
  await stage.pool.ipam.end();
  await ctl.must("store", "keys", "export", "keys");
  expect(statSync(join(ctl.folder, "keys")).mode & 0o777).toBe(0o600);
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
    const changes = type === "IPReservation"; // its token is invalid
    expect(await again.of(type).diff(props, props)).toMatchObject({ changes, replaces: [] });
  }
  const [, dead] = made.find(([, { owner }]) => String(owner).endsWith("::any"))!;
  const mended = await again.of("IPReservation").update("id", dead, dead);
  expect(mended.token).not.toBe(dead.token);
  expect(await again.of("IPReservation").diff(mended, mended)).toMatchObject({ changes: false });

  await ctl.must("store", "keys", "import", "keys");
  for (const [type, props] of [...made, ["IPReservation", mended] as const]) {
    expect(await again.of(type).diff(props, props)).toMatchObject({ changes: false });
  }
  expect(await again.refusal("IPReservation", "x", { runner: "training/r1", usedBy: "box" })).toMatch(
    /^RESERVATION_EXISTS/,
  );
  const [lease] = await again.pool.ipam.leases("pool/part");
  expect(lease).toMatchObject({ state: "used" });
  await again.pool.ipam.end();
  const { stdout } = await ctl.run("store", "keys", "export", "-");
  expect(stdout.trim().split(",")).toHaveLength(2);
});

/** A container uses the address in `part` with its token, and a refresh reads that. */
async function useByToken(stage: Stage, made: [type: string, props: Values][]): Promise<void> {
  const entry = made.find(([, { owner }]) => String(owner).endsWith("::in-part"))!;
  const [, { leaseId }] = entry;
  await stage.pool.change("pool/part", String(leaseId), { state: "used", usedBy: "box" });
  entry[1] = (await stage.of("IPReservation").read("id", entry[1])).props;
  expect(entry[1]).toMatchObject({ state: "used" });
}

test("keys that are too short are refused, and nothing is written", async () => {
  writeFileSync(join(ctl.folder, "short"), "secret\n");
  expect(await ctl.refusal("store", "keys", "import", "short")).toBe("1 SETTING_INVALID");
});
