import { setImmediate } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { LabDocker } from "../../lab/docker";
import { Lab } from "../../lab/lab";
import { parseLayout, tapName } from "../../provider/addressing/layout";
import type { Host } from "../../provider/host/connection";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest, ConversationReport } from "../../provider/host/reconcile/requests";
import { formatDifference } from "../../provider/network/kinds";
import type { Item } from "../../provider/network/model/items";
import { type Network, planHub, planRunner, planTunnel } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost } from "./lab-stack";

/**
 * One overlay with Debian's dockerd on its runners: on r1 it was there first and has FORWARD at DROP, on r2 it comes later.
 * Tests build on each other.
 */
let lab: Lab;
let docker: LabDocker;
/** Why Docker cannot run here. */
let why: string | undefined;

const dockerTest = (name: string, body: () => Promise<void>) =>
  test(name, async ({ skip }) => {
    skip(why !== undefined, why);
    await body();
  });

const reports: ConversationReport[] = [];
const warnings: string[] = [];
const reconciler = new Reconciler((report) => reports.push(report), { warn: (text) => warnings.push(text) });

const network = (changes: Partial<Network> = {}) =>
  training({
    layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")],
    mtu: "auto",
    docker: { name: "kohakuriver-overlay", required: false, share: 4 },
    ...changes,
  });
const underlayOf = (name: string) => ({ underlayIp: lab.host(name).address, underlayMtu: 1500 });
const hostOf = (name: string): Host => labHost(lab, name);
const work = (uid: string, items: Item[], more: Partial<ApplyRequest> = {}): ApplyRequest => ({
  record: { uid, owner: uid, network: "training", store: "s" },
  items,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
  ...more,
});
const runnerItems = (id: number, changes: Partial<Network> = {}): Item[] =>
  planRunner(network(changes), id, `vxkr${id}`, underlayOf("hub"), underlayOf(`r${id}`));
const apply = (name: string, items: Item[], more: Partial<ApplyRequest> = {}) =>
  reconciler.apply(hostOf(name), work(name, items, more));
const drift = async (id: number): Promise<string[]> => {
  const { differences } = await reconciler.inspect(hostOf(`r${id}`), work(`r${id}`, runnerItems(id)));
  return differences.map(formatDifference);
};

/** A conversation is reported after its works are answered. */
const lastSteps = async (): Promise<number> => {
  await setImmediate();
  return reports.at(-1)!.steps;
};
const sh = async (host: string, script: string): Promise<string> => {
  const { code, stdout, stderr } = await lab.exec(host, script);
  if (code !== 0) throw new Error(`${host}: ${script}: ${stderr}`);
  return stdout.trim();
};
const ping = (host: string, container: string, target: string): Promise<string> =>
  sh(
    host,
    `for i in $(seq 20); do docker exec ${container} /bin/ping -c 1 -W 1 ${target} && exit; sleep 0.2; done; exit 1`,
  );
const bridge = (host: string): Promise<string> =>
  sh(host, "cat /sys/class/net/kohaku-overlay/address /sys/class/net/kohaku-overlay/mtu | xargs");
const runContainer = (host: string, name: string, options = ""): Promise<string> =>
  sh(
    host,
    `docker run -d --restart always --stop-signal KILL --name ${name} --network kohakuriver-overlay ${options} busybox /bin/sleep 9999`,
  );

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  docker = new LabDocker(lab);
  why = await docker.findObstacle("r1");
  if (why) return console.warn(`\nSKIPPED: all tests with Docker, since it cannot run here: ${why}\n`);
  await apply("hub", planHub(network()));
  for (const id of [1, 2])
    await reconciler.apply(
      hostOf("hub"),
      work(`tunnel${id}`, planTunnel(network(), id, underlayOf("hub"), underlayOf(`r${id}`))),
    );
});

afterAll(async () => {
  if (docker && !why) for (const host of ["r1", "r2"]) await docker.stop(host);
  await lab?.down();
});

