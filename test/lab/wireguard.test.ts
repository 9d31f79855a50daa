import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import type { Hosts } from "../../provider/host/connection";
import { findSpec } from "../../provider/ipam/interface";
import type { Values } from "../../provider/lifecycle/values";
import { LabStack, labHosts, must } from "./lab-stack";
import { tries } from "./pings";
import { ask, serve } from "./services";

/** A network with `tunnel: wireguard` on real kernels: one hub, two runners, each with a workload. */
let lab: Lab;
let stack: LabStack;
let folder: string;
/** Everything that was sent to the hosts, and what they answered. */
const conversations: string[] = [];

const SUBNETS = ["10.128.0.0/12/6/14", "fd00:128::/48/16/64"];
const JOBS = {
  r1: { 4: "10.128.64.9", 6: "fd00:128:0:1::9" },
  r2: { 4: "10.128.128.9", 6: "fd00:128:0:2::9" },
} as const;
/** In the payload of pings, as text and as `ping -p` takes it. */
const MARKER = "overlay-marker";
const MARKED = `-p ${Buffer.from(MARKER).toString("hex")}`;
const FULL = { 4: 1440 - 28, 6: 1440 - 48 } as const;

const sh = (host: string, script: string): Promise<string> => must(lab, host, script);
const ping = (host: string, target: string, options = "", from = "ip netns exec job"): Promise<string> =>
  sh(host, `(${tries(`${from} ping -n -c 1 -W 1 ${options} ${target} >/dev/null`)})`);

function recorded(hosts: Hosts): Hosts {
  return {
    end: () => hosts.end(),
    connect: async (...args) => {
      const host = await hosts.connect(...args);
      const exec: typeof host.exec = async (script, what) => {
        const result = await host.exec(script, what);
        conversations.push(script, result.stdout, result.stderr);
        return result;
      };
      return { ...host, exec, withLock: (_, work) => work({ run: exec }) };
    },
  };
}

async function addJob(host: "r1" | "r2"): Promise<void> {
  const id = host === "r1" ? 1 : 2;
  await lab.container(host, "job", {
    bridge: "kohaku-overlay",
    address: [`${JOBS[host][4]}/18`, `${JOBS[host][6]}/64`],
    gateway: [`10.128.${64 * id}.1`, `fd00:128:0:${id}::1`],
  });
}

const drift = async () => [
  await stack.drift("OverlayNetwork", "training"),
  await stack.drift("RunnerSubnet", "r1"),
  await stack.drift("RunnerSubnet", "r2"),
];
const NO_DRIFT = [[], [], []];

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  folder = mkdtempSync(join(tmpdir(), "overlay-wireguard-"));
  stack = await LabStack.on(lab, `sqlite:${folder}/pool.db`, undefined, recorded(labHosts(lab)));
  await stack.network({ tunnel: "wireguard", subnets: SUBNETS });
  await stack.runner("r1");
  await stack.runner("r2");
  await addJob("r1");
  await addJob("r2");
});
afterAll(async () => {
  await lab?.down();
  rmSync(folder, { recursive: true, force: true });
});

describe.each([4, 6] as const)("IPv%i", (family) => {
  const options = `-M do -s ${FULL[family]}`;
  test.each([
    ["another runner's workload", JOBS.r2[family]],
    ["the hub's address in the subnet", family === 4 ? "10.128.64.254" : "fd00:128:0:1::fe"],
    ["the hub's own address", family === 4 ? "10.128.0.1" : "fd00:128::1"],
    ["the runner", family === 4 ? "10.128.64.1" : "fd00:128:0:1::1"],
  ])("full-size packets of a workload reach %s", async (_, target) => {
    await ping("r1", target, options);
  });

  test("hub and runners reach workloads, and a packet that is too large is refused", async () => {
    await ping("hub", JOBS.r1[family], options, "");
    await ping("r2", JOBS.r1[family], options, "");
    const { stdout, stderr, code } = await lab.exec(
      "r1",
      `ping -n -c 1 -W 1 -M do -s ${FULL[family] + 1} ${JOBS.r2[family]}`,
    );
    expect([code, `${stdout}${stderr}`]).toEqual([1, expect.stringContaining("mtu")]);
  });
});

