import { rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { openIpam } from "../../provider/ipam";
import { listSpecs } from "../../provider/ipam/interface";
import type { Lease } from "../../provider/ipam/types";
import { LabStack, must } from "./lab-stack";
import { LabCtl } from "./labctl";

/** Discovery of networks with WireGuard from hosts alone. Tests build on each other. */
let lab: Lab;
let ctl: LabCtl;
const HOSTS = ["hub", "r1", "r2"] as const;
const NETWORK = { tunnel: "wireguard", keyGeneration: 3, subnets: ["10.64.0.0/12/6/14", "fd00:64::/40/6/82"] };

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  ctl = new LabCtl(lab);
});
afterAll(async () => {
  await lab?.down();
  ctl?.remove();
});

const address = (name: string): string => lab.host(name).address;
const keys = () => Promise.all(HOSTS.map((host) => must(lab, host, "wg show all public-key")));

async function put(stack: LabStack): Promise<void> {
  await stack.network(NETWORK);
  await stack.runner("r1", { runnerName: "gpu-one" });
  await stack.runner("r2");
}

/** What a recovery must bring back. Lease ids are renewed, and hosts do not have the generation of keys. */
async function leases(): Promise<unknown[]> {
  const pool = await openIpam(ctl.store, { offerTtl: 3600, quarantine: 300 });
  const all: Lease[] = [];
  for (const { name } of await listSpecs(pool)) all.push(...(await pool.leases(name)));
  await pool.end();
  return all.map(({ pool, owner, ranges, uid, names, data }) => {
    const { keyGeneration: _, ...tunnel } = (data as { tunnel: Record<string, unknown> }).tunnel;
    return { pool, owner, first: ranges.map(({ first }) => first), uid, names, tunnel };
  });
}

function lose(): void {
  for (const end of ["", "-wal", "-shm", "-journal"]) rmSync(join(ctl.folder, `pool.db${end}`), { force: true });
}

test("a lost store is rebuilt from the records on hosts, with the ends of tunnels, and the next up changes nothing", async () => {
  const stack = await LabStack.on(lab, ctl.store);
  await put(stack);
  const [before, keysBefore] = [await leases(), await keys()];
  await stack.pool.end();
  lose();

  const hosts = HOSTS.flatMap((name) => ["--host", address(name)]);
  expect(await ctl.run(["recover", ...hosts, "--yes"])).toMatchObject({
    stderr: "Written: 3; already in the store: 0.\n",
    code: 0,
  });
  expect(await leases()).toEqual(before);

  const again = await LabStack.on(lab, ctl.store);
  await put(again);
  expect(again.steps()).toEqual({ hub: 0, r1: 0, r2: 0 });
  expect(await keys()).toEqual(keysBefore);
  expect(await again.drift("RunnerSubnet", "r2")).toEqual([]);
  await again.pool.end();
});

test("runners that were not read are recovered from the hub", async () => {
  const before = await leases();
  lose();
  expect((await ctl.run(["recover", "--host", address("hub"), "--yes"])).stderr).toBe(
    "Written: 3; already in the store: 0.\n",
  );
  const withoutHosts = (all: unknown[]) =>
    JSON.parse(
      JSON.stringify(all, (_, value) => (typeof value === "bigint" ? String(value) : value)),
      (key, value) => (key === "names" ? value.filter((name: string) => !name.startsWith("host/")) : value),
    );
  expect(withoutHosts(await leases())).toEqual(withoutHosts(before));
});

test("scan writes a program with the tunnel", async () => {
  const { stdout, stderr } = await ctl.run(["scan", ...HOSTS.map(address)]);
  expect(stderr).toBe(
    "training: 10.64.0.0/12/6/14 and fd00:64::/40/6/82 on hub 10.254.0.1, 2 runners, 0 addresses in use. It was made by this package: if its store is lost, `overlayctl recover --host …` rebuilds it.\n",
  );
  expect(stdout.slice(stdout.indexOf("const network"))).toBe(`const network = new overlay.OverlayNetwork("training", {
  hubConnection: at("10.254.0.1"),
  ...overlay.kohakuRiverNames,
  subnets: ["10.64.0.0/12/6/14","fd00:64::/40/6/82"],
  tunnel: "wireguard",
  keyGeneration: 1,
});

new overlay.RunnerSubnet("gpu-one", {
  network,
  connection: at("${address("r1")}"),
  runnerId: 1,
});

new overlay.RunnerSubnet("r2", {
  network,
  connection: at("${address("r2")}"),
  runnerId: 2,
});
`);
});

describe("WireGuard of another program", () => {
  test("is named by scan, which has no program for it", async () => {
    await must(
      lab,
      "r3",
      "ip link add wg0 type wireguard 2>/dev/null || setsid wireguard-go wg0 >/dev/null 2>&1; wg genkey >/run/theirs; wg set wg0 private-key /run/theirs listen-port 51999; ip addr add 10.9.0.1/24 dev wg0; ip link set wg0 up",
    );
    const { code, stdout, stderr } = await ctl.run(["scan", address("r3")]);
    expect([code, stdout]).toEqual([1, ""]);
    expect(stderr).toContain(`WireGuard of other programs cannot be adopted: wg0 on ${address("r3")}.`);
  });
});
