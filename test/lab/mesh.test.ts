import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { dataEntries } from "../../provider/ipam/types";
import type { Values } from "../../provider/lifecycle/values";
import type { TunnelName } from "../../provider/network/plan/tunnels";
import { LabStack, must } from "./lab-stack";
import { lossDuring, tries } from "./pings";

/** `topology: mesh` on real kernels: one hub, three runners with a workload each, and a spare host. */
vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 }); // each test has several ups
let lab: Lab;
let stack: LabStack;
const SUBNETS = ["10.128.0.0/16/8/8", "fd00:128::/48/16/64"];
interface Case {
  device: string;
  port: number;
  mtu: number;
  hubDevices: string;
  /** Changes of the network, one after the other. */
  changes: Values[];
}
/** A new tunnel has no tests until it has a line here. */
const MESHES: Record<TunnelName, Case> = {
  vxlan: {
    ...{ device: "vxkrMV", port: 4790, mtu: 1450, hubDevices: "vxkr[1-9]" },
    changes: [{ topology: "hub" }, {}, { tunnel: "wireguard" }, {}],
  },
  wireguard: {
    ...{ device: "vxkrM0", port: 51822, mtu: 1440, hubDevices: "vxkrW0" },
    changes: [{ topology: "hub" }, {}, { keyGeneration: 1 }, { keyGeneration: 2 }],
  },
};
const RUNNERS = ["r1", "r2", "r3"] as const;
type Runner = (typeof RUNNERS)[number];
const idOf = (runner: Runner): number => Number(runner.slice(1));
const jobOf = (id: number): { 4: string; 6: string } => ({ 4: `10.128.${id}.9`, 6: `fd00:128:0:${id}::9` });

const sh = (host: string, script: string): Promise<string> => must(lab, host, script);
const ping = (host: string, target: string, options = ""): Promise<string> =>
  sh(host, `(${tries(`ip netns exec job ping -n -c 1 -W 1 ${options} ${target} >/dev/null`)})`);

async function addJob(host: string, id: number): Promise<void> {
  await lab.container(host, "job", {
    bridge: "kohaku-overlay",
    address: [`${jobOf(id)[4]}/24`, `${jobOf(id)[6]}/64`],
    gateway: [`10.128.${id}.1`, `fd00:128:0:${id}::1`],
  });
}

/** Ids of the runners to which this one sends directly, as its kernel has it. */
async function routesOf(host: string): Promise<{ 4: number[]; 6: number[] }> {
  const routes = (family: 4 | 6) => sh(host, `ip -${family} route show proto 183 | grep 'vxkrM' || :`);
  const ids4 = [...(await routes(4)).matchAll(/^10\.128\.(\d+)\.0\/24 /gm)];
  const ids6 = [...(await routes(6)).matchAll(/^fd00:128:0:(\d+)::\/64 /gm)];
  return {
    4: ids4.map(([, id]) => Number(id)).sort(),
    6: ids6.map(([, id]) => Number(id)).sort(),
  };
}

/** The same as the pool has it. */
async function storedRoutes(name: string): Promise<number[]> {
  const lease = (await stack.pool.leases("network/training")).find((each) => dataEntries(each).name === name)!;
  return (dataEntries(lease).directRoutes as string[]).map((route) => Number(route.split(":")[0])).sort();
}

const both = (...ids: number[]) => ({ 4: ids, 6: ids });

/** Packets lost of those to the workload of a runner, in IPv4 and IPv6, while `act` runs. */
async function lossOf(host: string, id: number, act: () => Promise<unknown>): Promise<[number, number]> {
  const other = jobOf(id);
  let lost6 = 0;
  const in6 = async () => {
    const { sent, lost } = await lossDuring(lab, { host, container: "job", target: other[6], log: "six" }, act);
    expect(sent).toBeGreaterThan(20);
    lost6 = lost;
  };
  const { sent, lost } = await lossDuring(lab, { host, container: "job", target: other[4] }, in6);
  expect(sent).toBeGreaterThan(20);
  return [lost, lost6];
}

const gatewayOf = (ip: string): string => ip.replace(/9$/, "1");