test.each([
  ["hub", 1],
  ["hub", 2],
  ["r1", 0],
])("full-size probes pass from %s to the device of %i, whatever the routes are", async (from, id) => {
  const rules = (verb: string): Promise<string> =>
    sh(
      from,
      `ip rule ${verb} pref 9 to 10.128.0.0/12 unreachable; ip -6 rule ${verb} pref 9 to fd00:128::/48 unreachable`,
    );
  await rules("add");
  await ping(from, `fe80::1:${id}%vxkrW0`, `-M do -s ${FULL[6]}`, "");
  await rules("del");
});

test("refresh finds no drift, and an up changes nothing", async () => {
  expect(await drift()).toEqual(NO_DRIFT);
  stack.steps();
  await stack.network({ tunnel: "wireguard", subnets: SUBNETS });
  await stack.runner("r1");
  expect(stack.steps()).toEqual({ hub: 0, r1: 0 });
});

test("the hosts' private keys are in no state, store, record, script or conversation", async () => {
  const keys = await Promise.all(
    ["hub", "r1", "r2"].map((host) => sh(host, "cat /var/lib/overlay/training/tunnel.key")),
  );
  expect(keys.map((key) => key.length)).toEqual([44, 44, 44]);
  expect(new Set(keys).size).toBe(3);
  const { hubPublicKey } = stack.props("OverlayNetwork", "training");
  const places = {
    conversations: conversations.join("\n"),
    state: stack.exported(),
    store: readdirSync(folder)
      .map((file) => readFileSync(join(folder, file), "latin1"))
      .join("\n"),
    records: await sh("hub", "cat /var/lib/overlay/*/*.json /var/lib/overlay/*/*.sh /var/lib/overlay/*.sh"),
  };
  for (const [place, text] of Object.entries(places)) {
    expect([place, ...keys.filter((key) => text.includes(key))]).toEqual([place]);
    expect([place, text.includes(String(hubPublicKey))]).toEqual([place, true]);
  }
  expect(keys.filter((key) => stack.warnings.join("\n").includes(key))).toEqual([]);
  for (const host of ["hub", "r1", "r2"])
    expect(
      await sh(
        host,
        "grep -rlsF -f /var/lib/overlay/training/tunnel.key /var/lib/overlay /etc /run /tmp --devices=skip || :",
      ),
    ).toBe("/var/lib/overlay/training/tunnel.key");
  expect(await sh("hub", "stat -c '%U %a' /var/lib/overlay/training/tunnel.key")).toBe("root 600");
});

/** How many packets with the marker a host sent or received on the underlay while `act` ran; one of our own shows that they are seen. */
async function markedPackets(host: string, act: () => Promise<unknown>): Promise<number> {
  const control = Buffer.from("seen-in-clear").toString("hex");
  const start =
    "tcpdump --immediate-mode -Z root -i eth0 -U -s 0 -w /run/underlay.pcap >/dev/null 2>/run/tcpdump.log </dev/null & echo $!";
  const pid = await sh(host, start);
  await sh(host, "for i in $(seq 100); do grep -q listening /run/tcpdump.log && exit; sleep 0.05; done; exit 1");
  try {
    await act();
    await sh(host, `ping -c 1 -p ${control} ${lab.host("r3").address}; sleep 0.3`);
  } finally {
    await sh(host, `kill ${pid}; while kill -0 ${pid} 2>/dev/null; do sleep 0.05; done`);
  }
  expect(await sh(host, "grep -a -q seen-in-clear /run/underlay.pcap && echo yes")).toBe("yes");
  return Number(await sh(host, `grep -a -o ${MARKER} /run/underlay.pcap | wc -l`));
}

/** Both families, from the runner itself and from its workload. Nothing needs to answer. */
const sendMarked = (targets: readonly string[]) =>
  lab.exec(
    "r1",
    targets
      .flatMap((ip) => ["", "ip netns exec job "].map((from) => `${from}ping -n -c 2 -i 0.1 -W 0.5 ${MARKED} ${ip}`))
      .join("; "),
  );
