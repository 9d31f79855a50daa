import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { buildKohaku, IDS } from "./kohaku";
import { LabStack } from "./lab-stack";
import { tries } from "./pings";

/** Records on hosts that are lost or invalid. */
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
  stack = await LabStack.on(lab);
});

const sh = async (host: string, script: string): Promise<string> => (await lab.exec(host, script)).stdout.trim();
const loseRecords = (host: string) => sh(host, "rm /var/lib/overlay/*/*.json");
const allLeft = () => Promise.all(["hub", "r1", "r2"].map((host) => findLeftovers(lab, host)));
const NOTHING = ["", "", ""];
const uidOf = async (type: string, name: string): Promise<string> => String(stack.props(type, name).uid);

async function up(): Promise<void> {
  await stack.network();
  for (const name of ["r1", "r2"]) await stack.runner(name);
}

test.each(["r1", "hub"])(
  "a lost record on %s is drift, and up --refresh writes it again and changes nothing else",
  async (host) => {
    await up();
    const file = `/var/lib/overlay/training/${await uidOf("RunnerSubnet", "r1")}.json`;
    const before = await sh(host, `cat ${file}`);
    const kernel = "ip -o link; ip -4 -o addr; ip route; iptables-save | grep -v '^[#:]'";
    const was = await sh(host, kernel);
    await loseRecords(host);
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([`${lab.host(host).address}: file ${file}: missing`]);
    await stack.refresh();
    await up();
    expect(await sh(host, `cat ${file}`)).toBe(before);
    expect(await sh(host, kernel)).toBe(was);
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
    await stack.destroy();
    expect(await allLeft()).toEqual(NOTHING);
  },
);

test("destroy removes everything on hosts that have lost all records", async () => {
  await up();
  for (const host of ["hub", "r1", "r2"]) await loseRecords(host);
  await stack.destroy();
  expect(await allLeft()).toEqual(NOTHING);
});

test("items of other owners on the host stay, also while their records are lost", async () => {
  await up();
  const rest =
    "ip -o link show vxkr2; ip -o link show kohaku-host; iptables-save | grep OVERLAY | grep -v -e 10.254.1.1 -e vxkr1; cat /proc/sys/net/ipv4/ip_forward; ls /var/lib/overlay/boot.sh";
  const before = await sh("hub", rest);
  await loseRecords("hub");
  await stack.remove("RunnerSubnet", "r1");
  expect(await sh("hub", rest)).toBe(before);
  expect(await sh("hub", "ip -o link show vxkr1; iptables-save | grep -e 10.254.1.1 -e vxkr1")).toBe("");
  expect((await lab.exec("r2", "ping -c 1 -W 10 10.128.0.1")).code).toBe(0);
  await stack.destroy();
  expect(await allLeft()).toEqual(NOTHING);
});

test("a bridge with another MAC is known by its port while all records are lost, and gets its MAC back", async () => {
  await up();
  const before = await sh("r1", "ip -o link show kohaku-overlay | sed 's/^[0-9]*: //'");
  await sh("r1", "ip link set kohaku-overlay address 02:00:00:00:00:98");
  await loseRecords("r1");
  const { address } = lab.host("r1");
  const mac = /ether (\S+)/.exec(before)![1];
  expect(await stack.drift("RunnerSubnet", "r1")).toContain(
    `${address}: link kohaku-overlay: MAC is 02:00:00:00:00:98, should be ${mac}`,
  );
  await up();
  expect(await sh("r1", "ip -o link show kohaku-overlay | sed 's/^[0-9]*: //'")).toBe(before);
  await stack.destroy();
  expect(await allLeft()).toEqual(NOTHING);
});

