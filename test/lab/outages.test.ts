import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { LabStack, must } from "./lab-stack";

/** What stops the overlay although all that its records list is there: a refresh names it, and `up --refresh` repairs what is ours. */
let lab: Lab;
let stack: LabStack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  stack = await LabStack.on(lab);
  await stack.network();
  for (const name of ["r1", "r2"]) await stack.runner(name);
});
afterAll(async () => {
  await lab?.down();
});

const repairs: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const repair of repairs.splice(0)) await repair();
});

/** Breaks something for the time of one test. */
async function breakHost(host: string, script: string, repair = ":"): Promise<void> {
  await must(lab, host, script);
  repairs.push(() => must(lab, host, repair));
}

const drift = async (name: string): Promise<string[]> => (await stack.drift("RunnerSubnet", name)) as string[];
const ping = async (from: string, to: string): Promise<boolean> =>
  (await lab.exec(from, `ping -c 1 -W 1 ${to}`)).code === 0;

/** `up --refresh`; then nothing is left to name or to repair. */
async function repair(): Promise<void> {
  await stack.refresh();
  for (const name of ["r1", "r2"]) await stack.runner(name);
  expect([await drift("r1"), await drift("r2")]).toEqual([[], []]);
  expect([await ping("r1", "10.128.128.1"), await ping("r2", "10.128.64.1")]).toEqual([true, true]);
}

const NONE = "00:00:00:00:00:00";

test("a tunnel's default FDB entry that was deleted is drift, and comes back", async () => {
  const hub = lab.host("hub").address;
  const runner = lab.host("r1").address;
  await must(lab, "hub", `bridge fdb del ${NONE} dev vxkr1 dst ${runner}`);
  await must(lab, "r2", `bridge fdb del ${NONE} dev vxkr2 dst ${hub}`);
  expect(await drift("r1")).toEqual([`${hub}: link vxkr1: default FDB entry is none, should be dst ${runner}`]);
  expect(await drift("r2")).toEqual([
    `${lab.host("r2").address}: link vxkr2: default FDB entry is none, should be dst ${hub}`,
  ]);
  await repair();
});

test("an FDB entry that leads elsewhere is foreign: it is named with the command that removes it, and stays", async () => {
  const hub = lab.host("hub").address;
  const copy = `${NONE} dev vxkr1 dst 10.254.9.9`;
  const away = "02:00:00:00:00:09 dev vxkr1 dst 10.254.9.9 port 4790 vni 7";
  await breakHost(
    "hub",
    `bridge fdb append ${copy}; bridge fdb add ${away}`,
    `bridge fdb del ${copy}; bridge fdb del ${away}`,
  );
  const named = (entry: string, what: string) =>
    `${hub}: foreign FDB entry '${entry}' ${what} vxkr1 elsewhere; it is never removed by us: remove it with \`bridge fdb del ${entry}\``;
  const both = [named(away, "sends frames to 02:00:00:00:00:09 of"), named(copy, "copies all frames of")];
  expect((await drift("r1")).sort()).toEqual(both.sort());
  await stack.refresh();
  expect((await stack.runner("r1")).drift).toHaveLength(2);
  expect(await must(lab, "hub", "bridge fdb show dev vxkr1 | grep -c 'dst 10.254.9.9'")).toBe("2");
  for (const undo of repairs.splice(0)) await undo();
  await repair();
});

test("the bridge with another MAC is ours: it gets its MAC again, and keeps its ports", async () => {
  await lab.container("r1", "job", { bridge: "kohaku-overlay", address: "10.128.64.9/18", gateway: "10.128.64.1" });
  const mac = await must(lab, "r1", "cat /sys/class/net/kohaku-overlay/address");
  await must(lab, "r1", "ip link set kohaku-overlay address 02:00:00:00:00:77");
  expect(await drift("r1")).toEqual([
    `${lab.host("r1").address}: link kohaku-overlay: MAC is 02:00:00:00:00:77, should be ${mac}`,
  ]);
  await repair();
  expect(await must(lab, "r1", "ls /sys/class/net/kohaku-overlay/brif | xargs")).toBe("ve-job vxkr1");
});

test("a bridge and a tunnel that were renamed get their names again, with ports, addresses and routes", async () => {
  await must(lab, "r1", "ip link set kohaku-overlay down; ip link set kohaku-overlay name br9; ip link set br9 up");
  await must(lab, "r2", "ip link set vxkr2 down; ip link set vxkr2 name other; ip link set other up");
  const at = (name: string) => lab.host(name).address;
  expect(await drift("r1")).toEqual([
    `${at("r1")}: link kohaku-overlay: name is br9, should be kohaku-overlay`,
    `${at("r1")}: route 10.128.0.0/12: missing`,
  ]);
  expect(await drift("r2")).toEqual([`${at("r2")}: link vxkr2: name is other, should be vxkr2`]);
  await repair();
  expect(await must(lab, "r1", "ls /sys/class/net/kohaku-overlay/brif | xargs")).toBe("ve-job vxkr1");
});

test("another program's bridge under our name is not to be deleted while it has ports", async () => {
  await must(
    lab,
    "r1",
    "ip link del vxkr1; ip link set kohaku-overlay name mine; ip link set mine address 02:00:00:00:00:78; ip addr flush mine",
  );
  await must(lab, "r1", "ip link add kohaku-overlay type bridge; ip link set ve-job master kohaku-overlay");
  const [named] = await drift("r1");
  expect(named).toContain("foreign device kohaku-overlay (bridge, MAC");
  expect(named).toContain("until it has another name (`ip link set dev kohaku-overlay name OTHER`)");
  await must(lab, "r1", "ip link set dev kohaku-overlay name theirs; ip link del mine");
  await repair();
});
