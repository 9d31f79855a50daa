import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Vm } from "../../lab/vm";
import { type Stack, Workspace } from "../e2e/stack";

/**
 * Two emulated machines with systemd, a hub and a runner: the overlay after restarts of services and after power cuts. The tests
 * build on each other, and each ends without drift.
 */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;
let hub: Vm;
let runner: Vm;

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
  [hub, runner] = [await Vm.make(lab, "vm-hub", 1), await Vm.make(lab, "vm-r1", 2)];
  await Promise.all([hub.start(), runner.start()]);
  workspace = new Workspace(lab);
  const timeouts = { OVERLAY_CONNECT_TIMEOUT: "60", OVERLAY_OPERATION_TIMEOUT: "600" };
  stack = await workspace.stack("vm", { env: timeouts });
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("${hub.address}") });
    const runner = new overlay.RunnerSubnet("r1", { network, connection: at("${runner.address}") });
    return { subnet: runner.subnet };
  `);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

async function must(vm: Vm, script: string): Promise<string> {
  const { code, stdout, stderr } = await vm.exec(script);
  if (code !== 0) throw new Error(`${vm.name}: ${script}: exit code ${code}: ${stderr}${stdout}`);
  return stdout.trim();
}

const SERVICE = "overlay-network.service";

/** Pings of full size from the runner to the hub, through the tunnel. */
const ping = (): Promise<string> => must(runner, "ping -q -c 5 -W 10 -M do -s 1422 10.128.0.1");

/** No host has drift. */
async function expectNoDrift(): Promise<void> {
  const { code, text } = await stack.pulumi("preview", "--refresh", "--diff", "--expect-no-changes", "--stack", "vm");
  expect(text).not.toContain("drift");
  expect(code, text).toBe(0);
}

/** When the unit last succeeded; waits for one that still runs. */
async function lastRun(vm: Vm): Promise<number> {
  const of = (property: string) => `systemctl show -P ${property} ${SERVICE}`;
  const wait = `while [ "$(${of("ActiveState")})" = activating ]; do sleep 1; done`;
  const [result, exited] = (await must(vm, `${wait}; ${of("Result")}; ${of("ExecMainExitTimestampMonotonic")}`)).split(
    "\n",
  );
  expect(result).toBe("success");
  return Number(exited);
}

test("up configures them, with a dummy device, MACs that udev does not change, and enabled units", async () => {
  await stack.mustUp();
  await ping();
  expect(await must(hub, "ip -d link show overlay-hub")).toContain("dummy");
  for (const vm of [hub, runner]) {
    expect(await must(vm, "systemctl is-enabled overlay-network overlay-network-reload; udevadm settle")).toBe(
      "enabled\nenabled",
    );
  }
  await expectNoDrift();
});

test("after a power cut of both everything is restored without Pulumi", async () => {
  const before = await Promise.all([hub, runner].map(overlayOf));
  for (const vm of [hub, runner]) {
    await must(vm, "sync");
    await vm.cutPower();
  }
  await Promise.all([hub.start(), runner.start()]);
  for (const vm of [hub, runner]) await lastRun(vm);
  expect(await Promise.all([hub, runner].map(overlayOf))).toEqual(before);
  await ping();
  await expectNoDrift();
});

test.each<[string, string]>([
  ["systemd-networkd is restarted", "systemctl restart systemd-networkd"],
  ["systemd-networkd is stopped and started", "systemctl stop systemd-networkd; systemctl start systemd-networkd"],
  ["nftables is started, which flushes all rules", "systemctl start nftables"],
  ["nftables is reloaded", "systemctl reload nftables"],
  ["nftables is restarted", "systemctl restart nftables"],
])("there is no drift after %s", async (_, command) => {
  for (const vm of [hub, runner]) {
    const before = await lastRun(vm);
    await must(vm, command);
    const reloads = command.includes("reload"); // the other unit does that
    if (!reloads) expect(await lastRun(vm)).toBeGreaterThan(before);
  }
  await ping();
  await expectNoDrift();
});

test("a disabled unit is drift, and up enables it", async () => {
  await must(runner, `systemctl disable ${SERVICE}`);
  const { text } = await stack.pulumi("preview", "--refresh", "--diff", "--stack", "vm");
  expect(text).toContain(`${runner.address}: service ${SERVICE}: start at boot is disabled, should be enabled`);
  await stack.mustUp("--refresh");
  await expectNoDrift();
});

test("without the unit a restart of systemd-networkd removes items", async () => {
  const before = await overlayOf(hub);
  await must(hub, "mv /var/lib/overlay/boot.sh /root/ && systemctl restart systemd-networkd");
  await until("something is gone", async () => (await overlayOf(hub)) !== before);
  await must(hub, `mv /root/boot.sh /var/lib/overlay/ && systemctl start ${SERVICE}`);
  expect(await overlayOf(hub)).toBe(before);
});

test("Docker is installed later, is restarted, and starts after the overlay at boot", async () => {
  await must(runner, "systemctl enable --now docker");
  await stack.mustUp("--refresh");
  await ping();
  await must(runner, "systemctl restart docker");
  await ping();
  await expectNoDrift();
  expect(await must(runner, "iptables -S FORWARD | grep -o -e DOCKER-USER -e OVERLAY-FWD")).toBe(
    "DOCKER-USER\nOVERLAY-FWD",
  );
  await must(runner, "sync");
  await runner.cutPower();
  await runner.start();
  await until("Docker is up", async () => (await runner.exec("docker network inspect pulumi-overlay")).code === 0);
  const dockerStarted = await must(runner, "systemctl show -P ExecMainStartTimestampMonotonic docker");
  expect(await lastRun(runner)).toBeLessThan(Number(dockerStarted));
  await ping();
  await expectNoDrift();
});

test("destroy removes unit, scripts and records", async () => {
  await stack.destroy();
  for (const vm of [hub, runner]) {
    const left =
      "ls -d /var/lib/overlay; find /etc/systemd -name '*overlay*'; ip -br link | grep -E 'ovl|kohaku'; iptables-save | grep OVERLAY; :";
    expect(await must(vm, left)).toBe("");
    expect((await vm.exec(`systemctl cat ${SERVICE}`)).code).not.toBe(0);
  }
});

/** Our objects in the kernel, without counters and carrier states. */
async function overlayOf(vm: Vm): Promise<string> {
  const look =
    "ip -br link show type vxlan; ip -br -4 addr | grep -E 'ovl|kohaku'; ip route show proto 183; iptables-save | grep OVERLAY";
  return (await must(vm, look)).replaceAll(/\b(UP|DOWN|UNKNOWN)\b|<.*>|\[.*\]/g, "").replaceAll(/[ \t]+/g, " ");
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await holds()); tries++) {
    if (tries > 100) throw new Error(`never: ${what}`);
    await sleep(3000);
  }
}
