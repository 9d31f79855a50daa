import { generateKeyPairSync } from "node:crypto";
import type { Lab, LabHost } from "../lab/lab";
import { inParallel } from "../lab/process";
import type { Topology, TunnelName } from "../provider/network/plan/tunnels";
import { must } from "../test/lab/lab-stack";
import { tries } from "../test/lab/pings";

/** The kinds of networks that are measured. */
export interface Path {
  tunnel: TunnelName;
  topology: Topology;
}

export const PATHS: Path[] = [
  { tunnel: "vxlan", topology: "hub" },
  { tunnel: "vxlan", topology: "mesh" },
  { tunnel: "wireguard", topology: "hub" },
  { tunnel: "wireguard", topology: "mesh" },
];

const TITLES = { vxlan: "VXLAN", wireguard: "WireGuard" } satisfies Record<TunnelName, string>;
export const title = ({ tunnel, topology }: Path): string => `${TITLES[tunnel]} ${topology}`;

/** A command that may be repeated. */
export interface Step {
  name: string;
  shell: string;
}

/**
 * The same network as ours for Ansible and pyinfra, which run these steps one after another, in the default layout: the devices, addresses and routes
 * of an up, and few of its rules. Keys of WireGuard come with the description, which spares these programs a conversation in which
 * hosts make them.
 */
export function describeNetwork({ tunnel, topology }: Path, hosts: LabHost[]): Record<string, Step[]> {
  const [hub, ...runners] = hosts.map(({ name, address }, id) => ({ name, address, id }));
  const isMesh = topology === "mesh";
  const vxlan = {
    hub: () => [vxlanTunnels(hub!, runners)],
    runner: (own: End) => [...vxlanTunnel(own, hub!), ...(isMesh ? [vxlanMesh(own, runners)] : [])],
  };
  const wireguard = {
    hub: () => wireguardDevice(hub!, runners),
    runner: (own: End) => wireguardDevice(own, isMesh ? [hub!, ...runners] : [hub!]),
  };
  const tunnels = { vxlan, wireguard }[tunnel];
  const describeRunner = (own: End): Step[] => [...runnerSteps(own), ...tunnels.runner(own), ...FORWARD];
  return {
    hub: [...HUB, ...tunnels.hub(), ...FORWARD],
    ...Object.fromEntries(runners.map((own) => [own.name, describeRunner(own)])),
  };
}

interface End {
  name: string;
  address: string;
  /** 0: the hub. */
  id: number;
}

const RANGE = "10.128.0.0/12";
const prefixOf = (id: number): string => `10.${128 + ((id * 64) >> 8)}.${(id * 64) & 255}`;
const subnetOf = ({ id }: End): string => `${prefixOf(id)}.0/18`;
const gatewayOf = ({ id }: Pick<End, "id">): string => (id === 0 ? "10.128.0.1" : `${prefixOf(id)}.1`);
const step = (name: string, ...lines: string[]): Step => ({ name, shell: lines.join("\n") });
const link = (device: string, type: string): string =>
  `[ -e /sys/class/net/${device} ] || ip link add ${device} type ${type}`;
const rule = (name: string, text: string, table = "filter"): Step =>
  step(name, `iptables -t ${table} -C ${text} 2>/dev/null || iptables -t ${table} -A ${text}`);

const FORWARD = [
  step("chain", "iptables -n -L BY-FORWARD >/dev/null 2>&1 || iptables -N BY-FORWARD"),
  ...["-s", "-d"].map((flag) => rule(`accept ${flag}`, `BY-FORWARD ${flag} ${RANGE} -j ACCEPT`)),
  step("jump", "iptables -C FORWARD -j BY-FORWARD 2>/dev/null || iptables -I FORWARD 1 -j BY-FORWARD"),
  step("forwarding", "echo 1 >/proc/sys/net/ipv4/ip_forward"),
];

const HUB = [
  step("anchor", link("byhub", "dummy 2>/dev/null || ip link add byhub type bridge")),
  step("hub address", `ip link set byhub up; ip addr replace ${gatewayOf({ id: 0 })}/32 dev byhub`),
  step("unreachable", `ip route replace unreachable ${RANGE} metric 4096`),
];

const runnerSteps = (own: End): Step[] => [
  step("bridge", link("bybr", "bridge")),
  step("bridge up", "ip link set bybr mtu 1450 up"),
  step("gateway", `ip addr replace ${gatewayOf(own)}/18 dev bybr`),
  rule("masquerade", `POSTROUTING -s ${subnetOf(own)} ! -d ${RANGE} -j MASQUERADE`, "nat"),
];