/** With a static address on the hub. */
async function upWithForward(): Promise<void> {
  await up();
  await stack.put("IPPool", "lb", { ranges: ["10.254.200.0/28"] });
  await putForward();
}
const putForward = () => {
  const forwards = [{ protocol: "tcp", port: 80, to: "10.128.64.5" }];
  return stack.put("StaticIP", "web", {
    pool: "lb",
    attach: "training",
    connection: stack.at("hub"),
    ip: "10.254.200.0",
    forwards,
  });
};
const RESOURCES = [
  ["OverlayNetwork", "training"],
  ["RunnerSubnet", "r1"],
  ["RunnerSubnet", "r2"],
  ["StaticIP", "web"],
] as const;
const allDrift = async () => (await Promise.all(RESOURCES.map(([type, name]) => stack.drift(type, name)))).flat();
const RULES = "{ iptables-save; ip6tables-save; } | grep -v '^[#:]'";

test("a hub that has lost everything: rules of owners that the pool has are not called foreign, and stay", async () => {
  await upWithForward();
  const before = await sh("hub", RULES);
  await loseAll("hub");
  const missing = expect.stringMatching(/^10\.254\.0\.1: file \/var\/lib\/overlay\/[\w./]+: missing$/);
  const lost = await allDrift();
  const isFormerValue = (line: string): boolean => line.endsWith("net.ipv4.ip_forward: its former value is not saved");
  expect(lost.filter((line) => !isFormerValue(String(line)))).toEqual(Array(12).fill(missing));
  await stack.refresh();
  await stack.network();
  await stack.runner("r1");
  expect(await allDrift()).toEqual(Array(4).fill(missing));
  await stack.runner("r2");
  await putForward();
  expect(await allDrift()).toEqual([]);
  expect(stack.warnings.filter((text) => text.includes("foreign"))).toEqual([]);
  expect(await sh("hub", RULES)).toBe(before);
});

describe.each(["vxlan", "wireguard"])("%s", (tunnel) => {
  test.each([
    ["of one runner", (uid: string) => `rm /var/lib/overlay/training/${uid}.*`],
    ["of all", () => "rm -r /var/lib/overlay"],
  ])(
    "records and scripts %s that are lost on a hub: none of their peers and rules is called foreign",
    async (_, lose) => {
      await sh("hub", "echo 1 >/proc/sys/net/ipv4/ip_forward");
      await stack.network({ tunnel });
      for (const name of ["r1", "r2"]) await stack.runner(name);
      await sh("hub", lose(await uidOf("RunnerSubnet", "r1")));
      for (const [type, name] of [RESOURCES[0], RESOURCES[2]])
        expect(((await stack.drift(type, name)) as string[]).filter((line) => line.includes("foreign"))).toEqual([]);
      await stack.remove("RunnerSubnet", "r1");
      expect((await lab.exec("r2", tries("ping -c 1 -W 2 10.128.0.1"))).code).toBe(0);
      await stack.destroy();
      await sh("hub", "echo 0 >/proc/sys/net/ipv4/ip_forward");
      expect(await allLeft()).toEqual(NOTHING);
    },
  );
});

test("a foreign rule on a hub that has lost everything is shown once all records are there again", async () => {
  await up();
  await sh("hub", "iptables -A OVERLAY-FWD -s 192.0.2.7/32 -j DROP");
  await loseAll("hub");
  await stack.refresh();
  await up();
  expect(await stack.drift("OverlayNetwork", "training")).toEqual([
    "10.254.0.1: foreign rule '-s 192.0.2.7/32 -j DROP' in OVERLAY-FWD (IPv4 filter): remove it with `iptables -t filter -D OVERLAY-FWD -s 192.0.2.7/32 -j DROP`",
  ]);
});

test("destroy removes everything from hosts that have lost everything, resource by resource", async () => {
  await upWithForward();
  for (const host of ["hub", "r1", "r2"]) await loseAll(host);
  await stack.remove("StaticIP", "web");
  expect(await sh("hub", "iptables-save | grep 10.254.200.0")).toBe("");
  await stack.remove("RunnerSubnet", "r1");
  expect(await sh("hub", "ip -o link show vxkr1; iptables-save | grep -e vxkr1 -e 10.254.1.1")).toBe("");
  expect((await lab.exec("r2", "ping -c 1 -W 10 10.128.0.1")).code).toBe(0);
  await stack.destroy();
  expect(await allLeft()).toEqual(NOTHING);
});