const TARGETS = Object.values(JOBS.r2);

describe("on the underlay nothing of the overlay can be read", () => {
  beforeAll(async () => {
    const { address, address6 } = lab.host("r3");
    await sh(
      "r1",
      `ip route add default via ${address}; ip -6 route add default via ${address6}; ping -c 1 ${address}; ping -c 1 ${address6}`,
    );
  });
  afterAll(async () => {
    await sh("r1", "ip route del default; ip -6 route del default");
  });

  test("what leaves the overlay is seen there", async () => {
    expect(await markedPackets("r1", () => sendMarked(["203.0.113.9"]))).toBeGreaterThan(0);
    expect(await markedPackets("r1", () => sendMarked(["2001:db8::9"]))).toBeGreaterThan(0);
  });

  test("while the tunnel is up", async () => {
    expect(await markedPackets("r1", () => sendMarked(TARGETS))).toBe(0);
  });

  test.each([
    ["its device is deleted", "ip link del vxkrW0"],
    ["its device is down", "ip link set vxkrW0 down"],
    ["the hub is no peer any more", "wg set vxkrW0 peer $(wg show vxkrW0 peers) remove"],
    ["its private key is another one", "wg genkey >/tmp/other.key; wg set vxkrW0 private-key /tmp/other.key"],
    [
      "the process behind the device has ended",
      "if [ -S /run/wireguard/vxkrW0.sock ]; then kill $(pgrep -x wireguard-go); sleep 0.3; else ip link del vxkrW0; fi",
    ],
    [
      "its rules are gone",
      "for t in raw mangle filter nat; do iptables -t $t -F; ip6tables -t $t -F; done; ip link del vxkrW0",
    ],
  ])("while %s; the next up repairs it", async (_, spoil) => {
    await sh("r1", spoil);
    expect(await markedPackets("r1", () => sendMarked(TARGETS))).toBe(0);
    await stack.refresh();
    await stack.runner("r1");
    expect(await drift()).toEqual(NO_DRIFT);
    for (const target of TARGETS) await ping("r1", target);
  });

  test("after a boot without `wg`", async () => {
    await sh("r1", "printf '#!/bin/sh\\nexit 1\\n' >/usr/local/sbin/wg; chmod 755 /usr/local/sbin/wg");
    const { address, address6 } = lab.host("r3");
    await lab.stop("r1");
    await lab.start("r1");
    await sh(
      "r1",
      `ip route add default via ${address}; ip -6 route add default via ${address6}; ping -c 1 ${address}; ping -c 1 ${address6}`,
    );
    expect((await lab.exec("r1", "sh /var/lib/overlay/boot.sh")).code).not.toBe(0);
    await addJob("r1");
    expect(await markedPackets("r1", () => sendMarked(TARGETS))).toBe(0);
    await sh("r1", "rm /usr/local/sbin/wg");
    expect((await lab.exec("r1", "sh /var/lib/overlay/boot.sh")).stderr).toBe("");
    expect(await drift()).toEqual(NO_DRIFT);
    for (const target of TARGETS) await ping("r1", target);
  });
});

/** Pings that r2's workload has received, of both families. */
const received = async (): Promise<number> =>
  (
    await sh(
      "r2",
      `ip netns exec job cat /proc/net/snmp /proc/net/snmp6 | awk '/^Icmp:/ && !n { for (i = 1; i <= NF; i++) if ($i == "InEchos") n = i; next } /^Icmp:/ { print $n } $1 == "Icmp6InEchos" { print $2 }'`,
    )
  )
    .split("\n")
    .reduce((sum, count) => sum + Number(count), 0);

