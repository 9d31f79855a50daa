import { setImmediate } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseLayout } from "../../provider/addressing/layout";
import type { Host } from "../../provider/host/connection";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest, ConversationReport } from "../../provider/host/reconcile/requests";
import { formatDifference } from "../../provider/network/kinds";
import type { Item } from "../../provider/network/model/items";
import { type Network, planHub, planRunner, planTunnel } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost } from "./lab-stack";

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

const work = (uid: string, items: Item[], more: Partial<ApplyRequest> = {}, owner = uid): ApplyRequest => ({
  record: { uid, owner, network: "training", store: "s" },
  items,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
  ...more,
});
const tunnel = (id: number, changes: Partial<Network> = {}): Item[] => planTunnel(network(changes), id, here, there);

const sh = async (script: string): Promise<string> => (await lab.exec("hub", script)).stdout.trim();
const devices = (): Promise<string> => sh("ip -o link show type vxlan | awk -F': ' '{print $2}' | sort | xargs");
const records = (): Promise<string> => sh("cd /var/lib/overlay 2>/dev/null && find . -name '*.json' | sort | xargs");

test("requests that arrive together, or until the host is read, share one conversation; a second run changes nothing", async () => {
  const all = [work("net", planHub(network())), ...[1, 2, 3].map((id) => work(`r${id}`, tunnel(id)))];
  await Promise.all(all.map((each) => reconciler.apply(host, each)));
  await setImmediate(); // a conversation is reported after its requests are answered
  expect(reports.map(({ works }) => works)).toEqual([4]);
  expect(await devices()).toBe("vxkr1 vxkr2 vxkr3");
  reports = [];
  await Promise.all(all.map((each) => reconciler.apply(host, each)));
  await setImmediate();
  expect(reports.map(({ steps }) => steps)).toEqual([0]);
});

test("a request whose lease was taken over is refused under the lock, before anything is written", async () => {
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
  await reconciler.apply(host, work("new", tunnel(2), { isLeaseGone: async (uid) => uid === "old" }, "me"));
  expect(await devices()).toBe("vxkr2");
  expect(await records()).toBe("./training/new.json");
  const elsewhere = work("third", tunnel(2), { isLeaseGone: async () => true }, "me");
  elsewhere.record.store = "another";
  await expect(reconciler.apply(host, elsewhere)).rejects.toThrow("DEVICE_FOREIGN");
});

test("a reclaimed id: the device of a lease that is gone is taken over by the next runner", async () => {
  await reconciler.apply(host, work("a", tunnel(1)));
  await expect(reconciler.apply(host, work("b", tunnel(1)))).rejects.toThrow(/DEVICE_FOREIGN: hub: .* belongs to a/);
  await reconciler.apply(host, work("b", tunnel(1), { isLeaseGone: async (uid) => uid === "a" }));
  expect(await records()).toBe("./training/b.json");
});

