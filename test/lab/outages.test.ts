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

/** Commands that stop packets, on r1 or the hub; what a refresh of r1 says; and, unless `up --refresh` repairs it, what undoes it. */
const OURS: [what: string, host: string, command: string, named: RegExp][] = [
  [
    "forwarding of the bridge is off",
    "r1",
    "sysctl -qw net.ipv4.conf.kohaku-overlay.forwarding=0",
    /link kohaku-overlay: IPv4 forwarding is off, should be on$/,
  ],
  [
    "forwarding of a tunnel is off on the hub",
    "hub",
    "sysctl -qw net.ipv4.conf.vxkr1.forwarding=0",
    /link vxkr1: IPv4 forwarding is off/,
  ],
  [
    "the tunnel is an isolated port",
    "r1",
    "bridge link set dev vxkr1 isolated on",
    /link vxkr1: as a port of its bridge it should have `isolated off`$/,
  ],
  [
    "the tunnel's port is disabled",
    "r1",
    "bridge link set dev vxkr1 state 0",
    /link vxkr1: as a port of its bridge it should have `state 3`$/,
  ],
  [
    "the bridge does not resolve addresses",
    "r1",
    "ip link set kohaku-overlay arp off",
    /link kohaku-overlay: ARP is off, should be on$/,
  ],
  [
    "a drop before our jump in FORWARD",
    "hub",
    "iptables -I FORWARD -j DROP",
    /jump from FORWARD to OVERLAY-FWD \(IPv4 filter\): position is 2, should be 1$/,
  ],
];

const FOREIGN: [what: string, host: string, command: string, named: RegExp, undo: string][] = [
  [
    "a later table of nftables with policy drop",
    "hub",
    "nft 'table inet later { chain f { type filter hook forward priority 10; policy drop; }; }'",
    /foreign nft inet later f \(policy drop\) drops the overlay's packets/,
    "nft delete table inet later",
  ],
  [
    "a rule of nftables about the bridge",
    "r1",
    "nft 'table ip later { chain f { type filter hook forward priority 10; iifname \"kohaku-overlay\" counter drop; }; }'",
    /foreign nft ip later f \(rule 'iifname "kohaku-overlay" drop'\) drops/,
    "nft delete table ip later",
  ],
  [
    "bridge drops of nftables",
    "r1",
    "nft 'table bridge later { chain f { type filter hook forward priority 0; drop; }; }'",
    /foreign nft bridge later f \(drop\) drops/,
    "nft delete table bridge later",
  ],
  [
    "a drop in mangle FORWARD, before our jump",
    "hub",
    "iptables -t mangle -I FORWARD -s 10.128.0.0/12 -j DROP",
    /foreign rule '-s 10.128.0.0\/12 -j DROP' in FORWARD \(IPv4 mangle\) drops packets of the overlay .* remove it with `iptables -t mangle -D FORWARD -s 10.128.0.0\/12 -j DROP`/,
    "iptables -t mangle -D FORWARD -s 10.128.0.0/12 -j DROP",
  ],
  [
    "a drop in mangle POSTROUTING, in a chain of its own",
    "hub",
    "iptables -t mangle -N MINE; iptables -t mangle -A MINE -o vxkr+ -j DROP; iptables -t mangle -A POSTROUTING -j MINE",
    /foreign rule '-o vxkr\+ -j DROP' in MINE \(IPv4 mangle\) drops/,
    "iptables -t mangle -F POSTROUTING; iptables -t mangle -F MINE; iptables -t mangle -X MINE",
  ],
  [
    "the policy of mangle FORWARD",
    "r1",
    "iptables -t mangle -P FORWARD DROP",
    /foreign policy DROP of FORWARD \(IPv4 mangle\) drops .*`iptables -t mangle -P FORWARD ACCEPT`/,
    "iptables -t mangle -P FORWARD ACCEPT",
  ],
  [
    "VXLAN is not sent",
    "r1",
    "iptables -I OUTPUT -p udp --dport 4789 -j DROP",
    /foreign rule '-p udp -m udp --dport 4789 -j DROP' in OUTPUT \(IPv4 filter\) drops VXLAN/,
    "iptables -D OUTPUT -p udp --dport 4789 -j DROP",
  ],
  [
    "DNAT of the overlay's packets",
    "hub",
    "iptables -t nat -I PREROUTING -s 10.128.0.0/12 -j DNAT --to-destination 10.254.9.9",
    /foreign rule '.*' in PREROUTING \(IPv4 nat\) redirects packets of the overlay/,
    "iptables -t nat -D PREROUTING -s 10.128.0.0/12 -j DNAT --to-destination 10.254.9.9",
  ],
  [
    "a routing rule that drops",
    "r1",
    "ip rule add to 10.128.0.0/12 blackhole priority 99",
    /foreign routing rule 'from all to 10.128.0.0\/12 priority 99 blackhole' takes packets .*`ip rule del from all to 10.128.0.0\/12 priority 99 blackhole`/,
    "ip rule del priority 99",
  ],
  [
    "forwarding of the uplink is off",
    "r1",
    "sysctl -qw net.ipv4.conf.eth0.forwarding=0",
    /foreign setting net.ipv4.conf.eth0.forwarding is 0/,
    "sysctl -qw net.ipv4.conf.eth0.forwarding=1",
  ],
];

