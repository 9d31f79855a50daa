import { setImmediate } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { type ConversationReport, Reconciler, type Work } from "../../provider/host/reconcile";
import type { Host } from "../../provider/host/types";
import { type Network, planHub, planRunner, planTunnel } from "../../provider/network/hub";
import type { Item } from "../../provider/network/items";
import { training } from "../network";
import { labHost } from "./world";

/** The reconciler against a real kernel, with several owners at once. SSH and the lock have tests of their own. */
let lab: Lab;
let host: Host;
let reports: ConversationReport[];
let reconciler: Reconciler;

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
});

afterAll(async () => {
  await lab?.down();
});

beforeEach(async () => {
  await lab.rebuild("hub");
  host = labHost(lab, "hub");
  reports = [];
  reconciler = new Reconciler((report) => reports.push(report));
});

const network = training;
const other = network({ networkName: "other", hubInterface: "other-host", devicePrefix: "vxo", vniBase: 900 });
const here = { underlayIp: "10.254.0.1", underlayMtu: 1500 };
const there = { underlayIp: "10.254.9.9", underlayMtu: 1500 };

const work = (uid: string, items: Item[], more: Partial<Work> = {}, owner = uid): Work => ({
  record: { uid, owner, network: "training", store: "s" },
  items,
  fence: async () => {},
  isGone: async () => false,
  ...more,
});
const tunnel = (id: number, changes: Partial<Network> = {}): Item[] => planTunnel(network(changes), id, here, there);

const sh = async (script: string): Promise<string> => (await lab.exec("hub", script)).stdout.trim();
const devices = (): Promise<string> => sh("ip -o link show type vxlan | awk -F': ' '{print $2}' | sort | xargs");
const records = (): Promise<string> => sh("cd /var/lib/overlay 2>/dev/null && find . -name '*.json' | sort | xargs");

test("work that comes together, and until the host is read, is done in one conversation; a second time there is nothing to do", async () => {
  const all = [work("net", planHub(network())), ...[1, 2, 3].map((id) => work(`r${id}`, tunnel(id)))];
  await Promise.all(all.map((each) => reconciler.apply(host, each)));
  await setImmediate(); // a conversation is reported after its works are answered
  expect(reports.map(({ works }) => works)).toEqual([4]);
  expect(await devices()).toBe("vxkr1 vxkr2 vxkr3");
  reports = [];
  await Promise.all(all.map((each) => reconciler.apply(host, each)));
  await setImmediate();
  expect(reports.map(({ steps }) => steps)).toEqual([0]);
});

test("work that is no longer ours is refused under the lock, before anything is written", async () => {
  const fence = async () => {
    throw new Error("fenced");
  };
  await expect(reconciler.apply(host, work("r1", tunnel(1), { fence }))).rejects.toThrow("fenced");
  expect(await devices()).toBe("");
  expect(await records()).toBe("");
});

test("a record of the same owner is taken over only when its lease is gone, and only from our own store", async () => {
  await reconciler.apply(host, work("old", tunnel(1), {}, "me"));
  await reconciler.apply(host, work("new", tunnel(2), {}, "me"));
  expect(await devices()).toBe("vxkr1 vxkr2");
  await reconciler.apply(host, work("new", tunnel(2), { isGone: async (uid) => uid === "old" }, "me"));
  expect(await devices()).toBe("vxkr2");
  expect(await records()).toBe("./training/new.json");
  const elsewhere = work("third", tunnel(2), { isGone: async () => true }, "me");
  elsewhere.record.store = "another";
  await expect(reconciler.apply(host, elsewhere)).rejects.toThrow("DEVICE_FOREIGN");
});

test("a reclaimed id: the device of a lease that is gone is taken over by the next runner", async () => {
  await reconciler.apply(host, work("a", tunnel(1)));
  await expect(reconciler.apply(host, work("b", tunnel(1)))).rejects.toThrow(/DEVICE_FOREIGN: hub: .* belongs to a/);
  await reconciler.apply(host, work("b", tunnel(1), { isGone: async (uid) => uid === "a" }));
  expect(await records()).toBe("./training/b.json");
});

test("a machine that cannot be read is not taken for an empty one", async () => {
  await reconciler.apply(host, work("net", planHub(network())));
  const before = await sh("iptables-save | grep OVERLAY");
  await lab.exec(
    "hub",
    "printf '#!/bin/sh\\necho broken >&2\\nexit 4\\n' >/usr/local/sbin/iptables-save; chmod +x /usr/local/sbin/iptables-save",
  );
  await expect(reconciler.apply(host, work("other", planHub(other)))).rejects.toThrow(
    /HOST_COMMAND_FAILED: hub: .*broken/,
  );
  await lab.exec("hub", "rm /usr/local/sbin/iptables-save");
  expect(await sh("iptables-save | grep OVERLAY")).toBe(before);
});

