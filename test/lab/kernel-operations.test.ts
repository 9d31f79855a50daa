import { setImmediate } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseIp } from "../../provider/addressing/ip";
import { parseLayout } from "../../provider/addressing/layout";
import type { Host } from "../../provider/host/connection";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ConversationReport } from "../../provider/host/reconcile/requests";
import type { Item } from "../../provider/network/model/items";
import { type Network, planHub, planRunner, planTunnel } from "../../provider/network/plan/hub";
import { training } from "../network";
import vectors from "../vectors/kernel_operations.json";
import { labHost } from "./lab-stack";

/**
 * We configure a host as KohakuRiver does, except where the vectors say FLAW. Existing devices are those of an earlier lease of
 * the same runner, or of another program.
 */
let lab: Lab;
let host: Host;
let reports: ConversationReport[];

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
});
afterAll(async () => {
  await lab?.down();
});
beforeEach(async () => {
  await lab.rebuild("hub");
  host = labHost(lab, "hub");
  reports = [];
});

const apply = (uid: string, items: Item[], adopt = false) =>
  new Reconciler((report) => reports.push(report)).apply(host, {
    record: { uid, owner: uid, network: "training", store: "s" },
    items,
    adopt,
    fence: async () => {},
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  });
/** A conversation is reported after its requests are answered. */
const lastSteps = async (): Promise<number> => {
  await setImmediate();
  return reports.at(-1)!.steps;
};
const sh = async (script: string): Promise<string> => (await lab.exec("hub", script)).stdout.trim();

interface ExistingDevice {
  name: string;
  kind: string;
  addrs?: string[];
  vni?: number;
  remote?: string;
}
type Vector = Omit<(typeof vectors.runner)[number], "preexisting"> & { preexisting: ExistingDevice[] };
const RUNNERS = vectors.runner as Vector[];

const layoutText = (cidr: string, subnet: string): string => {
  const [base, prefix] = cidr.split("/") as [string, string];
  const length = Number(subnet.split("/")[1]);
  return `${base}/${prefix}/${length - Number(prefix)}/${32 - length}`;
};

const network = (subnets: string, changes: Partial<Network> = {}): Network =>
  training({ layouts: [parseLayout(subnets)], ...changes });

function runnerItems({ config, base, mtu, port }: Vector, runnerId = config.runner_id, vniBase = base): Item[] {
  const subnets = layoutText(config.overlay_network_cidr, config.subnet);
  const ends = [config.host_physical_ip, config.runner_physical_ip].map((underlayIp) => ({
    underlayIp,
    underlayMtu: 9000,
  }));
  return planRunner(network(subnets, { vniBase, vxlanPort: port, mtu }), runnerId, "vxlan0", ends[0]!, ends[1]!);
}

/** Configures the earlier runner of these devices: its id follows from the bridge's address, its VNIs from the tunnel's. */
async function configureEarlierRunner(vector: Vector): Promise<void> {
  const bridge = vector.preexisting.find(({ kind }) => kind === "bridge");
  const tunnel = vector.preexisting.find(({ kind }) => kind === "vxlan");
  if (!bridge || !tunnel) return;
  const layout = parseLayout(layoutText(vector.config.overlay_network_cidr, vector.config.subnet));
  const runnerId = Number((parseIp(bridge.addrs![0]!) - layout.base) >> BigInt(layout.subnetBits));
  await apply("r1", runnerItems(vector, runnerId, tunnel.vni! - runnerId));
}

/** Removes the lab's own address if it is in the overlay's range. */
const flushLabNetwork = (cidr: string): Promise<string> =>
  sh(cidr === "10.0.0.0/8" ? "ip -4 addr flush dev eth0" : ":");

const addressesOf = (dev: string): Promise<string> =>
  sh(`ip -4 -o addr show dev ${dev} | awk '{ split($4, a, "/"); print a[1] }' | xargs`);
const remoteOf = (dev: string): Promise<string> =>
  sh(`ip -d link show ${dev} | grep -o 'remote [0-9.]*' | cut -d' ' -f2`);

const sound = RUNNERS.filter(({ name }) => !name.startsWith("FLAW"));
const flaw = (start: string): Vector => RUNNERS.find(({ name }) => name.startsWith(`FLAW ${start}`))!;

