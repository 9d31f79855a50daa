import type { Lab } from "../../lab/lab";
import { must } from "./lab-stack";

/**
 * An overlay as KohakuRiver makes it, by the commands that it runs (test/vectors/kernel_operations.json), with a workload
 * on each runner. Runner 3 is the first host, so that ids are not those that the pool would choose.
 */
export const IDS = { r1: 3, r2: 1 } as const;
type Runner = keyof typeof IDS;
export const subnetOf = (runner: Runner): string => `10.128.${IDS[runner] * 64}`;

export async function buildKohaku(lab: Lab): Promise<void> {
  await must(lab, "hub", hubScript());
  for (const runner of ["r1", "r2"] as const) {
    await must(lab, "hub", tunnelScript(lab, runner));
    await must(lab, runner, runnerScript(lab, runner));
    const [address, gateway] = [`${subnetOf(runner)}.10/18`, `${subnetOf(runner)}.1`];
    await lab.container(runner, "c1", { bridge: "kohaku-overlay", address, gateway });
  }
}

const hubScript = (): string =>
  [
    "echo 1 >/proc/sys/net/ipv4/ip_forward",
    "ip link add kohaku-host type dummy 2>/dev/null || ip link add kohaku-host type bridge",
    "ip link set kohaku-host up",
    "ip addr add 10.128.0.1/12 dev kohaku-host",
    "iptables -A FORWARD -s 10.128.0.0/12 -j ACCEPT",
    "iptables -A FORWARD -d 10.128.0.0/12 -j ACCEPT",
  ].join("\n");

function tunnelScript(lab: Lab, runner: Runner): string {
  const [id, device] = [IDS[runner], `vxkr${IDS[runner]}`];
  const ends = `remote ${lab.host(runner).address} local ${lab.host("hub").address}`;
  return `ip link add ${device} type vxlan id ${100 + id} ${ends} dstport 4789 nolearning
    ip link set ${device} mtu 1450 up
    ip addr add ${subnetOf(runner)}.254/18 dev ${device}`;
}

function runnerScript(lab: Lab, runner: Runner): string {
  const ends = `remote ${lab.host("hub").address} local ${lab.host(runner).address}`;
  return [
    "ip link add kohaku-overlay type bridge",
    "ip link set kohaku-overlay mtu 1450 up",
    `ip addr add ${subnetOf(runner)}.1/18 dev kohaku-overlay`,
    `ip link add vxlan0 type vxlan id ${100 + IDS[runner]} ${ends} dstport 4789 nolearning`,
    "ip link set vxlan0 mtu 1450 up",
    "ip link set vxlan0 master kohaku-overlay",
    `ip route add 10.128.0.0/12 via ${subnetOf(runner)}.254`,
    "echo 1 >/proc/sys/net/ipv4/ip_forward",
    "iptables -I FORWARD 1 -s 10.128.0.0/12 -j ACCEPT",
    "iptables -I FORWARD 2 -d 10.128.0.0/12 -j ACCEPT",
    "iptables -t nat -A POSTROUTING -s 10.128.0.0/12 ! -d 10.128.0.0/12 -j MASQUERADE",
  ].join("\n");
}
