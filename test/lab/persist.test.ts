import { setImmediate as nextTurn } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseLayout } from "../../provider/addressing/layout";
import type { Host } from "../../provider/host/connection";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../../provider/host/reconcile/requests";
import { formatDifference } from "../../provider/network/kinds";
import type { DesiredState, Item } from "../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost } from "./lab-stack";
import { holdAllAsUser } from "./lock-holder";

/** The boot script, on hosts that lose their network configuration with their power. The VM suite tests systemd itself. */
let lab: Lab;
let warnings: string[];
let reconciler: Reconciler;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
});

afterAll(async () => {
  await lab?.down();
});

beforeEach(async () => {
  await Promise.all(["hub", "r1"].map((name) => lab.rebuild(name)));
  warnings = [];
  reconciler = new Reconciler(() => {}, { warn: (text) => warnings.push(text) });
  for (const { name, uid, items } of parts()) await reconciler.apply(hostOf(name), work(uid, items));
});

const network = training({
  layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/40/6/82")],
  mtu: 1430,
});

function parts() {
  const [hub, runner] = ["hub", "r1"].map((name) => ({ underlayIp: lab.host(name).address, underlayMtu: 1500 }));
  return [
    { name: "hub", uid: "net", items: planHub(network) },
    { name: "hub", uid: "a", items: planTunnel(network, 1, hub!, runner!) },
    { name: "r1", uid: "a", items: planRunner(network, 1, "vxkr1", hub!, runner!) },
  ];
}

const desired = (uid: string, items: Item[], persist = true): DesiredState => ({
  record: { uid, owner: uid, network: "training", store: "s" },
  items,
  persist,
});
const work = (uid: string, items: Item[], persist = true): ApplyRequest => ({
  ...desired(uid, items, persist),
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
});

const hostOf = (name: string): Host => labHost(lab, name);

const sh = async (name: string, script: string): Promise<string> => (await lab.exec(name, script)).stdout.trim();
const boot = (name: string) => lab.exec(name, "sh /var/lib/overlay/boot.sh");

async function drift(): Promise<string[]> {
  const found = parts().map(({ name, uid, items }) => reconciler.inspect(hostOf(name), work(uid, items)));
  return (await Promise.all(found)).flatMap(({ differences }) => differences.map(formatDifference));
}

async function powerCycle(name: string): Promise<void> {
  await lab.stop(name);
  await lab.start(name);
}

test("after a power cut the hosts restore everything without Pulumi", async () => {
  for (const name of ["hub", "r1"]) await powerCycle(name);
  expect(await drift()).not.toEqual([]);
  for (const name of ["hub", "r1"]) expect(await boot(name)).toEqual({ code: 0, stdout: "", stderr: "" });
  expect(await drift()).toEqual([]);
  for (const hubIp of ["10.128.0.1", "fd00:128::1"])
    expect((await lab.exec("r1", `ping -c 5 -i 0.2 -W 2 -M do -s 1382 ${hubIp}`)).code).toBe(0);
});

test("a second run changes nothing, and loses no packet", async () => {
  const look =
    "ip -o link; ip -o addr show scope global; ip route; ip -6 route; iptables-save | grep -v '^#'; ip6tables-save | grep -v '^#'";
  const before = await sh("r1", look);
  const pings = lab.exec("r1", "ping -q -c 40 -i 0.05 -W 2 10.128.0.1");
  for (let i = 0; i < 3; i++) expect(await boot("r1")).toEqual({ code: 0, stdout: "", stderr: "" });
  expect((await pings).stdout).toContain(" 0% packet loss");
  const withoutCounters = (text: string) => text.replaceAll(/\[\d+:\d+\]/g, "");
  expect(withoutCounters(await sh("r1", look))).toBe(withoutCounters(before));
});