describe("a runner", () => {
  test.each(sound.map((vector) => [vector.name, vector] as const))("%s", async (_, vector) => {
    await flushLabNetwork(vector.config.overlay_network_cidr);
    await configureEarlierRunner(vector);
    await apply("r1", runnerItems(vector));
    for (const [dev, addresses] of Object.entries(vector.finalAddresses))
      expect(await addressesOf(dev)).toBe(addresses.join(" "));
    for (const [dev, remote] of Object.entries(vector.finalVxlanRemote)) expect(await remoteOf(dev)).toBe(remote);
    for (const [dst, prefix, via] of vector.finalRoutes)
      expect(await sh(`ip route show ${dst}/${prefix}`)).toContain(`via ${via} dev kohaku-overlay`);
    const { config, base, mtu, port } = vector;
    const tunnel = await sh("ip -d link show vxlan0");
    expect(tunnel).toContain(`vxlan id ${base + config.runner_id} `);
    expect(tunnel).toContain(`dstport ${port} `);
    expect(tunnel).toMatch(new RegExp(`mtu ${mtu} .*master kohaku-overlay`));
    await apply("r1", runnerItems(vector));
    expect(await lastSteps()).toBe(0);
  });

  test("FLAW, corrected: a runner that moved to another subnet has only its new address and route", async () => {
    const vector = flaw("runner moved");
    await configureEarlierRunner(vector);
    expect(await addressesOf("kohaku-overlay")).toBe("10.128.64.1");
    await apply("r1", runnerItems(vector));
    expect(await addressesOf("kohaku-overlay")).toBe("10.128.128.1");
    expect(await sh("ip route show 10.128.0.0/12")).toContain("via 10.128.128.254");
  });

  test("FLAW, corrected: a foreign vxlan0 with another VNI is refused, and not changed", async () => {
    const vector = flaw("a foreign vxlan0");
    const [theirs] = vector.preexisting;
    await sh(`ip link add vxlan0 type vxlan id ${theirs!.vni} dstport 4789 remote ${theirs!.remote}`);
    const before = await sh("ip -o link; ip route; iptables-save | grep OVERLAY; ls -d /var/lib/overlay");
    await expect(apply("r1", runnerItems(vector))).rejects.toThrow(
      "DEVICE_FOREIGN: hub: There is already a device vxlan0 (vxlan, VNI 7)",
    );
    expect(await sh("ip -o link; ip route; iptables-save | grep OVERLAY; ls -d /var/lib/overlay")).toBe(before);
  });
});

describe("a hub", () => {
  test.each(vectors.host.map((vector) => [vector.name, vector] as const))("%s", async (_, { subnet, preexisting }) => {
    for (const { name, addrs } of preexisting)
      await sh(
        `{ ip link add ${name} type dummy || ip link add ${name} type bridge; }; ip addr add ${addrs[0]}/12 dev ${name}`,
      );
    await flushLabNetwork(parseLayout(subnet).cidr);
    await apply("net", planHub(network(subnet)), preexisting.length > 0);
    const { hubIp, cidr } = parseLayout(subnet);
    expect(await addressesOf("kohaku-host")).toContain(hubIp);
    expect(await sh("cat /sys/class/net/kohaku-host/flags /proc/sys/net/ipv4/ip_forward | xargs")).toMatch(
      /[13579bdf] 1$/,
    );
    // KohakuRiver's own rules have no effect after a reject; ours are inserted before it.
    expect(await sh("iptables -S FORWARD 1")).toBe("-A FORWARD -j OVERLAY-FWD");
    await sh(`iptables -C OVERLAY-FWD -s ${cidr} -d ${cidr} -i vxkr+ -o vxkr+ -j ACCEPT`);
  });
});

describe("objects of other programs", () => {
  const plain = network("10.128.0.0/12/6/14");
  const there = { underlayIp: "10.254.1.9", underlayMtu: 1500 };
  const here = { underlayIp: "10.254.0.1", underlayMtu: 1500 };

  test("a foreign vxkr9 stays when its runner is created, and when all of ours is removed", async () => {
    await sh(
      "ip link add vxkr9 type vxlan id 4242 dstport 9999 remote 10.254.7.7; ip addr add 192.168.9.9/24 dev vxkr9",
    );
    const before = await sh("ip -d -o link show vxkr9; ip -o addr show vxkr9");
    await apply("net", planHub(plain));
    await apply("r1", planTunnel(plain, 1, here, there));
    await expect(apply("r9", planTunnel(plain, 9, here, there))).rejects.toThrow(
      "DEVICE_FOREIGN: hub: There is already a device vxkr9",
    );
    await apply("r1", []);
    await apply("net", []);
    expect(await sh("ip -d -o link show vxkr9; ip -o addr show vxkr9")).toBe(before);
  });

  test.each(["10.128.0.0/12", "10.130.0.0/16"])("a foreign route to %s is refused, and not changed", async (dst) => {
    await sh(`ip route add ${dst} via 10.254.9.9`);
    const before = await sh("ip -o link; ip route; ls -d /var/lib/overlay");
    await expect(apply("r1", planRunner(plain, 1, "vxkr1", there, here))).rejects.toThrow(
      new RegExp(`ROUTE_OVERLAP: hub: .* route .*${dst} .*via 10.254.9.9 dev eth0`),
    );
    expect(await sh("ip -o link; ip route; ls -d /var/lib/overlay")).toBe(before);
  });

  test("a wider foreign route stays while ours exists, and after its removal", async () => {
    await sh("ip route add 10.0.0.0/8 via 10.254.9.9");
    await apply("r1", planRunner(plain, 1, "vxkr1", there, here));
    await apply("r1", []);
    expect(await sh("ip route show 10.0.0.0/8")).toBe("10.0.0.0/8 via 10.254.9.9 dev eth0");
  });
});
