import * as pulumi from "@pulumi/pulumi";
import { IPPool, IPReservation, OverlayNetwork, RunnerSubnet, StaticIP } from "../../sdk";

/**
 * Programs that must compile, and lines that must not: `tsc --noEmit` fails when a line below `@ts-expect-error` has no
 * error. Nothing here runs.
 */
export function good(connection: { host: string; user: string; privateKey: pulumi.Output<string> }): void {
  const network = new OverlayNetwork("n", {
    hubConnection: connection,
    mtu: "auto",
    onExhausted: "reclaimInactive",
    docker: { enabled: "off" },
    subnets: ["10.128.0.0/12/6/14", "fd00:128::/40/6/82"],
    labels: { team: pulumi.output("red") },
  });
  const mtu: pulumi.Output<"auto" | number> = network.mtu;
  const runner = new RunnerSubnet("r", { network, connection: pulumi.output(connection), docker: { range: "1/8" } });
  const pool = new IPPool("p", { ranges: [runner.subnet, "10.0.0.0/24"], allocation: "lowest", type: "vip" });
  const onRunner = new IPReservation("a", { runner, kind: "vm", ttl: true });
  const onNetwork = new IPReservation("b", { network: "training", placement: "spread", ttl: mtu.apply(() => 60) });
  new IPReservation("c", { pool, usedBy: undefined, network: undefined });
  new IPReservation("d", { type: "clusterIP", tenant: { org: "acme", project: "web" } });
  new IPPool("children", { parent: pool, prefixLength: 28, reserved: [onRunner.ip], staticOnly: [onNetwork.ip] });
  new StaticIP("s", {
    pool,
    attach: network,
    onConflict: "take",
    forwards: [{ port: 80, to: onRunner.ip, protocol: "udp" }, pulumi.output({ port: 443, to: "10.0.0.1" })],
    runners: [runner, "training/r2"],
  });
}

export function bad(connection: { host: string }, pool: IPPool, network: OverlayNetwork): void {
  // @ts-expect-error: no such allocation
  new IPPool("p", { ranges: ["10.0.0.0/24"], allocation: "lowset" });
  // @ts-expect-error: no such type
  new IPPool("p", { ranges: ["10.0.0.0/24"], type: "clusterIp" });
  // @ts-expect-error: no such choice
  new OverlayNetwork("n", { hubConnection: connection, onExhausted: "reclaim" });
  // @ts-expect-error: the only string is auto
  new OverlayNetwork("n", { hubConnection: connection, mtu: "automatic" });
  // @ts-expect-error: no such choice
  new OverlayNetwork("n", { hubConnection: connection, docker: { enabled: "yes" } });
  // @ts-expect-error: no such property
  new OverlayNetwork("n", { hubConnection: { host: "h", prot: 22 } });
  // @ts-expect-error: a host is missing
  new OverlayNetwork("n", { hubConnection: { user: "root" } });
  // @ts-expect-error: no such placement
  new IPReservation("a", { network, placement: "mostfree" });
  // @ts-expect-error: no such kind
  new IPReservation("a", { network, kind: "VM" });
  // @ts-expect-error: a ttl is true or a number
  new IPReservation("a", { network, ttl: false });
  // @ts-expect-error: no pool, runner or network
  new IPReservation("a", {});
  // @ts-expect-error: a tenant without a type
  new IPReservation("a", { tenant: { org: "acme", project: "web" } });
  // @ts-expect-error: in a pool or on a network, not both
  new IPReservation("a", { network, pool });
  // @ts-expect-error: no such protocol
  new StaticIP("s", { pool, attach: network, forwards: [{ port: 80, to: "10.0.0.1", protocol: "TCP" }] });
  // @ts-expect-error: no such choice
  new StaticIP("s", { pool, attach: network, onConflict: "steal" });
  // @ts-expect-error: a network is no pool
  new StaticIP("s", { pool: network, attach: network });
}