test("a runner cannot send from addresses of another one, nor can a host that is no peer", async () => {
  const hubKey = await sh("hub", "wg show vxkrW0 public-key");
  await sh("r1", "ip addr add 10.128.128.77/32 dev lo; ip addr add fd00:128:0:2::77/128 dev lo nodad");
  await sh(
    "r3",
    `wg genkey >/tmp/key; ip link add evilW0 type wireguard 2>/dev/null || setsid wireguard-go evilW0 >/dev/null 2>&1
    wg set evilW0 private-key /tmp/key peer ${hubKey} endpoint ${lab.host("hub").address}:51820 allowed-ips 0.0.0.0/0,::/0
    ip addr add 10.128.192.1/32 dev evilW0; ip addr add fd00:128:0:3::1/128 dev evilW0; ip link set evilW0 up
    ip route add 10.128.0.0/12 dev evilW0; ip route add fd00:128::/48 dev evilW0`,
  );
  onTestFinished(async () => {
    await sh("r1", "ip addr del 10.128.128.77/32 dev lo; ip addr del fd00:128:0:2::77/128 dev lo");
    await lab.rebuild("r3");
  });
  const before = await received();
  const send = async (host: string, from: string, to: string) =>
    lab.exec(host, `ping -n -c 3 -i 0.1 -W 0.5 ${from} ${to}`);
  await send("r1", "-I 10.128.128.77", JOBS.r2[4]);
  await send("r1", "-I fd00:128:0:2::77", JOBS.r2[6]);
  for (const target of TARGETS) await send("r3", "", target);
  expect(await received()).toBe(before);
  for (const target of TARGETS) await send("r1", "", target);
  expect(await received()).toBe(before + 6);
});

/** Keeps what eth0 sends to this UDP port for some seconds, and writes it as hexadecimal text. */
const CAPTURE = `
import socket, struct, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0)); s.settimeout(0.2); print("ready", flush=True)
end = time.time() + 4
while time.time() < end:
    try: frame, at = s.recvfrom(9000)
    except TimeoutError: continue
    if at[2] == 4 and frame[23] == 17 and struct.unpack("!H", frame[36:38])[0] == 51820: print(frame.hex(), flush=True)
`;
const SEND_AGAIN = `
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
for line in sys.stdin: s.send(bytes.fromhex(line.strip())); time.sleep(0.01)
`;

test("packets that are sent again, by the runner or by another host, arrive at the hub and no further", async () => {
  await sh(
    "r1",
    `/usr/bin/python3 -c '${CAPTURE}' >/run/frames 2>&1 </dev/null & ${tries("grep -q ready /run/frames")}`,
  );
  const before = await received();
  for (const target of TARGETS) await sh("r1", `ip netns exec job ping -n -c 3 -i 0.2 -W 2 ${target}`);
  expect(await received()).toBe(before + 6);
  await sh("r1", "while pgrep -x python3 >/dev/null; do sleep 0.2; done; sed -i 1d /run/frames");
  const frames = await sh("r1", "cat /run/frames");
  expect(frames.split("\n").length).toBeGreaterThanOrEqual(6);
  const rule = `PREROUTING -s ${lab.host("r1").address} -p udp --dport 51820`;
  const endpoints = await sh("hub", "wg show vxkrW0 endpoints | sort");
  await sh("hub", `iptables -t raw -I ${rule}`);
  for (const host of ["r1", "r3"]) {
    const { code, stderr } = await lab.exec(host, `/usr/bin/python3 -c '${SEND_AGAIN}'`, { input: frames });
    expect([code, stderr]).toEqual([0, ""]);
  }
  const arrived = await sh("hub", "iptables -t raw -nvxL PREROUTING | awk '/dpt:51820/ { print $1; exit }'");
  await sh("hub", `iptables -t raw -D ${rule}`);
  expect(Number(arrived)).toBeGreaterThanOrEqual(2 * frames.split("\n").length);
  expect(await received()).toBe(before + 6);
  expect(await sh("hub", "wg show vxkrW0 endpoints | sort")).toBe(endpoints);
});

