import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseLayout } from "../../provider/addressing/layout";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { Item } from "../../provider/network/model/items";
import { planRunner } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost, must } from "./lab-stack";
import { tries } from "./pings";

/**
 * A runner whose firewall fails or is slow. Meanwhile a stranger sends to a workload by VXLAN, and to a private network behind the
 * runner, and must reach neither. The workload is attached to the bridge as soon as there is one.
 */
let lab: Lab;

const network = training({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")] });
const WORKLOAD_MAC = "02:00:00:00:00:09";

const sh = (host: string, script: string): Promise<string> => must(lab, host, script);

const underlay = (name: string) => ({ underlayIp: lab.host(name).address, underlayMtu: 1500 });
const plan = (): Item[] => planRunner(network, 1, "vxkr1", underlay("hub"), underlay("r1"));
const apply = (items: Item[]) =>
  new Reconciler().apply(labHost(lab, "r1"), {
    record: { uid: "a", owner: "a", network: "training", store: "s" },
    items,
    persist: true,
    fence: async () => {},
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  });
const boot = () => lab.exec("r1", "sh /var/lib/overlay/boot.sh");

const netns = (name: string, outer: string, inner: string): string => `
  ip netns add ${name}; ip link add ${outer} type veth peer name eth0 netns ${name} ${inner}
  ip link set ${outer} up; ip -n ${name} link set eth0 up; ip -n ${name} link set lo up`;

/** A workload that waits for its bridge, and the private network. They are gone after a power cut. */
const connect = () =>
  sh(
    "r1",
    `${netns("job", "ve-job", `address ${WORKLOAD_MAC}`)}
    ip -n job addr add 10.128.64.9/18 dev eth0; ip -n job addr add fd00:128:0:1::9/64 dev eth0 nodad
    ( for i in $(seq 6000); do ip link set ve-job master kohaku-overlay 2>/dev/null && exit; sleep 0.005; done ) >/dev/null 2>&1 &
    ${netns("private", "ve-private", "")}
    ip addr add 10.99.0.1/24 dev ve-private; ip addr add fd00:99::1/64 dev ve-private nodad
    ip -n private addr add 10.99.0.2/24 dev eth0; ip -n private addr add fd00:99::2/64 dev eth0 nodad
    ip -n private route add default via 10.99.0.1; ip -n private route add default via fd00:99::1`,
  );

/** Pings that a network namespace of the runner has received, of both families. */
async function received(name: string): Promise<number> {
  const counters = `awk '/^Icmp:/ && !n { for (i = 1; i <= NF; i++) if ($i == "InEchos") n = i; next } /^Icmp:/ { print $n }' /proc/net/snmp; awk '$1 == "Icmp6InEchos" { print $2 }' /proc/net/snmp6`;
  const counts = await sh("r1", `ip netns exec ${name} sh -c '${counters.replaceAll("'", "'\\''")}'`);
  return counts.split("\n").reduce((sum, count) => sum + Number(count), 0);
}

/** What arrives while a stranger sends 50 pings a second to each target. */
async function arrivals(act: () => Promise<unknown>): Promise<{ workload: number; private: number }> {
  const before = [await received("job"), await received("private")];
  const targets = ["10.128.64.9", "fd00:128:0:1::9", "10.99.0.2", "fd00:99::2"];
  const pids = await sh(
    "r2",
    targets.map((ip) => `ping -n -q -i 0.02 ${ip} >/dev/null 2>&1 </dev/null & echo $!`).join("\n"),
  );
  try {
    await act();
    await sleep(500);
  } finally {
    await sh("r2", `kill ${pids.split("\n").join(" ")}`);
  }
  return { workload: (await received("job")) - before[0]!, private: (await received("private")) - before[1]! };
}

const NONE = { workload: 0, private: 0 };

/** Replaces a tool of the runner; `real` is the tool itself. */
const replace = (tool: string, body: string) =>
  sh(
    "r1",
    `printf '#!/bin/sh\\nreal=/usr/sbin/${tool}\\n%s\\n' '${body}' >/usr/local/sbin/${tool}; chmod 755 /usr/local/sbin/${tool}`,
  );
const restoreTools = () => sh("r1", "rm -f /usr/local/sbin/*");

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  const { address, address6 } = lab.host("r1");
  await sh(
    "r2",
    `ip link add evil type vxlan id 101 remote ${address} local ${lab.host("r2").address} dstport 4789; ip link set evil up
    ip addr add 10.128.64.77/32 dev evil; ip addr add fd00:128:0:1::77/128 dev evil nodad
    for ip in 10.128.64.9 fd00:128:0:1::9; do ip route add $ip dev evil; ip neigh add $ip lladdr ${WORKLOAD_MAC} dev evil; done
    ip route add 10.99.0.0/24 via ${address}; ip route add fd00:99::/64 via ${address6}`,
  );
});
afterAll(async () => {
  await lab?.down();
});
beforeEach(async () => {
  await lab.rebuild("r1");
  await connect();
});