test.each<[string, string, string]>([
  [
    "addresses and routes that a restarted networkd removed",
    "r1",
    "ip addr flush dev kohaku-overlay; ip route flush proto 183",
  ],
  ["the hub's device-less route", "hub", "ip route flush proto 183"],
  ["a tunnel", "r1", "ip link del vxkr1"],
  ["the bridge, under the tunnel", "r1", "ip link del kohaku-overlay"],
  [
    "a tunnel with other ends, another MTU, and down",
    "hub",
    "ip link set vxkr1 type vxlan id 101 remote 10.254.9.9; ip link set vxkr1 mtu 1300 down",
  ],
  [
    "the tunnel's default FDB entry",
    "r1",
    "bridge fdb show dev vxkr1 | sed -n 's/^\\(00:[0:]* \\)\\(dst [^ ]*\\).*/\\1dev vxkr1 \\2/p' | xargs bridge fdb del",
  ],
  ["a flushed firewall", "r1", "iptables -F; iptables -X; iptables -t nat -F; ip6tables -F"],
  ["a rule that accepts", "r1", "iptables -D OVERLAY-FWD -i kohaku-overlay -o kohaku-overlay -j ACCEPT"],
  ["a rule that drops", "r1", "iptables -t mangle -D OVERLAY-GUARD ! -i kohaku-overlay -o kohaku-overlay -j DROP"],
  [
    "a jump behind rules of other programs",
    "r1",
    "iptables -N THEIRS; iptables -I FORWARD 1 -j THEIRS; iptables -A FORWARD -j OVERLAY-FWD",
  ],
  ["forwarding", "hub", "echo 0 >/proc/sys/net/ipv4/ip_forward"],
])("restores %s", async (_, name, spoil) => {
  await lab.exec(name, spoil);
  expect(await drift()).not.toEqual([]);
  expect((await boot(name)).code).toBe(0);
  expect(await drift()).toEqual([]);
});

test("our jump is inserted after DOCKER-USER, and Docker's own rules may precede it", async () => {
  const forward = () => sh("r1", "iptables -S FORWARD | sed 1d");
  await sh(
    "r1",
    "iptables -N DOCKER-USER; iptables -I FORWARD 2 -j DOCKER-USER; iptables -I FORWARD 3 -o docker0 -j ACCEPT",
  );
  expect(await drift()).toEqual([
    "jump from FORWARD to OVERLAY-FWD (IPv4 filter): position is before DOCKER-USER, should be after it",
  ]);
  expect((await boot("r1")).code).toBe(0);
  const [user, ours, docker, rest] = ["-j DOCKER-USER", "-j OVERLAY-FWD", "-o docker0 -j ACCEPT", "-j OVERLAY-REST"];
  const lines = (...rules: string[]): string => rules.map((rule) => `-A FORWARD ${rule}`).join("\n");
  expect(await forward()).toBe(lines(user!, ours!, docker!, rest!));
  expect(await drift()).toEqual([]);
  await sh("r1", "iptables -D FORWARD -j OVERLAY-FWD; iptables -I FORWARD 3 -j OVERLAY-FWD");
  expect((await boot("r1")).code).toBe(0);
  expect(await forward()).toBe(lines(user!, docker!, ours!, rest!));
  expect(await drift()).toEqual([]);
  await sh(
    "r1",
    "iptables -D FORWARD -j DOCKER-USER; iptables -D FORWARD -o docker0 -j ACCEPT; iptables -X DOCKER-USER",
  );
});

test("rules of other programs stay, in their order", async () => {
  await lab.exec(
    "r1",
    "iptables -A OVERLAY-FWD -s 198.51.100.0/24 -j ACCEPT; iptables -I FORWARD 1 -s 192.0.2.7/32 -j DROP",
  );
  expect((await boot("r1")).code).toBe(0);
  expect(await sh("r1", "iptables -S FORWARD; iptables -S OVERLAY-FWD")).toBe(
    [
      "-P FORWARD ACCEPT",
      "-A FORWARD -j OVERLAY-FWD",
      "-A FORWARD -s 192.0.2.7/32 -j DROP",
      "-A FORWARD -j OVERLAY-REST",
      "-N OVERLAY-FWD",
      "-A OVERLAY-FWD -i kohaku-overlay -o eth0 -j ACCEPT",
      "-A OVERLAY-FWD -o kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
      "-A OVERLAY-FWD -i kohaku-overlay -o kohaku-overlay -j ACCEPT",
      "-A OVERLAY-FWD -s 198.51.100.0/24 -j ACCEPT",
    ].join("\n"),
  );
});

test("a device of our name that another program has created since is not changed, and reported", async () => {
  await powerCycle("hub");
  await lab.exec("hub", "ip link add vxkr1 address 02:00:00:00:00:01 type vxlan id 777 dstport 9999 remote 10.254.7.7");
  const before = await sh("hub", "ip -d link show vxkr1; ip addr show vxkr1");
  const { code, stderr } = await boot("hub");
  expect(code).toBe(1);
  expect(stderr).toContain("vxkr1 is not a device of ours: it is left alone, and so is /var/lib/overlay/training/a.sh");
  expect(await sh("hub", "ip -d link show vxkr1; ip addr show vxkr1")).toBe(before);
  expect(await sh("hub", "ip -o addr show kohaku-host | grep -c 10.128.0.1/32")).toBe("1");
});

