import { Lab } from "../../lab/lab";
import { OverlayError } from "../../provider/errors";
import type { Fleet } from "../../provider/host/fleet";
import type { Values } from "../../provider/lifecycle/values";
import { LabStack, must } from "./lab-stack";
import { type Loss, lossOfAll, type Ping, tries } from "./pings";

/** A dual-stack network with three runners whose tunnels change while workloads ping each other, for tests and the benchmark of lost packets. */

export const SUBNETS = ["10.128.0.0/12/6/14", "fd00:128::/48/16/64"];
export const RUNNERS = ["r1", "r2", "r3"] as const;

/** Addresses in the subnets of the runner with this id, up to 63. */
export const jobs = (id: number, last: number) => ({
  4: `10.${128 + (id >> 2)}.${64 * (id % 4)}.${last}`,
  6: `fd00:128:0:${id.toString(16)}::${last}`,
});

/** A workload on the bridge of the runner with this id. */
export async function addJob(lab: Lab, host: string, name: string, id: number, last: number): Promise<void> {
  const { 4: v4, 6: v6 } = jobs(id, last);
  const gateway = Object.values(jobs(id, 1));
  await lab.container(host, name, { bridge: "kohaku-overlay", address: [`${v4}/18`, `${v6}/64`], gateway });
}

/** `job` sends as it is told; `redirected` sends to the hub's address itself, as after an ICMP redirect to everywhere. */
export const PINGS: Record<string, Ping> = {
  "workload to workload": { host: "r1", container: "job", target: jobs(2, 9)[4] },
  "workload to workload, IPv6": { host: "r2", container: "job", target: jobs(1, 9)[6] },
  "workload to a third runner": { host: "r3", container: "job", target: jobs(1, 9)[4] },
  "redirected workload": { host: "r1", container: "redirected", target: jobs(2, 9)[4] },
  "redirected workload, IPv6": { host: "r1", container: "redirected", target: jobs(2, 9)[6] },
  "workload to the hub's address in its subnet": { host: "r2", container: "job", target: "10.128.128.254" },
  "the same in IPv6": { host: "r2", container: "job", target: "fd00:128:0:2::fe" },
  "runner to the hub": { host: "r1", target: "10.128.0.1" },
  "runner to the hub, IPv6": { host: "r1", target: "fd00:128::1" },
  "hub to a workload": { host: "hub", target: jobs(3, 9)[4] },
};

export class LiveTunnels {
  private constructor(
    readonly lab: Lab,
    readonly stack: LabStack,
  ) {}

  /** `strict`: reverse path filtering of all devices, also those made later. */
  static async up(network: Values = {}, strict = false): Promise<LiveTunnels> {
    const lab = await Lab.up({ runners: RUNNERS.length });
    const live = new LiveTunnels(lab, await LabStack.on(lab));
    if (strict) {
      const set = "for c in all default; do echo 1 >/proc/sys/net/ipv4/conf/$c/rp_filter; done";
      for (const host of ["hub", ...RUNNERS]) await must(lab, host, set);
    }
    await live.put(network);
    for (const [i, host] of RUNNERS.entries()) {
      await addJob(lab, host, "job", i + 1, 9);
      await addJob(lab, host, "redirected", i + 1, 8);
    }
    const redirect = (family: string, to: string, via: string) => `ip ${family} route add ${to} via ${via}`;
    await must(
      lab,
      "r1",
      `ip netns exec redirected sh -c '${redirect("-4", "10.128.128.0/18", "10.128.64.254")}; ${redirect("-6", "fd00:128:0:2::/64", "fd00:128:0:1::fe")}'`,
    );
    for (const { host, container, target } of Object.values(PINGS)) {
      const from = container === undefined ? "" : `ip netns exec ${container} `;
      await must(lab, host, `(${tries(`${from}ping -n -c 1 -W 1 ${target} >/dev/null`)})`);
    }
    return live;
  }

  /**
   * The redirected workload gets its way by an ICMP redirect of its runner, which it caches for 300 s, instead of a route. Only in IPv4: in
   * IPv6 the kernel redirects to link-local gateways alone. Our rules drop redirects, so they are away meanwhile. Needs VXLAN: with a tunnel that
   * routes, packets do not leave by the bridge by which they came.
   */
  async learnRedirect(): Promise<void> {
    const { target } = PINGS["redirected workload"]!;
    const inside = "ip netns exec redirected";
    await must(
      this.lab,
      "r1",
      `${inside} ip route del 10.128.128.0/18 2>/dev/null || :
      iptables-save -t raw >/tmp/raw; iptables -t raw -F OVERLAY-OUT
      ${inside} ip route flush cache; ${inside} ping -c 3 -i 0.2 -W 1 ${target}
      iptables-restore -T raw </tmp/raw`,
    );
    const route = await must(this.lab, "r1", `ip -n redirected route get ${target}`);
    if (!/via 10\.128\.64\.254 .*\n\s+cache <redirected>/.test(route))
      throw new Error(`The workload has cached no redirect: ${route}`);
  }

  /** An up of the whole stack. */
  async put(network: Values = {}, runners: readonly string[] = RUNNERS): Promise<void> {
    this.stack.nextRun();
    await this.stack.network({ subnets: SUBNETS, ...network });
    await Promise.all(runners.map((name) => this.stack.runner(name)));
  }

  /** An up of the network and of r1 that ends before its change of a host with this number, from 0 on. */
  async putKilled(changes: number, network: Values): Promise<void> {
    await this.put(network, []);
    const { fleet } = this.stack.deps;
    let left = changes;
    const apply: Fleet["apply"] = (...args) => {
      if (left-- > 0) return fleet.apply(...args);
      throw new OverlayError("SSH_UNREACHABLE", "The run was killed.", "Run it again.");
    };
    this.stack.deps.fleet = { ...fleet, apply };
    await this.stack.runner("r1").then(
      () => Promise.reject(new Error("it was not killed")),
      (error: Error) => (/The run was killed/.test(error.message) ? undefined : Promise.reject(error)),
    );
  }

  lossDuring(act: () => Promise<unknown>): Promise<Record<string, Loss>> {
    return lossOfAll(this.lab, PINGS, act);
  }

  /** The names of those that lost packets, with how many. */
  async lostDuring(act: () => Promise<unknown>): Promise<Record<string, string>> {
    const losses = Object.entries(await this.lossDuring(act)).filter(([, { lost, sent }]) => lost > 0 || sent < 50);
    return Object.fromEntries(losses.map(([name, { lost, sent }]) => [name, `${lost} of ${sent}`]));
  }

  async drift(): Promise<unknown[]> {
    const runners = await Promise.all(RUNNERS.map((name) => this.stack.drift("RunnerSubnet", name)));
    return [await this.stack.drift("OverlayNetwork", "training"), ...runners].flat();
  }

  /** Tunnel devices of a host. */
  devices(host: string): Promise<string> {
    return must(this.lab, host, "ls /sys/class/net | grep '^vxkr' | sort | tr '\\n' ' '");
  }
}