test("a host that cannot be read is not treated as an empty one", async () => {
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

test("VNIs that are all incremented by one", async () => {
  for (const id of [1, 2, 3]) await reconciler.apply(host, work(`r${id}`, tunnel(id)));
  for (const id of [1, 2, 3]) await reconciler.apply(host, work(`r${id}`, tunnel(id, { vniBase: 101 })));
  expect(await sh("ip -d link show type vxlan | grep -oE 'vxlan id [0-9]+' | xargs")).toBe(
    "vxlan id 102 vxlan id 103 vxlan id 104",
  );
});

test("a device that another program created under our name after a reboot is not changed", async () => {
  await reconciler.apply(host, work("r1", tunnel(1)));
  await lab.exec("hub", "ip link del vxkr1; ip link add vxkr1 type vxlan id 777 dstport 9999 remote 10.254.7.7");
  await reconciler.apply(host, work("r1", []));
  expect(await sh("ip -d link show vxkr1 | grep -o 'vxlan id 777'")).toBe("vxlan id 777");
  expect(await records()).toBe("");
});

test("one owner's failure does not fail another, and a rule that is still there is not reported as removed", async () => {
  const runner = (masquerade: boolean): Item[] => planRunner(network({ masquerade }), 1, "vxkr1", here, there);
  await reconciler.apply(host, work("r1", runner(true)));
  const noSuchGateway: Item = { kind: "route", family: 4, dst: "10.99.0.0/24", via: "203.0.113.1", dev: "vxo5" };
  const add = reconciler.apply(host, work("first", planHub(network()))); // so that the two requests below wait together
  const results = await Promise.allSettled([
    add,
    reconciler.apply(host, work("bad", [...planTunnel(other, 5, here, there), noSuchGateway])),
    reconciler.apply(host, work("r1", [])),
  ]);
  expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  expect(String((results[1] as PromiseRejectedResult).reason)).toMatch(
    /HOST_COMMAND_FAILED: hub: 'ip .*route .*10\.99\.0\.0\/24.*missing/,
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

test("objects that the host lacks although all commands succeeded are named", async () => {
  await lab.exec(
    "hub",
    "printf '#!/bin/sh\\ncat >/dev/null\\n' >/usr/local/sbin/iptables-restore; chmod +x /usr/local/sbin/iptables-restore",
  );
  await expect(reconciler.apply(host, work("net", planHub(network())))).rejects.toThrow(
    /HOST_COMMAND_FAILED: hub: all commands succeeded, but the host does not have the planned state afterwards: chain OVERLAY-GUARD \(IPv4 mangle\): missing; .* and \d+ more\./,
  );
  await lab.exec("hub", "rm /usr/local/sbin/iptables-restore");
});

const inspect = async (uid: string, items: Item[]) => {
  const { differences, foreign } = await reconciler.inspect(host, work(uid, items));
  return [...foreign, ...differences.map(formatDifference)];
};

test("a field that is no longer planned is reset to the kernel's default, and is no drift", async () => {
  const anchor: Item = { kind: "link", name: "kohaku-reset", type: "anchor", mac: "02:00:00:00:00:0a" };
  await reconciler.apply(host, work("net", [{ ...anchor, mtu: 1400 }]));
  expect(await sh("cat /sys/class/net/kohaku-reset/mtu")).toBe("1400");
  expect(await inspect("net", [anchor])).toEqual(["link kohaku-reset: MTU is 1400, should be 1500"]);
  await reconciler.apply(host, work("net", [anchor]));
  expect(await sh("cat /sys/class/net/kohaku-reset/mtu")).toBe("1500");
  expect(await inspect("net", [anchor])).toEqual([]);
});

test("a foreign tunnel with our VNI and port is refused before anything is changed, and shown as drift that up will refuse", async () => {
  await lab.exec(
    "hub",
    "ip link add theirs address 02:00:00:00:00:07 type vxlan id 101 dstport 4789 remote 10.254.7.7",
  );
  await expect(reconciler.apply(host, work("r1", tunnel(1)))).rejects.toThrow(
    "DEVICE_FOREIGN: hub: The device theirs (vxlan, VNI 101, port 4789, remote 10.254.7.7, MAC 02:00:00:00:00:07) has the VNI and port that vxkr1 needs",
  );
  await expect(reconciler.check(host, work("r1", tunnel(1)))).rejects.toThrow("DEVICE_FOREIGN: hub: The device theirs");
  expect(await records()).toBe("");
  expect(await devices()).toBe("theirs");
  expect((await inspect("r1", tunnel(1)))[0]).toBe(
    "foreign device theirs (vxlan, VNI 101, port 4789, remote 10.254.7.7, MAC 02:00:00:00:00:07) has the VNI and port of vxkr1: up will refuse with DEVICE_FOREIGN until it is removed (`ip link del theirs`)",
  );
  await lab.exec("hub", "ip link del theirs");
  await reconciler.check(host, work("r1", tunnel(1)));
  expect(await records()).toBe("");
  await reconciler.apply(host, work("r1", tunnel(1)));
});

test("a tunnel of ours that another program created again is shown as drift that up will refuse", async () => {
  await reconciler.apply(host, work("r1", tunnel(1)));
  await lab.exec(
    "hub",
    "ip link del vxkr1; ip link add vxkr1 address 02:00:00:00:00:07 type vxlan id 777 dstport 9999 remote 10.254.7.7",
  );
  expect(await inspect("r1", tunnel(1))).toEqual([
    "foreign device vxkr1 (vxlan, VNI 777, port 9999, remote 10.254.7.7, MAC 02:00:00:00:00:07) has a name of ours, but another program made it: up will refuse with DEVICE_FOREIGN until it is removed (`ip link del vxkr1`)",
    "address 10.128.64.254/18 on vxkr1: missing",
  ]);
  await expect(reconciler.apply(host, work("r1", tunnel(1)))).rejects.toThrow("DEVICE_FOREIGN: hub: ");
  await lab.exec("hub", "ip link del vxkr1");
  await reconciler.apply(host, work("r1", tunnel(1)));
  expect(await inspect("r1", tunnel(1))).toEqual([]);
});

test("foreign rules in our chains, and jumps to them, are shown; a removal that would delete the chain is refused with the commands", async () => {
  const dual = network({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")] });
  await reconciler.apply(host, work("net", planHub(dual)));
  await reconciler.apply(host, work("r1", tunnel(1)));
  const mine = ["-s 203.0.113.7/32 -j DROP", "-i eth0 -j OVERLAY-FWD", "-s 2001:db8::7/128 -j DROP"];
  const add = [
    `iptables -I OVERLAY-IN ${mine[0]}`,
    `iptables -A FORWARD ${mine[1]}`,
    `ip6tables -A OVERLAY-FWD ${mine[2]}`,
  ];
  await sh(add.join(" && "));
  const commands = [
    `iptables -t filter -D OVERLAY-IN ${mine[0]}`,
    `iptables -t filter -D FORWARD ${mine[1]}`,
    `ip6tables -t filter -D OVERLAY-FWD ${mine[2]}`,
  ];
  expect((await inspect("net", planHub(dual))).sort()).toEqual([
    `foreign rule '${mine[1]}' in FORWARD (IPv4 filter), which jumps to OVERLAY-FWD: remove it with \`${commands[1]}\``,
    `foreign rule '${mine[2]}' in OVERLAY-FWD (IPv6 filter): remove it with \`${commands[2]}\``,
    `foreign rule '${mine[0]}' in OVERLAY-IN (IPv4 filter): remove it with \`${commands[0]}\``,
  ]);
  const state = () => sh("ip -br link; ip route; iptables-save | grep '^-A'; ip6tables-save | grep '^-A'");
  await reconciler.apply(host, work("net", planHub(dual)));
  const before = await state();

  const refusals = await Promise.allSettled([
    reconciler.apply(host, work("net", [])),
    reconciler.apply(host, work("r1", [])),
  ]);
  const reason = String((refusals[0] as PromiseRejectedResult).reason);
  expect(reason).toMatch(/^OverlayError: RULE_FOREIGN: hub: .*'-s 203.0.113.7\/32 -j DROP' in OVERLAY-IN/);
  expect([...reason.matchAll(/`([^`]+)`/g)].map(([, command]) => command).sort()).toEqual([...commands].sort());
  expect(String((refusals[1] as PromiseRejectedResult).reason)).toContain("RULE_FOREIGN");
  expect(await state()).toBe(before);

  await sh([commands[1], commands[2]].join(" && "));
  await reconciler.apply(host, work("r1", [])); // OVERLAY-IN stays, for the network
  expect(await sh("iptables -S OVERLAY-IN")).toContain(mine[0]);
  await sh(commands[0]!);
  await reconciler.apply(host, work("net", []));
  expect(await sh("iptables-save; ip6tables-save")).not.toContain("OVERLAY");
});

test("a file of a plan is written, repaired, refused if foreign, and removed, whatever its path", async () => {
  const path = "/etc/overlay-test.d/overlay-training.conf";
  const file: Item = { kind: "file", path, content: "one\n" };
  const drift = async (items: Item[]) =>
    (await reconciler.inspect(host, work("r1", items))).differences.map(formatDifference);

  await lab.exec("hub", `mkdir -p /etc/overlay-test.d; echo foreign >${path}`);
  await expect(reconciler.apply(host, work("r1", [file]))).rejects.toThrow(
    `FILE_FOREIGN: hub: There is already a file ${path}`,
  );
  expect(await sh(`cat ${path}`)).toBe("foreign");
  await lab.exec("hub", `rm ${path}`);

  await reconciler.apply(host, work("r1", [file]));
  expect(await sh(`cat ${path}`)).toBe("one");
  expect(await drift([file])).toEqual([]);
  await lab.exec("hub", `echo edited >${path}`);
  expect(await drift([file])).toEqual([`file ${path}: its content is not the planned one`]);
  await reconciler.apply(host, work("r1", [file]));
  expect(await sh(`cat ${path}`)).toBe("one");

  const later: Item = { kind: "file", path: `${path}.later`, content: "two\n" };
  await reconciler.apply(host, work("r1", [later]));
  expect(await sh("ls /etc/overlay-test.d")).toBe("overlay-training.conf.later");
  await reconciler.apply(host, work("r1", []));
  expect(await sh("ls /etc/overlay-test.d")).toBe("");
  expect(await records()).toBe("");
});

test("all items are removed, and forwarding is reset to its former value", async () => {
  const before = await sh("ip -o link show; ip route; iptables-save | grep -v '^#'; cat /proc/sys/net/ipv4/ip_forward");
  await reconciler.apply(host, work("net", planHub(network())));
  await reconciler.apply(host, work("r1", planRunner(network({ bridgeName: "ov-br" }), 1, "vxkr1", here, there)));
  expect(await sh("cat /proc/sys/net/ipv4/ip_forward")).toBe("1");
  await Promise.all([reconciler.apply(host, work("net", [])), reconciler.apply(host, work("r1", []))]);
  const after = await sh("ip -o link show; ip route; iptables-save | grep -v '^#'; cat /proc/sys/net/ipv4/ip_forward");
  expect(withoutCounters(after)).toBe(withoutCounters(before));
  expect(await sh("ls -d /var/lib/overlay 2>/dev/null")).toBe("");
});

test("on a full disk nothing is changed and no file is truncated, however little space is left", async () => {
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

/** Without empty tables, which iptables-save lists once they were read. */
const withoutCounters = (text: string): string =>
  text
    .split("\n")
    .filter((line) => !/^[*:]|^COMMIT/.test(line))
    .join("\n");
