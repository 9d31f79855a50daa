import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { Lab } from "../../lab/lab";
import { formatIp, tryParseIp } from "../../provider/addressing/ip";
import { meshMac, parseLayout } from "../../provider/addressing/layout";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { Item } from "../../provider/network/model/items";
import { keyPath } from "../../provider/network/model/record";
import { type Network, planHub, planRunner, planTunnel, type Underlay } from "../../provider/network/plan/hub";
import type { TunnelName } from "../../provider/network/plan/tunnels";
import type { MeshPeer } from "../../provider/network/plan/tunnels/tunnel";
import { training } from "../network";
import { labHost } from "./lab-stack";
import { tries } from "./pings";

/**
 * Which packets pass and which are dropped, with real packets of both families. r1 and r2 are runners of one network, r4 of another on
 * the same hub and UDP port; r3 is a host on the underlay that is in neither. Each runner has a workload `job`.
 */
let lab: Lab;

const network = (changes: Partial<Network> = {}) =>
  training({
    layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")],
    mtu: "auto",
    ...changes,
  });
const second = () =>
  network({
    networkName: "second",
    layouts: [parseLayout("10.64.0.0/12/6/14"), parseLayout("fd00:64::/48/16/64")],
    vniBase: 300,
    devicePrefix: "vxse",
    bridgeName: "second",
    hubInterface: "second-host",
  });

const underlayAddress = (name: string, outer: Family): string =>
  outer === 4 ? lab.host(name).address : formatIp(tryParseIp(lab.host(name).address6)!);

async function underlayOf({ tunnel, networkName }: Network, name: string, outer: Family): Promise<Underlay> {
  const key = keyPath(networkName);
  const makeKey = `umask 077; mkdir -p $(dirname ${key}); [ -e ${key} ] || wg genkey >${key}; wg pubkey <${key}`;
  return {
    underlayIp: underlayAddress(name, outer),
    underlayMtu: 1500,
    ...(tunnel === "wireguard" && { publicKey: await sh(name, makeKey) }),
  };
}
const warnings: string[] = [];
const reconciler = new Reconciler(() => {}, { warn: (text) => warnings.push(text) });
const apply = (name: string, uid: string, of: Network, items: Item[]) =>
  reconciler.apply(labHost(lab, name), {
    record: { uid, owner: uid, network: of.networkName, store: "s" },
    items,
    fence: async () => {},
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  });

const hubOf = ({ networkName }: Network): string => (networkName === "third" ? "r3" : "hub");

const uidOf = (of: Network, name: string): string => (of.networkName === "third" ? `third-${name}` : name);

/** The hub's ends of all tunnels: before the network has another kind of them. */
async function removeTunnels(of: Network): Promise<void> {
  for (const name of ["r1", "r2"]) await apply(hubOf(of), uidOf(of, name), of, []);
}

async function runner(of: Network, name: string, id: number, outer: Family = 4): Promise<void> {
  const tunnel = `${of.devicePrefix}${id}`;
  const uid = uidOf(of, name);
  const [hub, here] = [await underlayOf(of, hubOf(of), outer), await underlayOf(of, name, outer)];
  await apply(hubOf(of), uid, of, planTunnel(of, id, hub, here));
  await apply(name, uid, of, planRunner(of, id, tunnel, hub, here));
}

/** Each of these runners sends to the others directly, and would to a third one. */
async function joinMesh(of: Network, runners: Record<string, number>, outer: Family): Promise<void> {
  const ends = await Promise.all(
    Object.entries({ ...runners, r3: 3 }).map(async ([name, id]) => ({
      name,
      id,
      end: await underlayOf(of, name, outer),
    })),
  );
  const hub = await underlayOf(of, hubOf(of), outer);
  for (const { name, id, end } of ends.filter((each) => each.name in runners)) {
    const peers = ends
      .filter((other) => other.id !== id)
      .map((other): MeshPeer => ({ id: other.id, ...other.end, port: of.wireguardPort, isRouted: true }));
    await apply(name, uidOf(of, name), of, planRunner(of, id, `${of.devicePrefix}${id}`, hub, end, peers));
  }
}