test("a runner that no longer exists does not prevent the hub from being cleaned without a record", async () => {
  await up();
  await loseRecords("hub");
  await lab.stop("r1");
  stack.deps.unreachableOnDelete = "forget";
  stack.unreachable.add(lab.host("r1").address);
  await stack.remove("RunnerSubnet", "r1");
  expect(await sh("hub", "ip -o link show vxkr1; iptables-save | grep 10.254.1.1")).toBe("");
  stack.unreachable.clear();
  await lab.start("r1");
});

/** Records, boot scripts and all: as after `persist: false` and a lost record. */
const loseAll = (host: string) => sh(host, "rm -r /var/lib/overlay");

/** A static address on the hub with a return path on r1; the hub no longer exists when it is to be removed. */
async function upWithoutHub(): Promise<void> {
  await up();
  await stack.put("IPPool", "lb", { ranges: ["10.254.200.0/28"] });
  const forwards = [{ protocol: "tcp", port: 80, to: "10.128.64.5" }];
  const runners = [{ networkName: "training", runnerName: "r1", subnets: ["10.128.64.0/18"] }];
  const connections = { connection: stack.at("hub"), runnerConnections: [stack.at("r1")] };
  const inputs = { pool: "lb", attach: "training", runners, forwards, preserveClientIp: true, persist: false };
  await stack.put("StaticIP", "web", { ...inputs, ...connections });
  await loseAll("r1");
  stack.deps.unreachableOnDelete = "forget";
  stack.unreachable.add(lab.host("hub").address);
}
const REPLIES = "ip rule | grep 'proto 183' | grep fwmark; iptables-save | grep MARK | grep -v OVERLAY-OUT";

test("without records, boot scripts and hub, the items of a runner are planned from the state", async () => {
  await upWithoutHub();
  expect(await sh("r1", REPLIES)).toContain("fwmark");
  await stack.remove("StaticIP", "web");
  expect(await sh("r1", REPLIES)).toBe("");
  await stack.remove("RunnerSubnet", "r1");
  expect(await findLeftovers(lab, "r1")).toBe("");
});

test("if the state lacks the address of a hub that is gone, destroy refuses with the commands that show what is left", async () => {
  await upWithoutHub();
  delete stack.props("StaticIP", "web").underlays;
  await expect(stack.remove("StaticIP", "web")).rejects.toThrow(
    /^RECORD_LOST: 10\.254\.1\.1: .*\.json is missing, .* cannot be planned: 10\.254\.0\.1 does not answer\..*`ip route show table all proto 183`.*`pulumi state delete`.*`overlayctl gc`/,
  );
  expect(await sh("r1", REPLIES)).toContain("fwmark");
});

test("hosts that a failed destroy has cleaned do not stop the next one", async () => {
  await up();
  stack.unreachable.add(lab.host("hub").address);
  delete stack.props("RunnerSubnet", "r1").underlays;
  await expect(stack.remove("RunnerSubnet", "r1")).rejects.toThrow("SSH_UNREACHABLE");
  expect(await findLeftovers(lab, "r1")).toBe("");
  stack.deps.unreachableOnDelete = "forget";
  await stack.remove("RunnerSubnet", "r1");
});

test("an adopted device without record and boot script: destroy refuses, with the command that removes it", async () => {
  await buildKohaku(lab);
  await stack.network({ adopt: true });
  await stack.runner("r1", { adopt: true, runnerId: IDS.r1, runnerDevice: "vxlan0" });
  await loseAll("r1");
  await expect(stack.remove("RunnerSubnet", "r1")).rejects.toThrow(/RECORD_LOST: .*vxlan0.*`ip link del vxlan0`/);
});

test("devices of our names with other MACs and no port of ours are not ours without a record: they stay, and up refuses them", async () => {
  await up();
  await loseRecords("r1");
  await sh("r1", "for port in $(ls /sys/class/net/kohaku-overlay/brif); do ip link set $port nomaster; done");
  await sh("r1", "ip link set kohaku-overlay address 02:00:00:00:00:99; rm /var/lib/overlay/training/*.sh");
  await stack.refresh();
  await expect(stack.runner("r1")).rejects.toThrow(/DEVICE_FOREIGN: .* kohaku-overlay/);
});

