import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { LabDocker } from "../../lab/docker";
import { Lab } from "../../lab/lab";
import type { Values } from "../../provider/lifecycle/values";
import { LabStack, must } from "./lab-stack";
import { tries } from "./pings";
import { ask, serve } from "./services";

/** WireGuard on unusual hosts and underlays: IPv6 outside, NAT, strict reverse path filtering, lost records, and devices of other programs. */
let lab: Lab;
let stack: LabStack;

const DUAL = ["10.128.0.0/12/6/14", "fd00:128::/48/16/64"];
const sh = (host: string, script: string): Promise<string> => must(lab, host, script);
const ping = (host: string, target: string, options = ""): Promise<string> =>
  sh(host, `(${tries(`ping -n -c 1 -W 1 ${options} ${target} >/dev/null`)})`);
const network = (inputs: Values = {}) => stack.network({ tunnel: "wireguard", ...inputs });

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
});
afterAll(async () => {
  await lab?.down();
});

/** A network of its own, and hosts as they were. */
async function begin(): Promise<void> {
  stack = await LabStack.on(lab);
}

describe.each([
  ["IPv4 and IPv6 over IPv6", DUAL, true],
  ["IPv6 alone over IPv4", "fd00:128::/48/16/64", false],
  ["IPv6 alone over IPv6", "fd00:128::/48/16/64", true],
  ["IPv4 over IPv6", "10.128.0.0/12/6/14", true],
])("%s", (_, subnets, isOverIpv6) => {
  beforeAll(async () => {
    await begin();
    const at = (host: string) => (isOverIpv6 ? lab.host(host).address6 : undefined);
    await network({ subnets, hubUnderlayIp: at("hub") });
    for (const name of ["r1", "r2"]) await stack.runner(name, { underlayIp: at(name) });
  });
  afterAll(() => stack.destroy());

  test("packets of full size pass between runners and to the hub, and there is no drift", async () => {
    const mtu = isOverIpv6 ? 1420 : 1440;
    const targets = [subnets]
      .flat()
      .flatMap((text) => (text.includes(":") ? ["fd00:128:0:2::1", "fd00:128::1"] : ["10.128.128.1", "10.128.0.1"]));
    for (const target of targets) await ping("r1", target, `-M do -s ${mtu - (target.includes(":") ? 48 : 28)}`);
    for (const name of ["r1", "r2"]) expect(await stack.drift("RunnerSubnet", name)).toEqual([]);
    expect(await sh("hub", "wg show vxkrW0 endpoints")).toContain(isOverIpv6 ? "[" : "10.254.1.1:51820");
  });
});

describe("behind NAT", () => {
  const INSIDE = "192.168.77.2";
  /** r1 has an address that only r3 knows; r3 translates it. */
  beforeAll(async () => {
    await begin();
    const { address: hub } = lab.host("hub");
    await sh(
      "r3",
      `ip addr add 192.168.77.1/24 dev eth0; echo 1 >/proc/sys/net/ipv4/ip_forward; iptables -t nat -A POSTROUTING -s 192.168.77.0/24 -p udp -j SNAT --to ${lab.host("r3").address}:40000-40009`,
    );
    await sh("r1", `ip addr add ${INSIDE}/24 dev eth0; ip route add ${hub} via 192.168.77.1 src ${INSIDE}`);
    await network();
    await stack.runner("r1", { underlayIp: INSIDE });
    await stack.runner("r2");
  });
  afterAll(async () => {
    await stack.destroy();
    for (const host of ["r1", "r3"]) await lab.rebuild(host);
  });

  test("a runner reaches the others, and they reach it; where it was seen is no drift", async () => {
    await ping("r1", "10.128.128.1", "-M do -s 1412");
    await ping("r2", "10.128.64.1");
    expect(await sh("hub", "wg show vxkrW0 endpoints")).toContain(`${lab.host("r3").address}:4000`);
    for (const name of ["r1", "r2"]) expect(await stack.drift("RunnerSubnet", name)).toEqual([]);
  });

  test("it is back within 30 s of a restart of the hub", async () => {
    await lab.stop("hub");
    await lab.start("hub");
    expect(await lab.exec("hub", "sh /var/lib/overlay/boot.sh")).toMatchObject({ code: 0 });
    const began = Date.now();
    await sh("r1", "for i in $(seq 120); do ping -c 1 -W 1 10.128.0.1 >/dev/null && exit; sleep 0.2; done; exit 1");
    expect(Date.now() - began).toBeLessThan(30_000);
    await ping("r2", "10.128.64.1");
  });
});