const vxlanLink = (device: string, id: number, local: End, remote?: End): string =>
  link(
    device,
    `vxlan id ${id} dstport 4789 local ${local.address} nolearning${remote ? ` remote ${remote.address}` : ""}`,
  );

const vxlanTunnels = (hub: End, runners: End[]): Step =>
  step(
    "tunnels",
    ...runners.flatMap((runner) => [
      vxlanLink(`by${runner.id}`, 100 + runner.id, hub, runner),
      `ip link set by${runner.id} mtu 1450 up; ip addr replace ${prefixOf(runner.id)}.254/18 dev by${runner.id}`,
    ]),
  );

const vxlanTunnel = (own: End, hub: End): Step[] => [
  step("tunnel", vxlanLink("bytunnel", 100 + own.id, own, hub)),
  step("tunnel up", "ip link set bytunnel mtu 1450 master bybr up"),
  step("route", `ip route replace ${RANGE} via ${prefixOf(own.id)}.254 dev bybr`),
];

const macOf = ({ id }: End): string =>
  `02:00:00:00:${[id >> 8, id & 255].map((n) => n.toString(16).padStart(2, "0")).join(":")}`;

const vxlanMesh = (own: End, runners: End[]): Step =>
  step(
    "mesh",
    vxlanLink("bymesh", 99, own),
    `ip link set bymesh address ${macOf(own)} mtu 1450 up`,
    ...runners
      .filter(({ id }) => id !== own.id)
      .flatMap((peer) => [
        `bridge fdb replace ${macOf(peer)} dev bymesh dst ${peer.address}`,
        `ip neigh replace ${gatewayOf(peer)} lladdr ${macOf(peer)} dev bymesh nud permanent`,
        `ip route replace ${subnetOf(peer)} via ${gatewayOf(peer)} dev bymesh onlink`,
      ]),
  );

const keys = new Map<number, { secret: string; public: string }>();
function keysOf({ id }: End): { secret: string; public: string } {
  const { d, x } = generateKeyPairSync("x25519").privateKey.export({ format: "jwk" });
  const [secret, open] = [d, x].map((part) => Buffer.from(part!, "base64url").toString("base64"));
  const made = keys.get(id) ?? { secret: secret!, public: open! };
  keys.set(id, made);
  return made;
}

const PORT = 51999;
const peerSection = (peer: End): string =>
  `[Peer]\nPublicKey = ${keysOf(peer).public}\nEndpoint = ${peer.address}:${PORT}\nAllowedIPs = ${peer.id === 0 ? RANGE : subnetOf(peer)}\nPersistentKeepalive = 25`;

const wireguardDevice = (own: End, all: End[]): Step[] => {
  const peers = all.filter(({ id }) => id !== own.id);
  const routes = own.id === 0 ? peers.map(subnetOf) : [RANGE];
  return [
    step(
      "keys and peers",
      "umask 077; cat >/etc/bywg.conf <<'END'",
      `[Interface]\nPrivateKey = ${keysOf(own).secret}\nListenPort = ${PORT}`,
      ...peers.map(peerSection),
      "END",
    ),
    // wireguard-go stays in the background, and must not keep the session open.
    step("tunnel", link("bywg", "wireguard 2>/dev/null || wireguard-go bywg </dev/null >/dev/null 2>&1")),
    step("set peers", "wg syncconf bywg /etc/bywg.conf"),
    step("tunnel up", `ip addr replace ${gatewayOf(own)}/32 dev bywg; ip link set bywg mtu 1420 up`),
    step("routes", ...routes.map((range) => `ip route replace ${range} dev bywg src ${gatewayOf(own)}`)),
  ];
};

/** Removes from a host what the steps have made. */
export const CLEAN = [
  "for device in $(ls /sys/class/net | grep ^by); do ip link del $device; done; rm -f /etc/bywg.conf",
  `ip route del unreachable ${RANGE} metric 4096 2>/dev/null`,
  "iptables -F; iptables -X; iptables -t nat -F; echo 0 >/proc/sys/net/ipv4/ip_forward",
].join("\n");

/** Throws if a runner does not reach the next one, or the hub, through the overlay network. */
export async function expectPings(lab: Lab, runners: number): Promise<void> {
  const ping = (id: number): string => `(${tries(`ping -n -c 1 -W 1 ${gatewayOf({ id })} >/dev/null`)})`;
  const checks = lab.hosts.slice(1, runners + 1).map(({ name }, i) => async () => {
    await must(lab, name, `${ping(((i + 1) % runners) + 1)} && ${ping(0)} || { echo no ping passes >&2; exit 1; }`);
  });
  await inParallel(checks, 8);
}