test("it runs with any locale of the host", async () => {
  await powerCycle("r1");
  const script = "/var/lib/overlay/boot.sh";
  const { code, stderr } = await lab.exec("r1", `env -u LC_ALL LANG=C.UTF-8 LANGUAGE=de sh ${script}`);
  expect([code, stderr]).toEqual([0, ""]);
});

test("the boot script waits for the host's lock", async () => {
  await powerCycle("r1");
  const held = lab.exec(
    "r1",
    "mkdir -pm 700 /run/pulumi-overlay; flock /run/pulumi-overlay sh -c 'touch /run/held; sleep 2; ls /sys/class/net'",
  );
  await lab.exec("r1", "while [ ! -e /run/held ]; do sleep 0.05; done");
  expect((await boot("r1")).code).toBe(0);
  expect((await held).stdout).not.toContain("vxkr1");
  expect(await sh("r1", "ls /sys/class/net /run/pulumi-overlay/holder")).toContain("vxkr1");
});

test.each([
  ["a symbolic link", "ln -s /tmp /run/pulumi-overlay"],
  ["a file", "touch /run/pulumi-overlay"],
  ["a directory that others can open", "mkdir -m 755 /run/pulumi-overlay"],
  ["another user's directory", "mkdir -m 700 /run/pulumi-overlay; chown 4201 /run/pulumi-overlay"],
])("it refuses %s in place of the lock's directory", async (_, put) => {
  await lab.exec("r1", `rm -rf /run/pulumi-overlay; ${put}`);
  const { code, stderr } = await boot("r1");
  expect([code, stderr]).toEqual([1, "/run/pulumi-overlay is not a directory of root with mode 0700\n"]);
});

test("an unprivileged user who locks all files that it can open does not delay a boot", async () => {
  await powerCycle("r1");
  await boot("r1");
  await holdAllAsUser((script) => lab.exec("r1", script));
  await lab.exec("r1", "ip link del kohaku-overlay");
  expect(await lab.exec("r1", "timeout 20 sh /var/lib/overlay/boot.sh")).toEqual({ code: 0, stdout: "", stderr: "" });
  expect(await drift()).toEqual([]);
});

test("a script that was changed or removed is drift, and is repaired", async () => {
  await lab.exec("r1", "rm /var/lib/overlay/boot.sh; echo exit >>/var/lib/overlay/training/a.sh");
  expect(await drift()).toEqual([
    "file /var/lib/overlay/boot.sh: missing",
    "file /var/lib/overlay/training/a.sh: its content is not the planned one",
  ]);
  for (const { name, uid, items } of parts()) await reconciler.apply(hostOf(name), work(uid, items));
  expect(await drift()).toEqual([]);
});

test("persist: false removes the script, and with the last one the shared files; without systemd there is a warning", async () => {
  await nextTurn();
  expect(warnings).toContainEqual(
    expect.stringMatching(/^Hosts without systemd: hub, r1\. .* `sh \/var\/lib\/overlay\/boot\.sh`/),
  );
  warnings.length = 0;
  const [net, tunnel] = parts();
  const files = "cd /var/lib/overlay; find . -name '*.sh' | sort | xargs";
  await reconciler.apply(hostOf("hub"), work("a", tunnel!.items, false));
  expect(await sh("hub", files)).toBe("./boot.sh ./training/net.sh");
  await reconciler.apply(hostOf("hub"), work("net", net!.items, false));
  expect(await sh("hub", files)).toBe("");
  expect(await sh("hub", "ip -o link show vxkr1 | wc -l")).toBe("1");
  expect(warnings).toEqual([]);
  for (const { uid } of [net!, tunnel!]) await reconciler.apply(hostOf("hub"), work(uid, []));
  expect(await sh("hub", "ls -d /var/lib/overlay")).toBe("");
});

test("one warning names all hosts without systemd that are done at the same time, each once", async () => {
  warnings.length = 0;
  const fresh = new Reconciler(() => {}, { warn: (text) => warnings.push(text) });
  await Promise.all(["hub", "r1"].map((name) => lab.rebuild(name)));
  const again = () => Promise.all(parts().map(({ name, uid, items }) => fresh.apply(hostOf(name), work(uid, items))));
  await again();
  await Promise.all(parts().map(({ name, uid }) => fresh.apply(hostOf(name), work(uid, []))));
  await again();
  await nextTurn();
  expect(warnings.filter((text) => text.includes("systemd"))).toEqual([
    expect.stringMatching(/^Hosts without systemd: hub, r1\. /),
  ]);
});