test("an address that a host does not have is refused with its name", async () => {
  await begin();
  await network();
  await expect(stack.runner("r1", { underlayIp: "192.168.99.9" })).rejects.toThrow(
    `INPUT_INVALID: ${lab.host("r1").address} has no underlay address "192.168.99.9"; it has `,
  );
  await stack.destroy();
});

describe("on hosts with rp_filter=1", () => {
  beforeAll(async () => {
    await begin();
    for (const host of ["hub", "r1", "r2"])
      await sh(host, "for f in all default eth0; do echo 1 >/proc/sys/net/ipv4/conf/$f/rp_filter; done");
    await network({ subnets: DUAL, hostAccess: ["tcp/8080"], masquerade: true });
    for (const name of ["r1", "r2"]) await stack.runner(name);
    await lab.container("r1", "job", {
      bridge: "kohaku-overlay",
      address: ["10.128.64.9/18", "fd00:128:0:1::9/64"],
      gateway: ["10.128.64.1", "fd00:128:0:1::1"],
    });
  });
  afterAll(async () => {
    await stack.destroy();
    for (const host of ["hub", "r1", "r2", "r3"]) await lab.rebuild(host);
  });

  test("each device has an address and filters loosely, so that packets pass that came by another way", async () => {
    for (const host of ["hub", "r1", "r2"]) {
      expect(await sh(host, "cat /proc/sys/net/ipv4/conf/vxkrW0/rp_filter")).toBe("2");
      expect(await sh(host, "ip -4 -br addr show vxkrW0")).toMatch(/10\.128\.\d+\.1\/32/);
    }
    // The way back to r2 leads elsewhere: r2's packets come by the tunnel all the same.
    await sh("r1", "ip route add 10.128.128.0/18 dev eth0");
    const received = () => sh("r1", "awk '/^Icmp:/ && $2 ~ /^[0-9]/ { print $10 }' /proc/net/snmp");
    const passing = async (): Promise<number> => {
      const before = Number(await received());
      await lab.exec("r2", "ping -c 3 -i 0.2 -W 1 10.128.64.1");
      return Number(await received()) - before;
    };
    expect(await passing()).toBe(3);
    const setFilter = (value: number) => sh("r1", `echo ${value} >/proc/sys/net/ipv4/conf/vxkrW0/rp_filter`);
    await setFilter(1);
    expect(await passing()).toBe(0);
    await setFilter(2);
    await sh("r1", "ip route del 10.128.128.0/18 dev eth0");
  });

  test.each([
    ["hub", "10.128.64.254"],
    ["hub", "fd00:128:0:1::fe"],
    ["r2", "10.128.128.1"],
    ["r2", "fd00:128:0:2::1"],
  ])("a workload reaches the port of hostAccess on %s at %s, and no other", async (host, address) => {
    const name = `${host}-${address.includes(":") ? 6 : 4}`;
    await serve(lab, host, "", "tcp", 8080, `${name}-open`);
    await serve(lab, host, "", "tcp", 8081, `${name}-closed`);
    const workload = { at: "r1", inside: "job" };
    expect(await ask(lab, workload, address, 8080)).toBe(
      `${name}-open sees ${address.includes(":") ? "fd00:128:0:1::9" : "10.128.64.9"}`,
    );
    expect(await ask(lab, workload, address, 8081)).toMatch(/refused|timed out/);
    await sh(host, "kill $(pgrep python3); while pgrep python3 >/dev/null; do sleep 0.1; done");
  });

  test("what leaves the overlay has its runner's address", async () => {
    await serve(lab, "r3", "", "tcp", 80, "outside");
    const { address, address6 } = lab.host("r3");
    expect(await ask(lab, { at: "r1", inside: "job" }, address, 80)).toBe(`outside sees ${lab.host("r1").address}`);
    expect(await ask(lab, { at: "r1", inside: "job" }, address6, 80)).toBe(`outside sees ${lab.host("r1").address6}`);
  });
});