test("a rule that no record lists keeps its chain, and destroy says so with the command", async () => {
  await up();
  await sh("r1", "rm -r /var/lib/overlay/training; iptables -A OVERLAY-FWD -s 192.0.2.7/32 -j DROP");
  await expect(stack.remove("RunnerSubnet", "r1")).rejects.toThrow(
    /RECORD_LOST: .*OVERLAY-FWD .*-s 192\.0\.2\.7\/32 -j DROP.*`iptables -t filter -D OVERLAY-FWD -s 192\.0\.2\.7\/32 -j DROP`/,
  );
  await sh("r1", "iptables -t filter -D OVERLAY-FWD -s 192.0.2.7/32 -j DROP");
  await stack.destroy();
  expect(await allLeft()).toEqual(NOTHING);
});

test("adopted devices without a record are found by the boot script", async () => {
  await buildKohaku(lab);
  await stack.network({ adopt: true });
  const adopted = { adopt: true, runnerId: IDS.r1, runnerDevice: "vxlan0" };
  await stack.runner("r1", adopted);
  const mac = await sh("r1", "cat /sys/class/net/kohaku-overlay/address");
  for (const host of ["hub", "r1"]) await loseRecords(host);
  await stack.refresh();
  await stack.network({});
  await stack.runner("r1", { ...adopted, adopt: false });
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
  expect(await sh("r1", "cat /sys/class/net/kohaku-overlay/address")).toBe(mac);
  for (const host of ["hub", "r1"]) await loseRecords(host);
  await stack.destroy();
  expect(await sh("r1", "ip -o link show | grep -E 'vxlan0|kohaku'; ls -d /var/lib/overlay")).toBe("");
  expect(await sh("hub", "ip -o link show | grep -oE 'kohaku-host|vxkr3'; ls -d /var/lib/overlay")).toBe("");
});

test("an overlay of another program on a host that refused ours stays after destroy", async () => {
  await buildKohaku(lab);
  const look = "ip -o link; ip -4 -o addr; ip route; iptables-save | grep -v '^[#:]'";
  const before = [await sh("hub", look), await sh("r1", look)];
  await expect(stack.network()).rejects.toThrow("DEVICE_FOREIGN");
  await stack.destroy();
  expect([await sh("hub", look), await sh("r1", look)]).toEqual(before);
});

const NO_RECORDS: [string, string][] = [
  ["null", "echo null >"],
  ["nothing", ": >"],
  ["a truncated record", "truncate -s 100"],
];

test.each(NO_RECORDS)(
  "%s instead of a record: other owners are not affected, and its owner writes it again",
  async (_, spoil) => {
    await up();
    const file = `/var/lib/overlay/training/${await uidOf("RunnerSubnet", "r1")}.json`;
    const before = await sh("hub", `cat ${file}`);
    await sh("hub", `${spoil} ${file}`);
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([
      expect.stringMatching(new RegExp(`^10\\.254\\.0\\.1: file ${file}: it is not a record \\(.+\\)$`)),
    ]);
    expect(await stack.drift("RunnerSubnet", "r2")).toEqual([]);
    await stack.runner("r2", { masquerade: false });
    expect(stack.warnings).toContainEqual(expect.stringContaining(`10.254.0.1: ${file} is not a record (`));
    await stack.remove("RunnerSubnet", "r2");
    expect(await sh("hub", "ip -o link show vxkr1 | wc -l; iptables-save | grep -c OVERLAY-IN")).not.toMatch(/^0/m);
    await stack.refresh();
    await stack.network();
    await stack.runner("r1");
    expect(await sh("hub", `cat ${file}`)).toBe(before);
    expect(await sh("hub", `ls ${file}.invalid-*`)).toMatch(/\.json\.invalid-\d{8}T\d{6}Z$/);
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
    await sh("hub", `${spoil} ${file}`);
    await stack.destroy();
    expect(await allLeft()).toEqual(NOTHING);
  },
);