async function overlay(of: Network, runners: Record<string, number>, outer: Family = 4): Promise<void> {
  await apply(hubOf(of), of.networkName, of, planHub(of, await underlayOf(of, hubOf(of), outer)));
  for (const [name, id] of Object.entries(runners)) await runner(of, name, id, outer);
}

const sh = async (host: string, script: string): Promise<string> => {
  const { code, stdout, stderr } = await lab.exec(host, script);
  if (code !== 0) throw new Error(`${host}: ${script}: ${stderr}${stdout}`);
  return stdout.trim();
};
const mac = (host: string, device: string, inside = ""): Promise<string> =>
  sh(host, `${inside && `ip netns exec ${inside} `}cat /sys/class/net/${device}/address`);

type Family = 4 | 6;
const FAMILIES: Family[] = [4, 6];
const WORKLOADS: Record<string, Record<Family, string>> = {
  r1: { 4: "10.128.64.9", 6: "fd00:128:0:1::9" },
  r2: { 4: "10.128.128.9", 6: "fd00:128:0:2::9" },
  r4: { 4: "10.64.64.9", 6: "fd00:64:0:1::9" },
};
const JOB = (name: string, family: Family): string => WORKLOADS[name]![family];
const subnet = (ip: string): string => (ip.includes(":") ? `${ip.slice(0, -1)}/64` : `${ip.slice(0, -1)}0/18`);
const width = (family: Family): number => (family === 4 ? 32 : 128);

/** How many pings a workload has received so far. */
async function echoes(name: string, family: Family, inside: string): Promise<number> {
  const counter =
    family === 4
      ? "awk '/^Icmp:/ && !n { for (i = 1; i <= NF; i++) if ($i == \"InEchos\") n = i; next } /^Icmp:/ { print $n }' /proc/net/snmp"
      : "awk '$1 == \"Icmp6InEchos\" { print $2 }' /proc/net/snmp6";
  return Number(await sh(name, `ip netns exec ${inside} ${counter}`));
}

/** How many of three pings of a script reach a workload; answers are not needed. */
async function arrivals(name: string, family: Family, from: string, script: string, inside = "job"): Promise<number> {
  const before = await echoes(name, family, inside);
  await sh(from, `set -e; ${script}`);
  return (await echoes(name, family, inside)) - before;
}
/** Fails only if nothing could be sent: exit code 1 of ping means that no answer came. */
const ping = (target: string, options = ""): string => `{ ping -c 3 -i 0.2 -W 1 ${options} ${target} || [ $? = 1 ]; }`;

/** Runs something while the chains that drop are empty on these hosts, which need not have all of them. */
async function withoutDrops<T>(hosts: string[], run: () => Promise<T>): Promise<T> {
  const chains = [
    "-t raw -F OVERLAY-PRE",
    "-t raw -F OVERLAY-SRC",
    "-t raw -F OVERLAY-OUT",
    "-t mangle -F OVERLAY-GUARD",
    "-t filter -F OVERLAY-IN",
  ];
  const each = (tool: string): string =>
    [`${tool}-save >/tmp/before.${tool}`, ...chains.map((chain) => `{ ${tool} ${chain} 2>/dev/null || :; }`)].join(
      " && ",
    );
  for (const host of hosts) await sh(host, `${each("iptables")} && ${each("ip6tables")}`);
  try {
    return await run();
  } finally {
    for (const host of hosts)
      await sh(host, "iptables-restore </tmp/before.iptables && ip6tables-restore </tmp/before.ip6tables");
  }
}

beforeAll(async () => {
  lab = await Lab.up({ runners: 4 });
  await overlay(network(), { r1: 1, r2: 2 });
  await overlay(second(), { r4: 1 });
  for (const [name, addresses] of Object.entries(WORKLOADS)) {
    const bridge = name === "r4" ? "second" : "kohaku-overlay";
    const gateway = addresses[4].replace(/9$/, "1");
    await lab.container(name, "job", { bridge, address: `${addresses[4]}/18`, gateway });
    await sh(
      name,
      `ip netns exec job sh -c 'dev=$(ip -o link show type veth | sed -E "s/^[0-9]+: ([^@:]+).*/\\1/" | head -1); ip addr add ${addresses[6]}/64 dev $dev nodad; ip -6 route add default via ${addresses[6].replace(/9$/, "1")}; echo $dev'`,
    );
  }
});
afterAll(async () => {
  await lab?.down();
});