test.each(OURS)("named, and repaired by `up --refresh`: %s", async (_, host, command, named) => {
  await must(lab, host, command);
  expect((await drift("r1")).join("\n")).toMatch(named);
  expect(await drift("r1")).toHaveLength(1);
  await repair();
});

test.each(FOREIGN)("named as another program's, and kept: %s", async (_, host, command, named, undo) => {
  await breakHost(host, command, undo);
  expect((await drift("r1")).join("\n")).toMatch(named);
  for (const repair of repairs.splice(0)) await repair();
  expect(await drift("r1")).toEqual([]);
});

test("rules about single ports and workloads of an administrator are no drift", async () => {
  const rules = [
    "-t mangle -A FORWARD -p tcp --dport 25 -j DROP",
    "-t mangle -A FORWARD -s 10.128.64.77 -j DROP",
    "-t raw -A PREROUTING -s 203.0.113.0/24 -j DROP",
    "-t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 80",
    "-t mangle -A FORWARD -m conntrack --ctstate INVALID -j DROP",
  ];
  await breakHost(
    "hub",
    rules.map((rule) => `iptables ${rule}`).join("; "),
    rules.map((rule) => `iptables ${rule.replace(" -A ", " -D ")}`).join("; "),
  );
  await breakHost(
    "r1",
    "nft 'table inet later { chain f { type filter hook forward priority 10; tcp dport 25 drop; ip saddr 10.128.64.77 drop; }; }'",
    "nft delete table inet later",
  );
  expect([await drift("r1"), await drift("r2")]).toEqual([[], []]);
});

test("the hub does not forward between two runners: pings to another runner show it, which the hub reaches", async () => {
  const drop = "FORWARD -m length --length 20:65535 -j DROP";
  await breakHost("hub", `iptables -t mangle -I ${drop}`, `iptables -t mangle -D ${drop}`);
  const address = lab.host("r1").address;
  expect(await drift("r1")).toEqual([
    `packets from the runner to other runners (10.128.128.1), which the hub reaches, do not get through (tried on ${address})`,
  ]);
  for (const repair of repairs.splice(0)) await repair();
  await lab.exec("r2", "ip link set vxkr2 down");
  expect(await drift("r1")).toEqual([]);
  await repair();
});

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
    `${at("r1")}: route default in table 3083008888 (IPv4): missing`,
  ]);
  expect(await drift("r2")).toEqual([`${at("r2")}: link vxkr2: name is other, should be vxkr2`]);
  await repair();
  expect(await must(lab, "r1", "ls /sys/class/net/kohaku-overlay/brif | xargs")).toBe("ve-job vxkr1");
});

test("a bridge that was deleted with all records gets its ports again", async () => {
  await must(lab, "r1", "ip link del kohaku-overlay; rm -rf /var/lib/overlay");
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
