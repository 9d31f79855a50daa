import { setTimeout as sleep } from "node:timers/promises";
import { Lab } from "../../lab/lab";
import type { Values } from "../../provider/lifecycle/values";
import { LabStack, must } from "./lab-stack";

/** Every kind of change of a live network, for a test of their effect and for the benchmark of lost packets. */
export interface Update {
  name: string;
  /** In place: no device is created again, and no packet may be lost. */
  effect: "in place" | "without loss" | "with loss";
  /** Changes hosts first, without Pulumi. */
  before?(lab: Lab): Promise<unknown>;
  act(live: Live): Promise<unknown>;
  after?(lab: Lab): Promise<unknown>;
}

/** A hub, a spare host for a second one, two runners with a workload each. */
export class Live {
  private constructor(
    readonly lab: Lab,
    readonly stack: LabStack,
  ) {}

  static async up(): Promise<Live> {
    const lab = await Lab.up({ runners: 3 });
    const live = new Live(lab, await LabStack.on(lab));
    await live.put();
    for (const [i, host] of ["r1", "r2"].entries()) {
      const subnet = `10.128.${64 * (i + 1)}`;
      const inside = { bridge: "kohaku-overlay", address: `${subnet}.10/18`, gateway: `${subnet}.1` };
      await lab.container(host, "c1", inside);
    }
    return live;
  }

  /** An up of the whole stack: the network, then both runners at once. */
  async put(network: Values = {}, r1: Values = {}, hub = "hub"): Promise<void> {
    await this.stack.network(network, hub);
    await Promise.all([this.stack.runner("r1", r1, hub), this.stack.runner("r2", {}, hub)]);
  }

  /** Reads the hosts without changes. */
  async look(): Promise<void> {
    await Promise.all([this.stack.drift("RunnerSubnet", "r1"), this.stack.drift("RunnerSubnet", "r2")]);
  }

  /** Devices with their ifindex: one that was created again has another. */
  async devices(): Promise<string> {
    const list = "ip -o link show | grep -oE '^[0-9]+: (vxkr|kohaku)[0-9a-z-]*'";
    return (await Promise.all(["hub", "r1", "r2"].map((host) => must(this.lab, host, list)))).join("\n");
  }
}

const address = (host: string, more: string) => (lab: Lab) => must(lab, host, `ip addr add ${more}/16 dev eth0`);
const gone = (host: string, less: string) => (lab: Lab) => must(lab, host, `ip addr del ${less}/16 dev eth0`);

export const UPDATES: Update[] = [
  {
    name: "underlay address of a runner",
    effect: "in place",
    before: address("r1", "10.254.77.1"),
    act: (live) => live.put({}, { underlayIp: "10.254.77.1" }),
  },
  {
    name: "back to the first one",
    effect: "in place",
    act: (live) => live.put(),
    after: gone("r1", "10.254.77.1"),
  },
  {
    name: "underlay address of the hub",
    effect: "in place",
    before: address("hub", "10.254.77.2"),
    act: (live) => live.put({ hubUnderlayIp: "10.254.77.2" }),
  },
  { name: "back to the first", effect: "in place", act: (live) => live.put(), after: gone("hub", "10.254.77.2") },
  { name: "MTU", effect: "in place", act: (live) => live.put({ mtu: 1400 }) },
  { name: "masquerade off", effect: "in place", act: (live) => live.put({ mtu: 1400, masquerade: false }) },
  { name: "masquerade on", effect: "in place", act: (live) => live.put({ mtu: 1400 }) },
  {
    name: "repair: chains flushed, jump behind another rule",
    effect: "in place",
    before: (lab) => must(lab, "hub", "iptables -F OVERLAY-FWD; iptables -I FORWARD 1 -s 192.0.2.1 -j ACCEPT"),
    act: (live) => live.stack.refresh().then(() => live.put({ mtu: 1400 })),
    after: (lab) => must(lab, "hub", "iptables -D FORWARD -s 192.0.2.1 -j ACCEPT"),
  },
  {
    name: "repair: the bridge's MTU",
    effect: "in place",
    before: (lab) => must(lab, "r1", "ip link set kohaku-overlay mtu 1380"),
    act: (live) => live.stack.refresh().then(() => live.put({ mtu: 1400 })),
  },
  {
    name: "sshd of the hub restarts",
    effect: "in place",
    act: async ({ lab }) => {
      await must(lab, "hub", "kill $(cat /run/sshd.pid); sleep 0.2; /usr/sbin/sshd -E /run/sshd.log || :");
      await sleep(300);
    },
  },
  { name: "VNI base", effect: "without loss", act: (live) => live.put({ mtu: 1400, vniBase: 300 }) },
  { name: "UDP port", effect: "without loss", act: (live) => live.put({ mtu: 1400, vniBase: 300, vxlanPort: 4790 }) },
  {
    name: "hub moves to another host",
    effect: "with loss",
    act: (live) => live.put({ mtu: 1400, vniBase: 300, vxlanPort: 4790 }, {}, "r3"),
  },
];

export const PING = { host: "r1", container: "c1", target: "10.128.128.10" };