// First: after nine redirects that are dropped, the kernel sends no more for a while.
test("workloads learn no way to the hub past their runner from it", async () => {
  const learn = async (): Promise<string> => {
    await sh("r1", tries(`ip netns exec job ping -c 3 -i 0.2 -W 1 ${JOB("r2", 4)}`));
    return (await sh("r1", `ip -n job route get ${JOB("r2", 4)}`)).split(" ")[2]!;
  };
  const forget = () => sh("r1", "ip -n job route flush cache");
  await forget();
  expect(await learn()).toBe("10.128.64.1");
  await sh("r1", "iptables -t raw -F OVERLAY-OUT");
  expect(await learn(), "without our rule").toBe("10.128.64.254");
  await overlay(network(), { r1: 1 });
  expect(await learn(), "cached").toBe("10.128.64.254");
  await forget();
  expect(await learn()).toBe("10.128.64.1");
});

describe.each(FAMILIES)("IPv%s", (family) => {
  const on = (name: string) => JOB(name, family);

  test("workloads reach each other, the hub and the internet", async () => {
    await sh("r1", tries(`ip netns exec job ping -c 1 -W 1 ${on("r2")}`));
    await sh("r2", tries(`ip netns exec job ping -c 1 -W 1 ${on("r1")}`));
    await sh("r1", tries(`ip netns exec job ping -c 1 -W 1 ${family === 4 ? "10.128.0.1" : "fd00:128::1"}`));
    await sh("r1", `ip netns exec job ping -c 1 -W 10 ${on("r1").replace(/9$/, "1")}`);
    const outside = lab.host("r3");
    await sh("r1", tries(`ip netns exec job ping -c 1 -W 1 ${family === 4 ? outside.address : outside.address6}`));
    await sh("hub", tries(`ping -c 1 -W 1 ${on("r1")}`));
  });

  test("VXLAN from a host that is not a peer reaches neither a runner's workloads nor others through the hub", async () => {
    const evil = (peer: string, to: string, link: string): string => `
      ip link add evil type vxlan id 101 remote ${lab.host(peer).address} local ${lab.host("r3").address} dstport 4789
      ip addr add ${on("r1").replace(/9$/, "77")}/${width(family)} dev evil ${family === 6 ? "nodad" : ""}
      ip link set evil up; ip route add ${to}/${width(family)} dev evil
      ip neigh add ${to} lladdr ${link} dev evil
      ${ping(to)}; ip link del evil`;
    const device = await sh("r1", "ip netns exec job ip -o link show type veth | sed -E 's/^[0-9]+: ([^@:]+).*/\\1/'");
    const direct = evil("r1", on("r1"), await mac("r1", device, "job"));
    expect(await arrivals("r1", family, "r3", direct)).toBe(0);
    expect(await withoutDrops(["r1"], () => arrivals("r1", family, "r3", direct)), "without our drops").toBe(3);
    const through = evil("hub", on("r2"), await mac("hub", "vxkr1"));
    expect(await arrivals("r2", family, "r3", through)).toBe(0);
    expect(await withoutDrops(["hub"], () => arrivals("r2", family, "r3", through)), "without our drops").toBe(3);
  });

  test("a workload cannot act as its runner by sending VXLAN itself", async () => {
    const link = await mac("hub", "vxkr1");
    const from = JOB("r1", 4);
    const script = `ip netns exec job sh -ec '
      ip link add evil type vxlan id 101 remote ${lab.host("hub").address} local ${from} dstport 4789
      ip addr add ${on("r1").replace(/9$/, "77")}/${width(family)} dev evil ${family === 6 ? "nodad" : ""}
      ip link set evil up; ip route add ${on("r2")}/${width(family)} dev evil
      ip neigh add ${on("r2")} lladdr ${link} dev evil
      ${ping(on("r2"), "-I evil")}; ip link del evil'`;
    expect(await arrivals("r2", family, "r1", script)).toBe(0);
  });

  test.each(["its runner", "the hub itself"])(
    "packets of a workload with another runner's address by %s are dropped",
    async (by) => {
      const forged = on("r2").replace(/9$/, "77");
      const gateway = on("r1").replace(/9$/, by === "its runner" ? "1" : family === 4 ? "254" : "fe");
      const script = `ip netns exec job sh -ec '
        ip addr add ${forged}/${width(family)} dev lo nodad
        ip route add ${on("r2")}/${width(family)} via ${gateway}
        ${ping(on("r2"), `-I ${forged}`)}
        ip route del ${on("r2")}/${width(family)}; ip addr del ${forged}/${width(family)} dev lo'`;
      expect(await arrivals("r2", family, "r1", script)).toBe(0);
      const open = await withoutDrops(["hub", "r1"], () => arrivals("r2", family, "r1", script));
      expect(open, "without our drops").toBe(3);
    },
  );

  test.each(["hub", "r1"])("a host of the underlay with a route by %s does not reach workloads", async (by) => {
    const { address, address6 } = lab.host(by);
    const to = subnet(on("r1"));
    const script = `ip route add ${to} via ${family === 4 ? address : address6}; ${ping(on("r1"))}; ip route del ${to}`;
    expect(await arrivals("r1", family, "r3", script)).toBe(0);
  });

  test("a hub does not route between its networks", async () => {
    const to = subnet(on("r1"));
    const gateway = on("r4").replace(/9$/, family === 4 ? "254" : "fe");
    const script = `ip netns exec job sh -ec 'ip route add ${to} via ${gateway}; ${ping(on("r1"))}; ip route del ${to}'`;
    expect(await arrivals("r1", family, "r4", script)).toBe(0);
  });

  test("a hub that did not forward before does not route between its own networks", async () => {
    const far = family === 4 ? "10.99.0.1" : "fd00:99::1";
    const at = (name: string) => (family === 4 ? lab.host(name).address : lab.host(name).address6);
    await sh("r2", `ip addr add ${far}/${width(family)} dev lo nodad`);
    await sh("hub", `ip route add ${far}/${width(family)} via ${at("r2")}`);
    await sh("hub", tries(`ping -c 1 -W 1 ${far}`)); // the kernel adds the local route of an IPv6 address some time after it
    await sh("r3", `ip route add ${far}/${width(family)} via ${at("hub")}`);
    expect((await lab.exec("r3", `ping -c 2 -W 1 ${far}`)).code).toBe(1);
    const key = family === 4 ? "net.ipv4.ip_forward" : "net.ipv6.conf.all.forwarding";
    await sh("hub", `echo 1 >/var/lib/overlay/former/${key}`);
    await overlay(network(), {});
    await overlay(second(), {});
    await runner(network(), "r1", 1);
    await runner(network(), "r2", 2);
    expect((await lab.exec("r3", `ping -c 2 -W 1 ${far}`)).code, "after it is said that it was on before").toBe(0);
    await sh("hub", `echo 0 >/var/lib/overlay/former/${key}; ip route del ${far}/${width(family)}`);
    await overlay(network(), {});
  });
});

