import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { REQUIREMENTS } from "../../cli/requirements";
import { Lab } from "../../lab/lab";
import { openIpam } from "../../provider/ipam";
import { listSpecs } from "../../provider/ipam/interface";
import type { Lease } from "../../provider/ipam/types";
import { buildKohaku } from "./kohaku";
import { LabStack, must } from "./lab-stack";
import { LabCtl } from "./labctl";

/** Discovery from hosts alone: a program for an existing overlay, and the recovery of a lost store. */
let lab: Lab;
let ctl: LabCtl;
const address = (name: string): string => lab.host(name).address;

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  ctl = new LabCtl(lab);
});
afterAll(async () => {
  await lab?.down();
  ctl?.remove();
});

test("a KohakuRiver overlay becomes a program, with ids and device names, and a list of addresses in use", async () => {
  await buildKohaku(lab);
  await must(lab, "r1", "ip netns exec c1 ping -c 1 10.128.0.1");
  await must(lab, "r2", "ip link add vxother type vxlan id 7 remote 10.254.9.9 dstport 4789");
  const hosts = [address("r1"), `root@${address("hub")}:22`];
  const { code, stdout, stderr } = await ctl.run(["scan", ...hosts, "--import", "used.csv"]);
  expect(code).toBe(0);
  expect(stderr).toBe(
    "overlay: 10.128.0.0/12/6/14 on hub 10.254.0.1, 2 runners, 1 addresses in use. Not read: 10.254.1.2. Give these hosts, too.\n",
  );
  expect(stdout.slice(stdout.indexOf("const network"))).toBe(`const network = new overlay.OverlayNetwork("overlay", {
  hubConnection: at("10.254.0.1"),
  ...overlay.kohakuRiverNames,
  adopt: true,
  hostAccess: "all",
});

// This host was not read: check its connection and its runnerDevice.
new overlay.RunnerSubnet("runner1", {
  network,
  connection: at("10.254.1.2"),
  runnerId: 1,
  adopt: true,
});

new overlay.RunnerSubnet("r1", {
  network,
  connection: at("10.254.1.1"),
  runnerId: 3,
  runnerDevice: "vxlan0",
  adopt: true,
});
`);
  expect(readFileSync(join(ctl.folder, "used.csv"), "utf8")).toBe("ip,network,runner\n10.128.192.10,overlay,r1\n");
  expect((await ctl.run(["scan", address("r3")])).stderr).toMatch(
    /^INPUT_INVALID: No hub of an overlay is among 10\.254/,
  );
  for (const host of ["hub", "r1", "r2"]) await lab.rebuild(host);
});

test("--check shows what a host lacks, changes nothing, and says so in its exit code", async () => {
  const all = await ctl.run(["scan", "--check", address("r1"), "--json"]);
  expect([all.code, all.json.filter(({ result }) => result === "missing")]).toEqual([0, []]);
  expect(all.json.map(({ requirement }) => requirement)).toEqual([
    "ssh and root",
    ...REQUIREMENTS.map(({ name }) => name),
  ]);
  await must(
    lab,
    "r2",
    "mount --bind /dev/null $(readlink -f $(command -v flock)); mount --bind /dev/null $(readlink -f $(command -v iptables-save))",
  );
  const { code, stdout } = await ctl.run(["scan", "--check", address("r2")]);
  expect(code).toBe(1);
  expect(stdout).toMatch(/util-linux +missing +apt-get install util-linux/);
  const unknown = await ctl.run(["scan", "--check", "nobody@10.254.1.2", "--json"]);
  expect([unknown.code, unknown.json]).toEqual([
    1,
    [expect.objectContaining({ requirement: "ssh and root", result: "missing", fix: expect.stringMatching(/^SSH_/) })],
  ]);
  await lab.rebuild("r2");
});

test("docs/requirements.md has every requirement", () => {
  const page = readFileSync(join(__dirname, "../../docs/requirements.md"), "utf8");
  const rows = [...page.matchAll(/^\| ([^|]+?) \|/gm)].map(([, name]) => name);
  expect(rows).toEqual(expect.arrayContaining(["ssh and root", ...REQUIREMENTS.map(({ name }) => name)]));
});