test("VNIs that move up by one", async () => {
  for (const id of [1, 2, 3]) await reconciler.apply(host, work(`r${id}`, tunnel(id)));
  for (const id of [1, 2, 3]) await reconciler.apply(host, work(`r${id}`, tunnel(id, { vniBase: 101 })));
  expect(await sh("ip -d link show type vxlan | grep -oE 'vxlan id [0-9]+' | xargs")).toBe(
    "vxlan id 102 vxlan id 103 vxlan id 104",
  );
});

test("a device that another program made under our name after a reboot is left alone", async () => {
  await reconciler.apply(host, work("r1", tunnel(1)));
  await lab.exec("hub", "ip link del vxkr1; ip link add vxkr1 type vxlan id 777 dstport 9999 remote 10.254.7.7");
  await reconciler.apply(host, work("r1", []));
  expect(await sh("ip -d link show vxkr1 | grep -o 'vxlan id 777'")).toBe("vxlan id 777");
  expect(await records()).toBe("");
});

test("one owner's failure is not another's, and nobody is told that a rule is gone when it stands", async () => {
  const runner = (masquerade: boolean): Item[] => planRunner(network({ masquerade }), 1, "vxkr1", here, there);
  await reconciler.apply(host, work("r1", runner(true)));
  await lab.exec("hub", "ip link add vxtaken type vxlan id 905 dstport 4789 remote 10.254.7.7");
  const add = reconciler.apply(host, work("first", planHub(network()))); // makes the two below wait together
  const results = await Promise.allSettled([
    add,
    reconciler.apply(host, work("bad", planTunnel(other, 5, here, there))),
    reconciler.apply(host, work("r1", [])),
  ]);
  expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  expect(String((results[1] as PromiseRejectedResult).reason)).toMatch(
    /HOST_COMMAND_FAILED: hub: 'ip link add vxo5 .*vxo5: missing/,
  );
  expect(await sh("ls /var/lib/overlay/training")).not.toContain("r1.json");

  await reconciler.apply(host, work("r2", runner(true)));
  await lab.exec(
    "hub",
    "printf '#!/bin/sh\\nexit 1\\n' >/usr/local/sbin/iptables-restore; chmod +x /usr/local/sbin/iptables-restore",
  );
  await expect(reconciler.apply(host, work("r2", runner(false)))).rejects.toThrow(/MASQUERADE.*still there/);
  await lab.exec("hub", "rm /usr/local/sbin/iptables-restore");
  await reconciler.apply(host, work("r2", runner(false)));
  expect(await sh("iptables-save | grep -c MASQUERADE")).toBe("0");
});

test("everything goes, with the value that forwarding had before", async () => {
  const before = await sh("ip -o link show; ip route; iptables-save | grep -v '^#'; cat /proc/sys/net/ipv4/ip_forward");
  await reconciler.apply(host, work("net", planHub(network())));
  await reconciler.apply(host, work("r1", planRunner(network({ bridgeName: "ov-br" }), 1, "vxkr1", here, there)));
  expect(await sh("cat /proc/sys/net/ipv4/ip_forward")).toBe("1");
  await Promise.all([reconciler.apply(host, work("net", [])), reconciler.apply(host, work("r1", []))]);
  const after = await sh("ip -o link show; ip route; iptables-save | grep -v '^#'; cat /proc/sys/net/ipv4/ip_forward");
  expect(withoutCounters(after)).toBe(withoutCounters(before));
  expect(await sh("ls -d /var/lib/overlay 2>/dev/null")).toBe("");
});

test("on a full disk nothing is changed and no file is cut short, however little room is left", async () => {
  const settings = "cat /proc/sys/net/ipv4/ip_forward; ip -o link show kohaku-host 2>/dev/null | wc -l";
  const nothing = await sh(settings);
  const net = { persist: true };
  await sh("mkdir -p /var/lib/overlay && mount -t tmpfs -o size=32k tmpfs /var/lib/overlay");
  let refused = 0;
  for (let pages = 0; pages < 8; pages++) {
    await sh(`head -c ${(8 - pages) * 4096} /dev/zero >/var/lib/overlay/fill`);
    const result = await Promise.allSettled([reconciler.apply(host, work("net", planHub(network()), net))]);
    const empty = await sh("find /var/lib/overlay -type f \\( -empty -o -name '*.tmp' \\)");
    expect({ pages, empty }).toEqual({ pages, empty: "" });
    if (result[0]!.status === "rejected") {
      refused++;
      expect(String(result[0]!.reason)).toMatch(/HOST_COMMAND_FAILED: hub: .*cannot write \/var\/lib\/overlay\//);
      expect({ pages, settings: await sh(settings) }).toEqual({ pages, settings: nothing });
    }
    await sh("rm /var/lib/overlay/fill");
    await reconciler.apply(host, work("net", []));
    expect(await sh(settings)).toBe(nothing);
  }
  expect(refused).toBeGreaterThan(1);
  expect(refused).toBeLessThan(8);
});

/** Empty tables that iptables-save lists once somebody has looked into them are no trace. */
const withoutCounters = (text: string): string =>
  text
    .split("\n")
    .filter((line) => !/^[*:]|^COMMIT/.test(line))
    .join("\n");