dockerTest("with Docker installed first and FORWARD at DROP, its network is created with the other items", async () => {
  expect(await sh("r1", "iptables -S FORWARD | head -1")).toBe("-P FORWARD DROP");
  await apply("r1", runnerItems(1));
  expect(await drift(1)).toEqual([]);
  const seen = JSON.parse(await sh("r1", "docker network inspect kohakuriver-overlay"))[0];
  expect(seen.IPAM.Config).toEqual([
    {
      Subnet: "10.128.64.0/18",
      IPRange: "10.128.112.0/20",
      Gateway: "10.128.64.1",
      AuxiliaryAddresses: { hub: "10.128.64.254" },
    },
    {
      Subnet: "fd00:128:0:1::/64",
      IPRange: "fd00:128:0:1:8000::/66",
      Gateway: "fd00:128:0:1::1",
      AuxiliaryAddresses: { hub6: "fd00:128:0:1::fe" },
    },
  ]);
  await apply("r1", runnerItems(1));
  expect(await lastSteps()).toBe(0);
});

dockerTest("with Docker installed later, the network is drift, and the next up creates it", async () => {
  await apply("r2", runnerItems(2));
  expect(await sh("r2", "cat /var/lib/overlay/training/r2.json")).not.toContain('"docker"');
  await docker.start("r2");
  expect(await sh("r2", "iptables -S FORWARD | head -1")).toBe("-P FORWARD ACCEPT");
  expect(await drift(2)).toEqual(["docker network kohakuriver-overlay: missing"]);
  await apply("r2", runnerItems(2));
  expect(await drift(2)).toEqual([]);
});

dockerTest("containers on two runners reach each other by the addresses that were reserved for them", async () => {
  await runContainer("r1", "alpha", "--ip 10.128.64.9 --ip6 fd00:128:0:1::9");
  await runContainer("r2", "beta", "--ip 10.128.128.7 --ip6 fd00:128:0:2::7");
  await ping("r1", "alpha", "10.128.128.7");
  await ping("r2", "beta", "10.128.64.9");
  await ping("r1", "alpha", "fd00:128:0:2::7");
  await ping("r2", "beta", "fd00:128:0:1::9");
  await ping("r2", "beta", "10.128.0.1");
});

dockerTest(
  "a deleted bridge is created again with the ports of its workloads, and unknown ports are reported",
  async () => {
    await lab.container("r1", "job", {
      bridge: "kohaku-overlay",
      address: ["10.128.64.20/18", "fd00:128:0:1::20/64"],
      gateway: ["10.128.64.1", "fd00:128:0:1::1"],
    });
    const ours = tapName("training", "10.128.64.30");
    const tap = (name: string) => `ip tuntap add dev ${name} mode tap && ip link set ${name} master kohaku-overlay up`;
    await sh("r1", `${tap(ours)} && ${tap("vnet7")}`);
    const elsewhere = "ip netns add apart && ip link add ve-apart type veth peer name eth0 netns apart";
    await sh("r1", `${elsewhere} && ip -n apart addr add 172.20.0.2/24 dev eth0 && ip link set ve-apart up`);
    const ports = () => sh("r1", "ls /sys/class/net/kohaku-overlay/brif | sort | xargs");
    const before = await ports();
    expect(before.split(" ")).toHaveLength(5);

    await sh("r1", "ip link del kohaku-overlay");
    expect(await drift(1)).toContain("link kohaku-overlay: missing");
    warnings.splice(0);
    await apply("r1", runnerItems(1));
    expect(await drift(1)).toEqual([]);
    expect(await ports()).toBe(
      before
        .split(" ")
        .filter((port) => port !== "vnet7")
        .join(" "),
    );
    expect(warnings).toEqual([
      "r1: vnet7 is no port of a bridge and has no address. If a workload of this network uses it: `ip link set dev vnet7 master kohaku-overlay`.",
    ]);
    await ping("r1", "alpha", "10.128.128.7");
    await ping("r1", "alpha", "fd00:128:0:2::7");
    await sh(
      "r1",
      "for i in $(seq 10); do ip netns exec job ping -c 1 -W 1 10.128.128.7 && exit; sleep 0.2; done; exit 1",
    );

    await sh("r1", "ip netns del job");
    // Another program creates it again, without its ports.
    await sh(
      "r1",
      "for port in $(ls /sys/class/net/kohaku-overlay/brif); do case $port in veth*) ip link set $port nomaster; esac; done",
    );
    expect(await drift(1)).toEqual(["link kohaku-overlay: it has 0 ports, but 1 containers run on its network"]);
    await apply("r1", runnerItems(1));
    expect(await drift(1)).toEqual([]);
    await ping("r1", "alpha", "10.128.128.7");
    await sh("r1", `ip link del ${ours}; ip link del vnet7; ip netns del apart`);
  },
);