describe("a change by hand is drift, and the next up repairs it", () => {
  test.each([
    ["r1", "ip link set vxkrW0 mtu 1300", ["link vxkrW0: MTU is 1300, should be 1440"]],
    ["hub", "wg set vxkrW0 listen-port 51999", ["link vxkrW0: port is 51999, should be 51820"]],
    ["r1", "echo 0 >/proc/sys/net/ipv4/conf/vxkrW0/rp_filter", ["sysctl net.ipv4.conf.vxkrW0.rp_filter: missing"]],
    [
      "r1",
      "echo 0 >/proc/sys/net/ipv6/conf/kohaku-overlay/proxy_ndp",
      ["sysctl net.ipv6.conf.kohaku-overlay.proxy_ndp: missing"],
    ],
    ["r1", "echo 0 >/proc/sys/net/ipv6/conf/vxkrW0/forwarding", ["link vxkrW0: IPv6 forwarding is off, should be on"]],
    [
      "r1",
      "ip neigh del proxy 10.128.64.254 dev kohaku-overlay",
      ["proxy neighbour 10.128.64.254 on kohaku-overlay: missing"],
    ],
    [
      "r1",
      "ip route replace 10.128.0.0/12 dev vxkrW0 proto 183",
      ["route 10.128.0.0/12: src is none, should be 10.128.64.1"],
    ],
    ["r1", "ip route del unreachable 10.128.0.0/12", ["unreachable 10.128.0.0/12: missing"]],
    [
      "hub",
      "ip addr del 10.128.64.254/32 dev kohaku-host",
      ["address 10.128.64.254/32 on kohaku-host: missing", "route 10.128.64.0/18: missing"],
    ],
    ["hub", "ip route del 10.128.64.0/18", ["route 10.128.64.0/18: missing"]],
    [
      "r1",
      "ip addr del 10.128.64.1/32 dev vxkrW0",
      ["address 10.128.64.1/32 on vxkrW0: missing", "route 10.128.0.0/12: missing", "route 10.128.64.254/32: missing"],
    ],
  ])("on %s: %s", async (host, spoil, differences) => {
    await sh(host, spoil);
    const found = (await drift()).flat();
    for (const text of differences) expect(found).toContain(`${lab.host(host).address}: ${text}`);
    await stack.refresh();
    if (host === "hub") await stack.network({ tunnel: "wireguard", subnets: SUBNETS });
    // Until the hub sends to it, a runner sends to the port at which it saw the hub last.
    if (spoil.includes("listen-port")) for (const id of [1, 2]) await ping("hub", `10.128.${64 * id}.1`, "", "");
    await stack.runner("r1");
    expect(await drift()).toEqual(NO_DRIFT);
    for (const target of TARGETS) await ping("r1", target);
  });

  test("where a peer was seen last is none", async () => {
    const peer = await sh("r1", "wg show vxkrW0 public-key");
    await sh("hub", `wg set vxkrW0 peer ${peer} endpoint ${lab.host("r1").address}:40000`);
    expect(await drift()).toEqual(NO_DRIFT);
    for (const target of TARGETS) await ping("r1", target);
  });
});

/** The settings of a network, as a reference to it passes them. */
const settingsOf = async (network: string): Promise<Values> =>
  ((await findSpec(stack.pool, `network/${network}`))!.data as unknown as { settings: Values }).settings;

describe("a static address on the hub", () => {
  beforeAll(() => serve(lab, "r1", "job", "tcp", 80, "web"));
  afterAll(async () => {
    await stack.remove("StaticIP", "web");
    await stack.remove("IPPool", "public");
    await sh("r1", "ip netns pids job | xargs -r kill");
  });

  test.each([
    [false, () => "10.128.0.1"],
    [true, () => lab.controllerAddress],
  ])("leads to a workload; with preserveClientIp %s it sees the hub or its client", async (preserveClientIp, seen) => {
    const pool = await stack.put("IPPool", "public", { ranges: ["10.254.200.0/28"], type: "loadBalancer" });
    const { networkName, subnets, bridgeName } = await settingsOf("training");
    const { ip } = await stack.put("StaticIP", "web", {
      pool: { poolName: pool.poolName, addressSpace: pool.addressSpace, type: pool.type, ranges: pool.ranges },
      attach: { networkName, subnets, bridgeName },
      connection: stack.at("hub"),
      forwards: [{ port: 80, to: JOBS.r1[4] }],
      runners: [{ networkName, runnerName: "r1", subnets: ["10.128.64.0/18", "fd00:128:0:1::/64"] }],
      runnerConnections: [stack.at("r1")],
      preserveClientIp,
    });
    expect(await ask(lab, { at: "controller" }, String(ip), 80)).toBe(`web sees ${seen()}`);
    expect(await stack.drift("StaticIP", "web")).toEqual([]);
  });
});