describe.each(Object.entries(MESHES))("with %s", (tunnel, { device, port, mtu, hubDevices, changes }) => {
  const MESH = { tunnel, topology: "mesh", subnets: SUBNETS };
  const folder = mkdtempSync(join(tmpdir(), "overlay-mesh-"));
  const store = `sqlite:${join(folder, "pool.db")}`;

  /** Packets of the overlay that the hub has received from runners so far. */
  const hubPackets = async (): Promise<number> => {
    const counts = await sh("hub", `cat /sys/class/net/${hubDevices}/statistics/rx_packets`);
    return counts.split("\n").reduce((sum, count) => sum + Number(count), 0);
  };

  beforeAll(async () => {
    lab = await Lab.up({ runners: 4 });
    stack = await LabStack.on(lab, store);
    stack.deps.warn = (text) => stack.warnings.push(text);
    await stack.network(MESH);
    for (const runner of RUNNERS) {
      await stack.runner(runner);
      await addJob(runner, idOf(runner));
    }
  });
  afterAll(async () => {
    await lab?.down();
    await stack?.pool.end();
    rmSync(folder, { recursive: true });
  });

  test("each runner that joined has routes to all others, on its host and in the pool, and is not behind", async () => {
    expect(stack.warnings.filter((text) => !text.startsWith("Hosts without systemd"))).toEqual([]);
    expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
    expect(await Promise.all(RUNNERS.map(storedRoutes))).toEqual([
      [2, 3],
      [1, 3],
      [1, 2],
    ]);
    expect(await Promise.all(RUNNERS.map((runner) => stack.diff("RunnerSubnet", runner)))).toEqual([
      false,
      false,
      false,
    ]);
    expect(await Promise.all(RUNNERS.map((runner) => stack.drift("RunnerSubnet", runner)))).toEqual([[], [], []]);
  });

  test.each([4, 6] as const)("full-size IPv%i packets between workloads do not pass the hub", async (family) => {
    await ping("r1", jobOf(2)[family]);
    const before = await hubPackets();
    await sh(
      "r1",
      `ip netns exec job ping -n -c 50 -i 0.01 -M do -s ${mtu - (family === 4 ? 28 : 48)} ${jobOf(2)[family]}`,
    );
    expect((await hubPackets()) - before).toBeLessThan(20);
    await ping("r1", family === 4 ? "10.128.0.1" : "fd00:128::1", `-M do -s ${mtu - (family === 4 ? 28 : 48)}`);
  });

  test("a direct path by which nothing passes any more is drift, also while those to other runners work", async () => {
    const { address } = lab.host("r1");
    const rule = `OUTPUT -p udp -d ${lab.host("r2").address} --dport ${port} -j DROP`;
    await sh("r1", `iptables -t raw -A ${rule}`);
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([
      `packets from the runner to other runners (10.128.2.1, fd00:128:0:2::1), which the hub reaches, do not get through (tried on ${address})`,
    ]);
    await sh("r1", `iptables -t raw -D ${rule}`);
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
  });

  test("without a direct route packets go by the hub, and a device that is gone is drift", async () => {
    await sh("r1", "ip route del 10.128.2.0/24; ip route del fd00:128:0:2::/64");
    for (const target of Object.values(jobOf(2))) await ping("r1", target);
    await sh("r1", `ip link del ${device}`);
    const drift = await stack.drift("RunnerSubnet", "r1");
    expect(drift).toContain(`${lab.host("r1").address}: link ${device}: missing`);
    await stack.refresh();
    await stack.runner("r1");
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
    for (const target of Object.values(jobOf(2))) await ping("r1", target);
  });

  test("while the hub is down, runners go on sending to each other", async () => {
    const setHub = (state: string) =>
      sh("hub", `cd /sys/class/net; for d in ${hubDevices}; do ip link set $d ${state}; done`);
    await setHub("down");
    const loss = await lossOf("r1", 2, async () => {});
    await setHub("up");
    expect(loss).toEqual([0, 0]);
    await stack.refresh();
    await stack.network(MESH);
    for (const runner of RUNNERS) await stack.runner(runner);
  });

  describe("others lose nothing", () => {
    test("while a runner moves to another host; they send to it there", async () => {
      const loss = await lossOf("r1", 2, () => stack.runner("r3", { connection: stack.at("r4") }));
      expect(loss).toEqual([0, 0]);
      expect(await findLeftovers(lab, "r3")).toBe("");
      expect(await Promise.all(["r1", "r2", "r4"].map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
      await addJob("r4", 3);
      for (const target of Object.values(jobOf(3))) await ping("r1", target);
    });

    test("while one leaves, and another runner gets its id", async () => {
      const loss = await lossOf("r1", 2, () => stack.remove("RunnerSubnet", "r3"));
      expect(loss).toEqual([0, 0]);
      expect(await findLeftovers(lab, "r4")).toBe("");
      expect([await routesOf("r1"), await routesOf("r2")]).toEqual([both(2), both(1)]);
      stack.nextRun();
      expect(await lossOf("r1", 2, () => stack.runner("other", { connection: stack.at("r3") }))).toEqual([0, 0]);
      expect(stack.props("RunnerSubnet", "other").runnerId).toBe(3);
      expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
      for (const target of Object.values(jobOf(3))) await sh("r1", tries(`ping -c 1 -W 1 ${gatewayOf(target)}`));
    });

    test.each(changes)("while the network changes to %j", async (inputs) => {
      stack.nextRun();
      const loss = await lossOf("r1", 2, async () => {
        await stack.network({ ...MESH, ...inputs });
        const moved = stack.runner("other", { connection: stack.at("r3") });
        await Promise.all([...["r1", "r2"].map((name) => stack.runner(name)), moved]);
      });
      expect(loss).toEqual([0, 0]);
      if (inputs.topology !== "hub")
        expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
      else for (const host of RUNNERS) expect(await sh(host, "ip -o link | grep -c vxkrM || :")).toBe("0");
    });
  });

  test("the id of a deleted runner is reserved until each host that had a route to it is changed", async () => {
    stack.warnings.splice(0);
    stack.unreachable.add(lab.host("r2").address);
    await stack.remove("RunnerSubnet", "other");
    const texts = stack.warnings.filter((text) => !text.startsWith("Hosts without systemd"));
    expect(texts).toEqual([
      expect.stringMatching(/^RunnerSubnet r2: its direct routes .* could not be changed; .*does not answer/),
      "RunnerSubnet other is deleted, but its id stays reserved until an up changes or deletes RunnerSubnet r2: hosts may still send to it directly.",
    ]);
    expect([await routesOf("r1"), await routesOf("r2")]).toEqual([both(2), both(1, 3)]);
    expect([await stack.diff("RunnerSubnet", "r1"), await stack.diff("RunnerSubnet", "r2")]).toEqual([false, true]);
    stack.nextRun();
    expect((await stack.runner("fourth", { connection: stack.at("r4") })).runnerId).toBe(4);
    stack.unreachable.clear();
    await stack.runner("r2");
    expect([await routesOf("r1"), await routesOf("r2")]).toEqual([both(2, 4), both(1, 4)]);
    await stack.remove("RunnerSubnet", "fourth");
    stack.nextRun();
    expect((await stack.runner("r3")).runnerId).toBe(3);
    expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
  });

  describe("runners of two stacks", () => {
    let second: LabStack;
    beforeAll(async () => {
      second = await LabStack.on(lab, store);
    });
    afterAll(async () => {
      await second.pool.end();
    });
    const behind = async () => [
      ...(await Promise.all(RUNNERS.map((runner) => stack.diff("RunnerSubnet", runner)))),
      await second.diff("RunnerSubnet", "r4"),
    ];
    const upBoth = async () => {
      for (const runner of RUNNERS) await stack.runner(runner);
      await second.runner("r4");
    };
    const expectRoutes = async () => {
      expect(await behind()).toEqual([false, false, false, false]);
      const ids = [1, 2, 3, 4];
      for (const host of [...RUNNERS, "r4"])
        expect([host, await routesOf(host)]).toEqual([host, both(...ids.filter((id) => !host.endsWith(String(id))))]);
    };

    test("one joins: all are behind, which a diff shows without contact to hosts, and the next up of each stack brings routes", async () => {
      await second.runner("r4");
      stack.nextRun();
      for (const host of RUNNERS) stack.unreachable.add(lab.host(host).address);
      expect(await behind()).toEqual([true, true, true, true]);
      stack.unreachable.clear();
      for (const target of Object.values(jobOf(4))) await sh("r1", tries(`ping -c 1 -W 1 ${gatewayOf(target)}`));
      await upBoth();
      await expectRoutes();
    });

    test("two join at once: the next two ups of each stack leave none behind", async () => {
      await second.remove("RunnerSubnet", "r4");
      await stack.remove("RunnerSubnet", "r3");
      for (const each of [stack, second]) each.nextRun();
      const joinFourth = () => second.runner("r4", { runnerId: 5 });
      await Promise.all([stack.runner("r3"), joinFourth()]);
      for (let up = 1; up <= 2; up++) {
        for (const runner of RUNNERS) await stack.runner(runner);
        await joinFourth();
      }
      expect(await behind()).toEqual([false, false, false, false]);
      expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3, 5), both(1, 3, 5), both(1, 2, 5)]);
      expect(await routesOf("r4")).toEqual(both(1, 2, 3));
    });

    test("one leaves: the next up of the other stack removes the routes to it", async () => {
      await second.remove("RunnerSubnet", "r4");
      for (const runner of RUNNERS) await stack.runner(runner);
      expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
    });
  });

  test("after a power cut of all hosts the boot scripts bring the direct routes back", async () => {
    for (const host of ["hub", ...RUNNERS]) {
      await lab.stop(host);
      await lab.start(host);
      expect(await lab.exec(host, "sh /var/lib/overlay/boot.sh")).toMatchObject({ code: 0 });
    }
    for (const runner of RUNNERS) await addJob(runner, idOf(runner));
    expect(await Promise.all(RUNNERS.map(routesOf))).toEqual([both(2, 3), both(1, 3), both(1, 2)]);
    for (const target of Object.values(jobOf(2))) await ping("r1", target);
    expect(await Promise.all(RUNNERS.map((runner) => stack.drift("RunnerSubnet", runner)))).toEqual([[], [], []]);
  });

  test("a destroy leaves nothing", async () => {
    await stack.destroy();
    for (const host of ["hub", ...RUNNERS]) expect([host, await findLeftovers(lab, host)]).toEqual([host, ""]);
  });
});