/**
 * What hostile processes imitate: each tunnel, and the direct routes of a mesh. A new tunnel has no tests until it has a line here. `header` is
 * what stands before an Ethernet frame, in Python; `port` is that of our tunnel, `others` those that another network on a shared host may have:
 * only one WireGuard device can have a port.
 */
interface Hostile {
  tunnel: TunnelName;
  isMesh?: true;
  header: string;
  port: number;
  others: number[];
}
const WIREGUARD_HEADER = 'struct.pack("<BxxxIQ", 4, int(vni), i)';
const VXLAN_HEADER = 'struct.pack("!BBHI", 8, 0, 0, int(vni) << 8)';
const HOSTILE: Record<TunnelName | `mesh of ${TunnelName}`, Hostile> = {
  wireguard: { tunnel: "wireguard", header: WIREGUARD_HEADER, port: 51820, others: [51821] },
  "mesh of wireguard": { tunnel: "wireguard", isMesh: true, header: WIREGUARD_HEADER, port: 51822, others: [] },
  vxlan: { tunnel: "vxlan", header: VXLAN_HEADER, port: 4789, others: [4790, 4789] },
  "mesh of vxlan": { tunnel: "vxlan", isMesh: true, header: VXLAN_HEADER, port: 4790, others: [] },
};