describe("Docker", () => {
  /** Why Docker cannot run here. */
  let why: string | undefined;
  const dockerTest = (name: string, body: () => Promise<void>) =>
    test(name, async ({ skip }) => {
      skip(why !== undefined, why);
      await body();
    });
  const docker = { enabled: "on", networkName: "containers" };

  beforeAll(async () => {
    await begin();
    why = await new LabDocker(lab).findObstacle("r1");
    if (why !== undefined) return;
    await network({ subnets: DUAL });
    await stack.runner("r1", { docker });
    await stack.runner("r2");
    await sh("r1", "docker run -d --stop-signal KILL --name alpha --network containers busybox /bin/sleep 9999");
  });
  afterAll(async () => {
    if (why === undefined) await stack.destroy();
    for (const host of ["hub", "r1", "r2"]) await lab.rebuild(host);
  });

  const inside = (command: string) =>
    lab.exec("r1", `nsenter -n -t $(docker inspect -f '{{.State.Pid}}' alpha) ${command}`);
  const TARGETS = { "10.128.128.1": 28, "fd00:128:0:2::1": 48 };

  dockerTest("containers send packets of full size to another runner", async () => {
    for (const [target, headers] of Object.entries(TARGETS))
      expect(await inside(`ping -n -c 3 -W 2 -M do -s ${1440 - headers} ${target}`)).toMatchObject({ code: 0 });
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
  });

  dockerTest("with another MTU they keep theirs, which is no drift, and learn the new one", async () => {
    await stack.runner("r1", { docker, mtu: 1300 });
    expect(stack.warnings.join("\n")).toContain(
      "Docker network containers keeps its MTU of 1440 while containers use it (alpha)",
    );
    expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
    for (const [target, headers] of Object.entries(TARGETS)) {
      const { stdout, stderr } = await inside(`ping -n -c 3 -W 1 -M do -s ${1440 - headers} ${target}`);
      expect(stdout + stderr).toMatch(/mtu ?= ?1300|mtu: 1300|Packet too big: mtu=1300/);
      expect(await inside(`ping -n -c 3 -W 2 -M do -s ${1300 - headers} ${target}`)).toMatchObject({ code: 0 });
    }
    await sh("r1", "docker rm -f alpha");
    await stack.refresh();
    await stack.runner("r1", { docker, mtu: 1300 });
    expect(await sh("r1", "docker network inspect -f '{{json .Options}}' containers")).toContain('mtu":"1300"');
  });
});

describe("what is there already", () => {
  beforeAll(begin);

  test.each([[{}], [{ adopt: true }]])(
    "a device of another program under our name is refused with %o, and stays",
    async (inputs) => {
      const make = "ip link add vxkrW0 type wireguard 2>/dev/null || setsid wireguard-go vxkrW0 >/dev/null 2>&1";
      await sh("hub", `${make}; wg genkey >/run/theirs; wg set vxkrW0 private-key /run/theirs listen-port 51999`);
      await expect(network(inputs)).rejects.toThrow(/DEVICE_FOREIGN: 10\.254\.0\.1: There is already a device vxkrW0/);
      expect(await sh("hub", "wg show vxkrW0 listen-port")).toBe("51999");
      await lab.rebuild("hub");
      await begin();
    },
  );

  test("a UDP port that another program uses is refused", async () => {
    await sh(
      "hub",
      "setsid /usr/bin/python3 -c 'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((\"\", 51820)); time.sleep(600)' >/dev/null 2>&1 </dev/null & sleep 1",
    );
    await expect(network()).rejects.toThrow(/51820/);
    await lab.rebuild("hub");
    await begin();
  });

  test("lost records are written again, with the same keys and without a change of devices", async () => {
    await network({ subnets: DUAL });
    for (const name of ["r1", "r2"]) await stack.runner(name);
    const state = (host: string) =>
      sh(host, "wg show vxkrW0 public-key; wg show vxkrW0 peers | sort; cat /sys/class/net/vxkrW0/ifindex");
    const before = await Promise.all(["hub", "r1"].map(state));
    for (const host of ["hub", "r1"]) await sh(host, "rm /var/lib/overlay/training/*.json");
    await stack.refresh();
    await network({ subnets: DUAL });
    for (const name of ["r1", "r2"]) await stack.runner(name);
    expect(await Promise.all(["hub", "r1"].map(state))).toEqual(before);
    expect(await stack.drift("OverlayNetwork", "training")).toEqual([]);
    for (const name of ["r1", "r2"]) expect(await stack.drift("RunnerSubnet", name)).toEqual([]);
    await ping("r1", "10.128.128.1");
  });

  test("a destroy without records removes all", async () => {
    for (const host of ["hub", "r1"]) await sh(host, "rm /var/lib/overlay/training/*.json");
    await stack.destroy();
    for (const host of ["hub", "r1", "r2"])
      expect([
        host,
        await sh(
          host,
          "ip -br link | grep -E 'vxkr|kohaku' || :; pgrep -x wireguard-go || :; ls /var/lib/overlay 2>/dev/null || :",
        ),
      ]).toEqual([host, ""]);
  });
});