test("a lost store is rebuilt from the records on hosts, and the next up changes nothing", async () => {
  const stack = await LabStack.on(lab, ctl.store);
  await stack.network({
    vniBase: 500,
    subnets: ["10.64.0.0/12/6/14", "fd00:64::/40/6/82"],
    bridgeName: "br-ov",
    docker: {},
  });
  await stack.runner("r1", { runnerName: "gpu-one" });
  await stack.runner("r2");
  const before = await leases();
  await stack.pool.end();
  lose();

  const all = ["hub", "r1", "r2"].flatMap((name) => ["--host", address(name)]);
  const plan = await ctl.run(["recover", ...all, "--json"]);
  expect(plan.json.map(({ action, value, pool }) => `${action} ${value} in ${pool}`)).toEqual([
    "add 10.64.0.0/12, fd00:64::/40 in space/default",
    "add 1 in network/training",
    "add 2 in network/training",
  ]);
  expect(await leases()).toEqual([]);
  expect((await ctl.run(["recover", ...all, "--yes"])).stderr).toBe("Written: 3; already in the store: 0.\n");
  expect(await leases()).toEqual(before);
  expect((await ctl.run(["recover", ...all, "--yes"])).stderr).toBe("Nothing to do: all 3 leases are in the store.\n");

  const again = await LabStack.on(lab, ctl.store);
  await again.network({
    vniBase: 500,
    subnets: ["10.64.0.0/12/6/14", "fd00:64::/40/6/82"],
    bridgeName: "br-ov",
    docker: {},
  });
  const { runnerId } = await again.runner("r2");
  expect(runnerId).toBe(2);
  expect(again.steps()).toEqual({ hub: 0, r2: 0 });
  await again.pool.end();
});

test("hosts and exports are merged, and refused if they contradict each other", async () => {
  const stack = await LabStack.on(lab, ctl.store);
  await stack.network({
    vniBase: 500,
    subnets: ["10.64.0.0/12/6/14", "fd00:64::/40/6/82"],
    bridgeName: "br-ov",
    docker: {},
  });
  await stack.runner("r2");
  await stack.pool.end();
  const before = await leases();
  writeFileSync(join(ctl.folder, "dev.json"), stack.exported());
  lose();
  writeFileSync(join(ctl.folder, "stale.json"), stack.exported().replace('"runnerId":2', '"runnerId":7'));
  const hosts = ["hub", "r1", "r2"].flatMap((name) => ["--host", address(name)]);
  const refused = await ctl.run(["recover", "--stack-export", "stale.json", ...hosts, "--yes"]);
  expect(refused.code).toBe(1);
  expect(refused.stderr).toMatch(
    /^STORE_CONFLICT: 1 records .*\n {2}\w+: 10\.254\.0\.1 says .*r2 has 2 in network training; stale\.json says .*r2 has 7 in/,
  );
  expect(await leases()).toEqual([]);

  const joined = await ctl.run(["recover", "--stack-export", "dev.json", ...hosts, "--yes"]);
  expect(joined.stderr).toBe("Written: 3; already in the store: 0.\n");
  expect(await leases()).toEqual(before);
});

function lose(): void {
  for (const end of ["", "-wal", "-shm", "-journal"]) rmSync(join(ctl.folder, `pool.db${end}`), { force: true });
}

/** Values, owners, names and uids; lease ids are renewed. */
async function leases(): Promise<unknown[]> {
  const pool = await openIpam(ctl.store, { offerTtl: 3600, quarantine: 300 });
  const all: Lease[] = [];
  for (const { name } of await listSpecs(pool)) all.push(...(await pool.leases(name)));
  const specs = await listSpecs(pool, { prefix: "network/" });
  await pool.end();
  return [
    ...all.map(
      ({ pool, owner, ranges, uid, names }) => `${pool} ${owner} ${ranges.map((e) => e.first)} ${uid} ${names}`,
    ),
    ...specs.map(({ data }) => JSON.stringify(data)),
  ];
}