/**
 * Sends three pings in a tunnel from an ordinary UDP socket. Arguments: host, port, VNI, then MAC, source and target of the inner packet, and
 * the address that the socket is bound to, if any.
 */
const sendInTunnel = (header: string): string => `
import socket, struct, sys, time
to, port, vni, mac, source, target, *own = sys.argv[1:]
six = ":" in target
pack = lambda ip: socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xffff: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
def ping(i):
    body = struct.pack("!HH", 7, i) + b"overlay!"
    head = lambda sum: struct.pack("!BBH", 128 if six else 8, 0, sum) + body
    if six:
        pseudo = pack(source) + pack(target) + struct.pack("!IHBB", len(head(0)), 0, 0, 58)
        return b"\\x86\\xdd" + struct.pack("!IHBB", 6 << 28, len(head(0)), 58, 64) + pack(source) + pack(target) + head(checksum(pseudo + head(0)))
    ip = lambda sum: struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(head(0)), i, 0, 64, 1, sum) + pack(source) + pack(target)
    return b"\\x08\\x00" + ip(checksum(ip(0))) + head(checksum(head(0)))
sock = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM)
if own: sock.bind((own[0], 0))
for i in range(3):
    # Other errors than a drop of the own host fail the test: nothing would be sent.
    try: sock.sendto(${header} + bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("020000000077") + ping(i), (to, int(port)))
    except PermissionError: pass
    time.sleep(0.1)
`;

/**
 * How many datagrams of this sender reach a host: without a key, WireGuard drops what its port gets. The length tells them from WireGuard's own,
 * which are padded.
 */
async function datagrams(to: string, outer: Family, family: Family, port: number, send: () => Promise<unknown>) {
  const tool = outer === 4 ? "iptables" : "ip6tables";
  const length = (outer === 4 ? 28 : 48) + 16 + 14 + (family === 4 ? 36 : 56);
  const rule = `-t raw %s PREROUTING -p udp --dport ${port} -m length --length ${length} -m comment --comment sent`;
  await sh(to, `${tool} ${rule.replace("%s", "-I")}`);
  try {
    await send();
    return Number(await sh(to, `${tool}-save -c -t raw | sed -n 's/^.\\([0-9]*\\):.*--comment sent.*/\\1/p'`));
  } finally {
    await sh(to, `${tool} ${rule.replace("%s", "-D")}`);
  }
}

/** A third network on r1 and r2, with r3 as its hub, and a workload `third` on each runner. */
const third = (port: number, tunnel: TunnelName) =>
  network({
    tunnel,
    ...{ networkName: "third", layouts: [parseLayout("10.32.0.0/12/6/14"), parseLayout("fd00:32::/48/16/64")] },
    ...{
      vniBase: 600,
      vxlanPort: port,
      wireguardPort: port,
      devicePrefix: "vxth",
      bridgeName: "third",
      hubInterface: "third-host",
    },
  });
const THIRD: Record<string, Record<Family, string>> = {
  r1: { 4: "10.32.64.9", 6: "fd00:32:0:1::9" },
  r2: { 4: "10.32.128.9", 6: "fd00:32:0:2::9" },
};

interface Attack {
  /** Of the workload. */
  target: string;
  inside?: string;
  outer?: Family;
  family: Family;
  port?: number;
}

