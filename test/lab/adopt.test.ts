import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { buildKohaku, IDS, subnetOf as subnet } from "./kohaku";
import { LabStack, must as mustOn } from "./lab-stack";
import { lossDuring } from "./pings";

/** An overlay of KohakuRiver is adopted while its workloads exchange packets. */
let lab: Lab;
let stack: LabStack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
});
afterAll(async () => {
  await lab?.down();
});

beforeEach(async () => {
  await Promise.all(["hub", "r1", "r2"].map((host) => lab.rebuild(host)));
  await buildKohaku(lab);
  stack = await LabStack.on(lab);
});

const must = (host: string, script: string): Promise<string> => mustOn(lab, host, script);

const devices = (host: string): Promise<string> =>
  must(
    host,
    "ip -o link show | grep -E 'vxkr|vxlan0|kohaku' | sed -E 's/^([0-9]+: [a-z0-9-]+).*(link.ether \\S+).*/\\1 \\2/'",
  );

const adoptAll = async (): Promise<void> => {
  await stack.network({ adopt: true });
  for (const runner of ["r1", "r2"] as const)
    await stack.runner(runner, { adopt: true, runnerId: IDS[runner], runnerDevice: "vxlan0" });
};

test("it is adopted without changes: the same devices with the same MACs, and no packet is lost", async () => {
  const before = [await devices("hub"), await devices("r1"), await devices("r2")];
  const from = { host: "r1", container: "c1", target: `${subnet("r2")}.10` };
  const loss = await lossDuring(lab, from, adoptAll);
  expect(loss).toMatchObject({ lost: 0 });
  expect([await devices("hub"), await devices("r1"), await devices("r2")]).toEqual(before);

  stack.steps();
  for (const [type, name] of [
    ["OverlayNetwork", "training"],
    ["RunnerSubnet", "r1"],
  ] as const)
    expect(await stack.drift(type, name)).toEqual([]);
  expect(Object.values(stack.steps()).every((steps) => steps === 0)).toBe(true);
});

test("the hub's address gets its own prefix, so that subnets without a runner are unreachable at once", async () => {
  await adoptAll();
  expect(await must("hub", "ip -o -4 addr show kohaku-host | awk '{print $4}'")).toBe("10.128.0.1/32");
  const { stdout } = await lab.exec("r1", "ping -c 1 -W 2 10.128.32.1");
  expect(stdout).toContain("Destination Host Unreachable");
});

test("an adopted bridge keeps its MAC when a port with a lower one is added, and gets it again when created again", async () => {
  await adoptAll();
  const mac = await must("r1", "cat /sys/class/net/kohaku-overlay/address");
  await must(
    "r1",
    "ip link add low address 00:00:00:00:00:01 type veth peer name low-peer; ip link set low master kohaku-overlay",
  );
  expect(await must("r1", "cat /sys/class/net/kohaku-overlay/address")).toBe(mac);
  await must("r1", "ip link del kohaku-overlay");
  expect(await stack.drift("RunnerSubnet", "r1")).toContainEqual(expect.stringContaining("kohaku-overlay: missing"));
  await stack.runner("r1", { adopt: true, runnerId: 3, runnerDevice: "vxlan0", masquerade: false });
  expect(await must("r1", "cat /sys/class/net/kohaku-overlay/address")).toBe(mac);
});

test("a runner that already has a tunnel under another id is refused with that id, and nothing is changed", async () => {
  await stack.network({ adopt: true });
  const all = "ip -o link show; ip -4 addr; ip route; iptables-save -t nat | grep -v '^#'; find /var/lib/overlay";
  const before = [await must("hub", all), await must("r1", "ip -o link show; ip -4 addr; ip route")];
  // The pool's own choice is 1, which is the other runner's.
  await expect(stack.runner("r1", { adopt: true, runnerDevice: "vxlan0" })).rejects.toThrow(
    /PLAN_STALE: 10\.254\.0\.1: The tunnel vxkr3 \(VNI 103\) already leads to 10\.254\.1\.1, .* Set runnerId: 3 on this runner/,
  );
  expect([await must("hub", all), await must("r1", "ip -o link show; ip -4 addr; ip route")]).toEqual(before);
});

test("without adopt, or with another VNI, it is refused and not changed", async () => {
  await expect(stack.network()).rejects.toThrow("DEVICE_FOREIGN");
  const adopted = await LabStack.on(lab);
  await adopted.network({ adopt: true, vniBase: 200 });
  const wrong = adopted.runner("r1", { adopt: true, runnerId: 3, runnerDevice: "vxlan0" });
  await expect(wrong).rejects.toThrow(/Adopting takes over only a tunnel with VNI 203 on port 4789 to 10\.254\.1\.1/);
  expect(await must("hub", "ip -d link show vxkr3 | grep -o 'vxlan id 103'")).toBe("vxlan id 103");
});

test("adopted objects are removed with the resources, others stay", async () => {
  await adoptAll();
  await must("hub", "ip link add vxkr9 type vxlan id 9 remote 10.254.9.9 dstport 4790");
  await stack.destroy();
  expect(await must("hub", "ip -o link show type vxlan | awk -F': ' '{print $2}'")).toBe("vxkr9");
  expect(await must("r1", "ip -o link show | grep -c -E 'vxlan0|kohaku' || :")).toBe("0");
  expect(await must("hub", "iptables -S FORWARD | grep -c 10.128.0.0/12")).toBe("2");
  expect(await findLeftovers(lab, "r1")).not.toContain("/var/lib/overlay");
});