dockerTest("Docker assigns addresses of its own range, and never the hub's address", async () => {
  await runContainer("r1", "picked");
  const address = await sh(
    "r1",
    "docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}' picked",
  );
  expect(address).toMatch(/^10\.128\.112\.\d+ fd00:128:0:1:8000::/);
  await ping("r1", "picked", "10.128.128.7");
  await expect(runContainer("r1", "second", "--ip 10.128.64.254")).rejects.toThrow("Address already in use");
  await sh("r1", "docker rm -f second picked");
});

dockerTest("a restart of dockerd changes nothing of ours, and containers reach each other again", async () => {
  const before = await bridge("r1");
  await docker.restart("r1");
  expect(await bridge("r1")).toBe(before);
  expect(await drift(1)).toEqual([]);
  await ping("r1", "alpha", "10.128.128.7");
  await ping("r2", "beta", "fd00:128:0:1::9");
});

/** How many of two pings are answered. */
const reached = async (container: string, target: string): Promise<number> =>
  Number(
    await sh(
      "r1",
      `docker exec ${container} /bin/ping -c 2 -W 1 ${target} | sed -n 's/.* \\([0-9]*\\) packets received.*/\\1/p'`,
    ),
  );

dockerTest("networks that Docker isolates stay isolated, before and after a restart of dockerd", async () => {
  await sh("r1", "docker run -d --restart always --stop-signal KILL --name plain busybox /bin/sleep 9999");
  for (const round of ["before", "after"]) {
    const plain = await sh("r1", "docker inspect -f '{{.NetworkSettings.Networks.bridge.IPAddress}}' plain");
    expect([round, await reached("alpha", plain), await reached("plain", "10.128.64.9")]).toEqual([round, 0, 0]);
    await ping("r1", "alpha", "10.128.128.7");
    if (round === "before") await docker.restart("r1");
  }
  await sh("r1", "docker rm -f plain");
});

dockerTest("packets that an administrator drops in DOCKER-USER are dropped, before and after the next up", async () => {
  await sh("r1", "iptables -I DOCKER-USER -s 10.128.64.9 -d 10.128.128.7 -j DROP");
  expect(await reached("alpha", "10.128.128.7")).toBe(0);
  await apply("r1", runnerItems(1, { masquerade: false }));
  await apply("r1", runnerItems(1));
  expect(await drift(1)).toEqual([]);
  expect(await reached("alpha", "10.128.128.7")).toBe(0);
  await sh("r1", "iptables -D DOCKER-USER -s 10.128.64.9 -d 10.128.128.7 -j DROP");
  await ping("r1", "alpha", "10.128.128.7");
});

dockerTest(
  "a Docker network keeps its MTU while containers use it, which learn the new one; it is made again after that",
  async () => {
    const mtuOption = () =>
      sh("r1", "docker network inspect -f '{{json .Options}}' kohakuriver-overlay | grep -o 'mtu\":\"[0-9]*'");
    const small = { mtu: 1400 };
    const driftOfSmall = async () =>
      (await reconciler.inspect(hostOf("r1"), work("r1", runnerItems(1, small)))).differences.map(formatDifference);
    await apply("r1", runnerItems(1, small));
    const notice =
      "Docker network kohakuriver-overlay keeps its MTU of 1450 while containers use it (alpha); packets larger than 1400";
    expect(warnings.join("\n")).toContain(notice);
    expect(await bridge("r1")).toContain(" 1400");
    expect(await mtuOption()).toBe('mtu":"1450');
    expect(await driftOfSmall()).toEqual([]);
    const inside = "nsenter -n -t $(docker inspect -f '{{.State.Pid}}' alpha)";
    const { stdout, stderr } = await lab.exec("r1", `${inside} ping -c 3 -W 1 -M do -s 1422 10.128.128.7`);
    expect(stdout + stderr).toContain("mtu = 1400");
    await sh("r1", `${inside} ping -c 1 -W 2 -M do -s 1372 10.128.128.7`);
    await sh("r1", "docker rm -f alpha");
    expect(await driftOfSmall()).toEqual(["docker network kohakuriver-overlay: MTU is 1450, should be 1400"]);
    await apply("r1", runnerItems(1, small));
    expect(await mtuOption()).toBe('mtu":"1400');
    await apply("r1", runnerItems(1));
    expect(await drift(1)).toEqual([]);
  },
);