describe("hostile processes on a peer's machine", () => {
  const insideMac = async (host: string, inside: string): Promise<string> =>
    sh(host, `ip netns exec ${inside} sh -c 'cat /sys/class/net/$(ls /sys/class/net | grep -v lo)/address'`);

  beforeAll(async () => {
    await overlay(third(4790, "vxlan"), { r1: 1, r2: 2 });
    for (const name of ["r1", "r2"]) {
      const addresses = THIRD[name]!;
      await lab.container(name, "third", {
        bridge: "third",
        address: `${addresses[4]}/18`,
        gateway: addresses[4].replace(/9$/, "1"),
      });
      await sh(
        name,
        `dev=$(ip netns exec third ls /sys/class/net | grep -v lo); ip -n third addr add ${addresses[6]}/64 dev $dev nodad; ip -n third -6 route add default via ${addresses[6].replace(/9$/, "1")}`,
      );
    }
    // As Docker has them: a bridge whose containers are masqueraded, and may reach everything.
    for (const name of ["hub", "r1"])
      await sh(
        name,
        `ip link add docker9 type bridge; ip link set docker9 up; ip addr add 172.30.0.1/24 dev docker9; ip addr add fd00:30::1/64 dev docker9 nodad
        ip netns add box; ip link add ve-box type veth peer name eth0 netns box; ip link set ve-box up master docker9
        ip -n box link set eth0 up; ip -n box addr add 172.30.0.2/24 dev eth0; ip -n box addr add fd00:30::2/64 dev eth0 nodad
        ip -n box route add default via 172.30.0.1; ip -n box route add default via fd00:30::1
        for tool in iptables ip6tables; do
          $tool -I FORWARD -i docker9 -j ACCEPT; $tool -I FORWARD -o docker9 -j ACCEPT
          $tool -t nat -A POSTROUTING -s $([ $tool = iptables ] && echo 172.30.0.0/24 || echo fd00:30::/64) ! -o docker9 -j MASQUERADE
        done`,
      );
  });

  describe.each(Object.entries(HOSTILE))("%s", (_, { tunnel, isMesh, header, port: main, others }) => {
    const first = () => network({ tunnel });
    const python = (...words: (string | number)[]): string =>
      `/usr/bin/python3 -c '${sendInTunnel(header)}' ${words.join(" ")}`;
    const at = underlayAddress;
    const macOf = (host: string, vxlanDevice: string) =>
      tunnel === "vxlan" ? mac(host, vxlanDevice) : "02:00:00:00:00:01";

    /** What reaches a workload with our rules; and, so that 0 says something, what would: without drops, or at the port of WireGuard. */
    const attack = async (
      { target, inside = "job", outer = 4, family, port = main }: Attack,
      from: string,
      hosts: string[],
      script: string,
    ): Promise<{ received: number; control: number }> => {
      const run = () => arrivals(target, family, from, script, inside);
      if (tunnel === "vxlan") return { received: await run(), control: await withoutDrops(hosts, run) };
      let received = 0;
      const control = await datagrams(hosts[0]!, outer, family, port, async () => (received = await run()));
      return { received, control };
    };
    const DROPPED = { received: 0, control: 3 };

    beforeAll(async () => {
      await removeTunnels(first());
      if (others[0]) await removeTunnels(third(others[0], tunnel));
      // Workloads may still have the MAC of another tunnel's hub.
      for (const runner of ["r1", "r2"]) await sh(runner, "ip -n job neigh flush all");
    });
    afterAll(async () => {
      if (isMesh) await overlay(first(), { r1: 1, r2: 2 });
    });

    describe.each(FAMILIES)("over IPv%i", (outer) => {
      beforeAll(async () => {
        await overlay(first(), { r1: 1, r2: 2 }, outer);
        if (isMesh) await joinMesh(first(), { r1: 1, r2: 2 }, outer);
      });

      test.each(FAMILIES)("reach no workload, IPv%i", async (family) => {
        const forged = (name: string) => JOB(name, family).replace(/9$/, "77");
        const vni = isMesh ? 100 : 101;
        const toMac = isMesh ? await macOf("r2", "vxkrMV") : await macOf("hub", "vxkr1");
        const toR2 = [vni, toMac, forged("r1"), JOB("r2", family)];
        const r1Mac = isMesh ? await macOf("r1", "vxkrMV") : await insideMac("r1", "job");
        const toR1 = [vni, r1Mac, forged("r2"), JOB("r1", family)];
        const box = (...words: (string | number)[]) => `ip netns exec box ${python(...words)}`;
        const user = (...words: (string | number)[]) => `setpriv --reuid=65534 --clear-groups ${python(...words)}`;
        // To a runner of a mesh directly, else through the hub.
        const by = isMesh ? "r2" : "hub";
        const [r1, r2] = [
          { target: "r1", outer, family },
          { target: "r2", outer, family },
        ];
        const results = {
          "container of a runner": await attack(r2, "r1", [by, "r1"], box(at(by, outer), main, ...toR2)),
          "container of the hub": await attack(r1, "hub", ["r1", "hub"], box(at("r1", outer), main, ...toR1)),
          "user of a runner": await attack(r2, "r1", [by, "r1"], user(at(by, outer), main, ...toR2)),
          "user of the hub": await attack(r1, "hub", ["r1", "hub"], user(at("r1", outer), main, ...toR1)),
        };
        expect(results).toEqual(Object.fromEntries(Object.keys(results).map((name) => [name, DROPPED])));
        await sh("r1", `setpriv --reuid=65534 --clear-groups ping -c 1 -W 2 ${JOB("r2", family)}`);
        await sh("hub", `setpriv --reuid=65534 --clear-groups ping -c 1 -W 2 ${JOB("r1", family)}`);
        await sh("r1", tries(`ip netns exec job ping -c 1 -W 1 ${JOB("r2", family)}`));
      });

      test.runIf(isMesh || tunnel === "wireguard").each(FAMILIES)(
        "root of a runner, with its key or MAC, sends from no subnet of another runner, IPv%i",
        async (family) => {
          const send = (source: string) => `ip addr add ${source}/${width(family)} dev lo ${family === 6 ? "nodad" : ""}
            ${ping(JOB("r2", family), `-I ${source}`)}; ip addr del ${source}/${width(family)} dev lo`;
          const [own, other] = [
            JOB("r1", family).replace(/9$/, "77"),
            family === 4 ? "10.128.192.77" : "fd00:128:0:3::77",
          ];
          const received = (source: string) => withoutDrops(["r1"], () => arrivals("r2", family, "r1", send(source)));
          expect([await received(other), await received(own)]).toEqual([0, 3]);
        },
      );

      test.runIf(isMesh && tunnel === "vxlan").each(FAMILIES)(
        "root of a runner does not send with MAC and address of another runner, IPv%i",
        async (family) => {
          const source = family === 4 ? "10.128.192.77" : "fd00:128:0:3::77";
          // Another MAC removes the neighbour entries of a device.
          const neighbour = `ip neigh replace fe80::1:2 lladdr ${meshMac("training", 2)} dev vxkrMV nud permanent`;
          const forge = (): Promise<number> =>
            arrivals(
              "r2",
              family,
              "r1",
              `ip addr add ${source}/${width(family)} dev lo ${family === 6 ? "nodad" : ""}
              own=$(cat /sys/class/net/vxkrMV/address); ip link set vxkrMV address ${meshMac("training", 3)}
              ${neighbour}; ${ping(JOB("r2", family), `-I ${source}`)}
              ip link set vxkrMV address $own; ${neighbour}; ip addr del ${source}/${width(family)} dev lo`,
            );
          const learn = (how: string) =>
            sh("r2", `ip link set vxkrMV type vxlan id 100 local ${at("r2", outer)} ${how}`);
          const received = await withoutDrops(["r1"], forge);
          await learn("nolearning");
          const control = await withoutDrops(["r1"], forge);
          await learn("learning");
          expect({ received, control }).toEqual(DROPPED);
        },
      );
    });

    describe.each(others)("a workload of another network on a shared host, port %i", (port) => {
      beforeAll(async () => {
        await overlay(first(), { r1: 1, r2: 2 });
        await overlay(third(port, tunnel), { r1: 1, r2: 2 });
      });

      test.each(FAMILIES)("reaches no workload, IPv%i", async (family) => {
        const [source, target] = [THIRD.r1![family].replace(/9$/, "77"), THIRD.r2![family]];
        const script = `ip netns exec job ${python(at("r3", 4), port, 601, await macOf("r3", "vxth1"), source, target)}`;
        expect(await attack({ target: "r2", inside: "third", family, port }, "r1", ["r3", "r1"], script)).toEqual(
          DROPPED,
        );
        await sh("r1", tries(`ip netns exec third ping -c 1 -W 1 ${target}`));
      });

      // Strict filtering drops a forged source before our rules do.
      describe.each([
        [0, 3],
        [1, 0],
        [2, 3],
      ])("with rp_filter %i", (filter, control) => {
        const keys = ["all", "kohaku-overlay"].map((name) => `/proc/sys/net/ipv4/conf/${name}/rp_filter`);
        let former = "";
        beforeAll(async () => {
          former = await sh("r1", `cat ${keys.join(" ")}`);
          await sh("r1", `echo ${filter} | tee ${keys.join(" ")}`);
        });
        afterAll(async () => {
          for (const [i, key] of keys.entries()) await sh("r1", `echo ${former.split("\n")[i]} >${key}`);
        });

        test.each(FAMILIES)("reaches none with the hub's address, IPv%i", async (family) => {
          const [hub, inner] = [at("r3", 4), THIRD.r1![family]];
          const words = [601, await insideMac("r1", "third"), inner.replace(/9$/, "77"), inner, hub];
          const script = `ip -n job addr add ${hub}/32 dev lo
            ip netns exec job ${python("10.128.64.1", port, ...words)}; ip -n job addr del ${hub}/32 dev lo`;
          const found = await attack({ target: "r1", inside: "third", family, port }, "r1", ["r1"], script);
          expect(found).toEqual({ received: 0, control: tunnel === "vxlan" ? control : 3 });
        });
      });
    });
  });
});