describe.each(["iptables-restore", "ip6tables-restore"])("%s", (tool) => {
  test("if it fails in the first up, no device and no forwarding is left; the next up completes it", async () => {
    await replace(tool, "exit 1");
    expect(await arrivals(() => apply(plan()).catch(() => {}))).toEqual(NONE);
    await expect(apply(plan())).rejects.toThrow("The firewall rules could not be added");
    expect(await sh("r1", "ls /sys/class/net | grep -c -e vxkr -e kohaku || cat /proc/sys/net/ipv4/ip_forward")).toBe(
      "0\n0",
    );
    await restoreTools();
    expect(await arrivals(() => apply(plan()))).toEqual(NONE);
    await sh("r1", tries("ip netns exec job ping -c 1 -W 1 10.128.64.1"));
  });

  test("if it waits, nothing passes meanwhile", async () => {
    await replace(tool, 'sleep 2; exec $real "$@"');
    expect(await arrivals(() => apply(plan()))).toEqual(NONE);
    await sh("r1", tries("ip netns exec job ping -c 1 -W 1 10.128.64.1"));
  });

  test.each([
    ["fails", "exit 1", 1],
    ["waits", 'sleep 2; exec $real "$@"', 0],
  ])("if it %s at boot, nothing passes, and a failure is said", async (_, body, code) => {
    await apply(plan());
    await lab.stop("r1");
    await lab.start("r1");
    await connect();
    await replace(tool, body);
    let result = await arrivals(async () => {
      expect(await boot()).toMatchObject({
        code,
        stderr: code === 0 ? "" : expect.stringContaining("The firewall rules could not be added."),
      });
    });
    expect(result).toEqual(NONE);
    await restoreTools();
    result = await arrivals(async () => expect((await boot()).code).toBe(0));
    expect(result).toEqual(NONE);
    await sh("r1", tries("ip netns exec job ping -c 1 -W 1 10.128.64.1"));
  });
});

const FLUSH =
  "for tool in iptables ip6tables; do for table in raw mangle nat filter; do $tool -t $table -F; $tool -t $table -X; done; done";

test.each(["iptables-restore", "ip6tables-restore", "iptables-save"])(
  "without %s, boot.sh closes a running host whose rules were flushed; the next run restores it",
  async (tool) => {
    await apply(plan());
    await sh("r1", FLUSH);
    await replace(tool, "exit 1");
    expect(await boot()).toMatchObject({ code: 1, stderr: expect.stringMatching(/could not be added\. .* are down/) });
    expect(await arrivals(async () => {})).toEqual(NONE);
    await restoreTools();
    expect(await arrivals(async () => expect((await boot()).code).toBe(0))).toEqual(NONE);
    for (const ip of ["10.128.64.1", "fd00:128:0:1::1"])
      await sh("r1", tries(`ip netns exec job ping -c 1 -W 1 ${ip}`));
    expect(await sh("r1", "ip -6 route show proto 183; cat /proc/sys/net/ipv4/ip_forward")).toMatch(
      /^fd00:128::\/48 .*\n1$/s,
    );
  },
);