dockerTest("a network that was removed by hand is drift, and is created again", async () => {
  await sh("r1", "docker network rm kohakuriver-overlay");
  expect(await drift(1)).toEqual(["docker network kohakuriver-overlay: missing"]);
  await apply("r1", runnerItems(1));
  expect(await drift(1)).toEqual([]);
});

dockerTest("a bridge that dockerd created at boot is ours, and gets its address again", async () => {
  const before = await bridge("r1");
  await docker.stop("r1");
  await sh("r1", "ip link del vxkr1; ip link del kohaku-overlay");
  await docker.start("r1");
  expect(await bridge("r1")).not.toBe(before);
  await apply("r1", runnerItems(1));
  expect(await bridge("r1")).toBe(before);
  expect(await drift(1)).toEqual([]);
  await runContainer("r1", "alpha", "--ip 10.128.64.9");
  await ping("r1", "alpha", "10.128.128.7");
});

dockerTest("while dockerd is down there is no drift, but its network cannot be removed", async () => {
  await docker.stop("r1");
  expect(await drift(1)).toEqual([]);
  await apply("r1", runnerItems(1));
  expect(await lastSteps()).toBe(0);
  await expect(apply("r1", [])).rejects.toThrow("DOCKER_UNAVAILABLE: r1: Docker network kohakuriver-overlay");
  await docker.start("r1");
});

dockerTest("docker on, and no dockerd: refused before anything is changed", async () => {
  const items = planRunner(
    network({ bridgeName: "other", docker: { name: "n", required: true, share: 4 } }),
    3,
    "vxkr3",
    underlayOf("hub"),
    underlayOf("hub"),
  );
  await expect(reconciler.apply(hostOf("hub"), work("third", items))).rejects.toThrow("DOCKER_UNAVAILABLE: hub:");
  expect(await sh("hub", "ip -br link; ls /var/lib/overlay/training")).not.toMatch(/other|third/);
});

dockerTest("another program's network with our name is refused, and not changed", async () => {
  await sh("r2", "docker network create --subnet 172.30.0.0/16 theirs");
  const named = runnerItems(2, { docker: { name: "theirs", required: false, share: 4 } });
  await sh("r2", "docker rm -f beta");
  await expect(apply("r2", named)).rejects.toThrow(
    "DOCKER_NETWORK_FOREIGN: r2: There is already a Docker network theirs, and it is not in our records.",
  );
  expect(await drift(2)).toEqual([]);
  expect(await sh("r2", "docker network inspect -f '{{(index .IPAM.Config 0).Subnet}}' theirs")).toBe("172.30.0.0/16");
});

dockerTest(
  "with containers it is not removed; without them all is removed, and forwarding stays on for Docker",
  async () => {
    await expect(apply("r1", [])).rejects.toThrow(
      "DOCKER_NETWORK_IN_USE: r1: Docker network kohakuriver-overlay is to be removed, but containers use it: alpha.",
    );
    expect(await drift(1)).toEqual([]);
    await sh("r1", "docker rm -f alpha");
    await apply("r1", []);
    await apply("r2", []);
    for (const host of ["r1", "r2"]) {
      expect(await sh(host, "docker network ls --format '{{.Name}}'")).not.toContain("kohakuriver-overlay");
      expect(await sh(host, "ip -br link; iptables-save; ls /var/lib")).not.toMatch(/kohaku|vxkr|OVERLAY|overlay\n/);
      expect(await sh(host, "cat /proc/sys/net/ipv4/ip_forward")).toBe("1");
    }
  },
);