/** Addresses at which a workload of r1 reaches an sshd: gateway, hub by both overlay addresses, and the underlay's. */
async function reached(): Promise<string[]> {
  const targets = {
    gateway: "10.128.64.1",
    gateway6: "fd00:128:0:1::1",
    hub: "10.128.64.254",
    hub6: "fd00:128:0:1::fe",
    "hub's own": "10.128.0.1",
    "runner's underlay": lab.host("r1").address,
    "hub's underlay": lab.host("hub").address,
  };
  const connects = (ip: string): string =>
    `ip netns exec job /usr/bin/python3 -c 'import socket; socket.create_connection(("${ip}", 22), 2)'`;
  const codes = await Promise.all(Object.values(targets).map(async (ip) => (await lab.exec("r1", connects(ip))).code));
  return Object.keys(targets).filter((_, i) => codes[i] === 0);
}

test("workloads reach no service of the hosts, unless hostAccess names it", async () => {
  expect(await reached()).toEqual([]);
  const open = network({ hostAccess: [{ protocol: "tcp", first: 22, last: 22 }] });
  await overlay(open, { r1: 1, r2: 2 });
  expect(await reached()).toHaveLength(7);
  await overlay(network(), { r1: 1, r2: 2 });
  expect(await reached()).toEqual([]);
  await overlay(network({ hostAccess: "all" }), { r1: 1, r2: 2 });
  expect(await reached()).toHaveLength(7);
  await overlay(network(), { r1: 1, r2: 2 });
});