const reachGateway = () => sh("r1", tries("ip netns exec job ping -c 1 -W 1 10.128.64.1"));
const looks = () => sh("r1", "ip -br link | awk '/vxkr|kohaku/ { print $1, $3 }'; cat /proc/sys/net/ipv4/ip_forward");

test.each([
  ["bridge", "kohaku-overlay"],
  ["tunnel", "vxkr1"],
])("boot.sh knows a %s with another MAC, closes it without rules, and restores it with them", async (_, device) => {
  await apply(plan());
  const before = await looks();
  await sh("r1", `ip link set ${device} address 02:00:00:00:00:77; ${FLUSH}`);
  await replace("iptables-restore", "exit 1");
  expect((await boot()).code).toBe(1);
  expect(await arrivals(async () => {})).toEqual(NONE);
  await restoreTools();
  expect(await arrivals(async () => expect(await boot()).toMatchObject({ code: 0, stderr: "" }))).toEqual(NONE);
  await reachGateway();
  expect(await looks()).toBe(before);
});

test("a tunnel of ours beside a bridge of another program: boot.sh takes the tunnel down if its rules are missing, and ends forwarding", async () => {
  await apply(plan());
  await sh(
    "r1",
    "ip link del kohaku-overlay; ip link add kohaku-overlay address 02:00:00:00:00:77 type bridge; ip link set kohaku-overlay up",
  );
  expect(await boot()).toMatchObject({ code: 1, stderr: expect.stringContaining("is not a device of ours") });
  expect(await sh("r1", "cat /sys/class/net/vxkr1/operstate /proc/sys/net/ipv4/ip_forward")).toBe("unknown\n1");
  await sh("r1", FLUSH);
  expect(await boot()).toMatchObject({ code: 1, stderr: expect.stringContaining("are missing: its devices are down") });
  expect(await sh("r1", "cat /sys/class/net/vxkr1/operstate /proc/sys/net/ipv4/ip_forward")).toBe("down\n0");
});

test("a script of another version stays as it is while its rules are there, and is closed when they are not", async () => {
  await apply(plan());
  const before = await looks();
  await sh("r1", "sed -i '1s/.*/# network training/; s/^[46] [a-z]* -/-/' /var/lib/overlay/training/a.sh");
  const another = { code: 1, stderr: expect.stringContaining("is of another version") };
  expect(await boot()).toMatchObject(another);
  expect(await looks()).toBe(before);
  await reachGateway();
  await sh("r1", FLUSH);
  expect(await boot()).toMatchObject(another);
  expect(await arrivals(async () => {})).toEqual(NONE);
  await apply(plan());
  await reachGateway();
});

test("forwarding ends without rules also if its former value is lost", async () => {
  await apply(plan());
  await sh("r1", `rm -r /var/lib/overlay/former; ${FLUSH}`);
  await replace("iptables-restore", "exit 1");
  expect((await boot()).code).toBe(1);
  expect(await sh("r1", "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding")).toBe("0\n0");
});

test("rules stay while the devices cannot be removed", async () => {
  await apply(plan());
  await replace("ip", 'case "$1 $2" in "-force -batch") cat >/dev/null; exit 1 ;; esac; exec $real "$@"');
  const rules = "iptables-save | grep -e OVERLAY- | sed 's/\\[.*//' | sort";
  const before = await sh("r1", rules);
  const result = await arrivals(() => apply([]).catch(() => {}));
  expect(result).toEqual(NONE);
  expect(await sh("r1", rules)).toBe(before);
  await restoreTools();
  await apply([]);
  expect(await sh("r1", "iptables-save | grep -c OVERLAY- || :")).toBe("0");
});