test("two networks share hub and runner, each with a port of its own", async () => {
  const names = { devicePrefix: "second", hubInterface: "second-host", bridgeName: "second-br", wireguardPort: 51830 };
  const shared = { tunnel: "wireguard", subnets: "10.64.0.0/12/6/14", hubConnection: stack.at("hub"), ...names };
  await stack.put("OverlayNetwork", "second", shared);
  const network = await settingsOf("second");
  const hosts = { connection: stack.at("r1"), hubConnection: stack.at("hub") };
  await stack.put("RunnerSubnet", "s1", { network, ...hosts });
  await ping("hub", "10.64.64.1", "", "");
  for (const target of TARGETS) await ping("r1", target);
  expect(await drift()).toEqual(NO_DRIFT);
  expect(await stack.drift("RunnerSubnet", "s1")).toEqual([]);
  await stack.remove("RunnerSubnet", "s1");
  await stack.remove("OverlayNetwork", "second");
  for (const host of ["hub", "r1"]) expect(await sh(host, "ip -o link | grep -c second || :")).toBe("0");
  expect(await drift()).toEqual(NO_DRIFT);
});

test("a copied disk is refused until its key is removed", async () => {
  const key = await sh("r1", "cat /var/lib/overlay/training/tunnel.key");
  await sh("r3", `umask 077; mkdir -p /var/lib/overlay/training; echo ${key} >/var/lib/overlay/training/tunnel.key`);
  await expect(stack.runner("r3")).rejects.toThrow(
    /KEY_DUPLICATE: The public key \S+ of this host is also that of .*::r1: one of the disks is a copy/,
  );
  await sh("r3", "rm /var/lib/overlay/training/tunnel.key");
  stack.nextRun();
  await stack.runner("r3");
  for (const target of TARGETS) await ping("r3", target, "", "");
  await stack.remove("RunnerSubnet", "r3");
  expect(await findLeftovers(lab, "r3")).toBe("");
});

test("a reinstalled runner makes another key, and the hub follows in the same up", async () => {
  const before = stack.props("RunnerSubnet", "r1").publicKey;
  await lab.rebuild("r1");
  stack.nextRun();
  await stack.refresh();
  const { publicKey } = await stack.runner("r1");
  expect(publicKey).not.toBe(before);
  expect(await sh("hub", "wg show vxkrW0 peers")).toContain(publicKey);
  expect(await sh("hub", "wg show vxkrW0 peers")).not.toContain(before);
  await addJob("r1");
  expect(await drift()).toEqual(NO_DRIFT);
  for (const target of TARGETS) await ping("r1", target);
});

test("a reinstalled hub makes another key, and the runners follow in the same up", async () => {
  await lab.rebuild("hub");
  stack.nextRun();
  await stack.refresh();
  await stack.network({ tunnel: "wireguard", subnets: SUBNETS });
  await stack.runner("r1");
  await stack.runner("r2");
  expect(await drift()).toEqual(NO_DRIFT);
  for (const target of TARGETS) await ping("r1", target);
});

test("after a power cut of all hosts the boot scripts bring it back", async () => {
  for (const host of ["hub", "r1", "r2"]) {
    await lab.stop(host);
    await lab.start(host);
    expect(await lab.exec(host, "sh /var/lib/overlay/boot.sh")).toMatchObject({ code: 0 });
  }
  await addJob("r1");
  await addJob("r2");
  expect(await drift()).toEqual(NO_DRIFT);
  for (const target of TARGETS) await ping("r1", target);
});

test("a destroy leaves nothing", async () => {
  await stack.destroy();
  for (const host of ["hub", "r1", "r2"]) expect([host, await findLeftovers(lab, host)]).toEqual([host, ""]);
});