test("IPv6 packets in a network without IPv6 are dropped, too", async () => {
  const v4 = network({ layouts: [parseLayout("10.128.0.0/12/6/14")] });
  await overlay(v4, { r1: 1, r2: 2 });
  const [local] = (await sh("r1", "ip -6 -o addr show dev kohaku-overlay scope link | awk '{print $4}'")).split("/");
  const device = await sh("r1", "ip netns exec job ip -o link show type veth | sed -E 's/^[0-9]+: ([^@:]+).*/\\1/'");
  const script = `ip netns exec job /usr/bin/python3 -c 'import socket; s = socket.socket(socket.AF_INET6); s.settimeout(2); s.connect(("${local}", 22, 0, socket.if_nametoindex("${device}")))'`;
  expect((await lab.exec("r1", script)).code).toBe(1);
  await overlay(network(), { r1: 1, r2: 2 });
});

test("a second run changes nothing, and warnings are given once", async () => {
  const reports: number[] = [];
  const again = new Reconciler(({ steps }) => reports.push(steps));
  const desired = {
    record: { uid: "r1", owner: "r1", network: "training", store: "s" },
    items: planTunnel(network(), 1, await underlayOf(network(), "hub", 4), await underlayOf(network(), "r1", 4)),
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  };
  expect((await again.inspect(labHost(lab, "hub"), desired)).differences).toEqual([]);
  await again.apply(labHost(lab, "hub"), { ...desired, fence: async () => {} });
  await vi.waitFor(() => expect(reports).toEqual([0, 0]));
  expect(warnings.filter((text) => text.includes("not dropped"))).toEqual([]);
});
