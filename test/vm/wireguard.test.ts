import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Vm } from "../../lab/vm";
import { type Host, type Hosts, hostId } from "../../provider/host/connection";
import { LabStack } from "../lab/lab-stack";

/**
 * A hub and a runner with systemd and the WireGuard of their own kernel. The tests build on each other. `outside` is a host of the lab with which nothing of the overlay may arrive.
 */
let lab: Lab;
let stack: LabStack;
let hub: Vm;
let runner: Vm;

const SUBNETS = ["10.128.0.0/12/6/14", "fd00:128::/48/16/64"];
const FULL = ["-s 1412 10.128.0.1", "-s 1392 fd00:128::1", "-s 1392 fe80::1:0%vxkrW0"];
const outside = (): string => lab.host("r1").address;

/** By the lab's SSH, since Pulumi itself has its own tests. */
function vmHosts(): Hosts {
  const options = () => ["-F", lab.sshConfig, "-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=20"];
  return {
    async connect(connection) {
      const exec: Host["exec"] = async (input) => {
        const { code, stdout, stderr } = await lab.controller(
          "ssh",
          [...options(), `root@${connection.host}`, "exec sh -s"],
          { input },
        );
        return { code: code ?? -1, stdout, stderr };
      };
      return { name: connection.host, id: hostId(connection), exec, withLock: (_, work) => work({ run: exec }) };
    },
    end: async () => {},
  };
}

async function must(vm: Vm, script: string): Promise<string> {
  const { code, stdout, stderr } = await vm.exec(script);
  if (code !== 0) throw new Error(`${vm.name}: ${script}: exit code ${code}: ${stderr}${stdout}`);
  return stdout.trim();
}

const hubConnection = () => ({ host: hub.address });
const putNetwork = () => stack.network({ tunnel: "wireguard", subnets: SUBNETS, hubConnection: hubConnection() });
const putRunner = () => stack.runner("r1", { connection: { host: runner.address }, hubConnection: hubConnection() });
const drift = async () => [await stack.drift("OverlayNetwork", "training"), await stack.drift("RunnerSubnet", "r1")];

async function expectPings(): Promise<void> {
  for (const target of FULL) await must(runner, `ping -q -c 10 -W 3 -M do ${target} | grep -E ' ([1-9]|10) received'`);
}

async function expectAllRight(): Promise<void> {
  await expectPings();
  expect(await drift()).toEqual([[], []]);
}

async function repair(): Promise<void> {
  stack.nextRun();
  await stack.refresh();
  await putRunner();
  await expectAllRight();
}

/** Whether its device is one of the kernel, or of a process. */
const deviceType = (vm: Vm): Promise<string> =>
  must(vm, "ip -d link show vxkrW0 | grep -o -w -e wireguard -e tun | head -n 1");

async function reboot(vm: Vm): Promise<void> {
  await must(vm, "sync");
  await vm.cutPower();
  await vm.start();
  const of = (property: string) => `$(systemctl show -P ${property} overlay-network.service)`;
  await must(
    vm,
    `until [ "${of("ExecMainExitTimestampMonotonic")}" != 0 ]; do sleep 1; done; [ "${of("Result")}" = success ]`,
  );
}

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  [hub, runner] = [await Vm.make(lab, "vm-hub", 1), await Vm.make(lab, "vm-r1", 2)];
  await Promise.all([hub.start(), runner.start()]);
  stack = await LabStack.on(lab, "memory:", undefined, vmHosts());
  const count = (tool: string, ranges: string[]) =>
    ranges.map((range) => `${tool} -t raw -A PREROUTING -i eth0 -d ${range}`).join("; ");
  await lab.exec(
    "r1",
    `${count("iptables", ["10.128.0.0/12", "203.0.113.0/24"])}; ${count("ip6tables", ["fd00:128::/48", "2001:db8::/32"])}`,
  );
});
afterAll(async () => {
  await lab?.down();
});

test("up makes a device of the kernel, which passes packets of full size", async () => {
  await putNetwork();
  await putRunner();
  expect(await Promise.all([hub, runner].map(deviceType))).toEqual(["wireguard", "wireguard"]);
  await expectAllRight();
  const { stdout, stderr, code } = await runner.exec("ping -c 1 -M do -s 1413 10.128.0.1");
  expect([code, `${stdout}${stderr}`]).toEqual([1, expect.stringContaining("mtu")]);
});

test("what is changed by hand is drift, and a warning names threaded NAPI; the next up repairs it", async () => {
  await must(
    runner,
    `ip link set vxkrW0 mtu 1300; wg set vxkrW0 listen-port 51999; ip addr del fe80::1:1/64 dev vxkrW0
    wg set vxkrW0 peer $(wg show vxkrW0 peers) allowed-ips 10.0.0.0/8; ip route del unreachable 10.128.0.0/12; echo 1 >/sys/class/net/vxkrW0/threaded`,
  );
  const found = (await drift()).flat().join("\n");
  for (const text of [
    "link vxkrW0: port is 51999, should be 51820, MTU is 1300, should be 1440",
    "of vxkrW0: allowed IPs is 10.0.0.0/8, should be 0.0.0.0/0,::/0,fe80::1:0/128",
    "address fe80::1:1/64 on vxkrW0: missing",
    "unreachable 10.128.0.0/12: missing",
  ])
    expect(found).toContain(text);
  expect(stack.warnings.join("\n")).toContain(`${runner.address}: threaded NAPI is on for vxkrW0`);
  await must(runner, "echo 0 >/sys/class/net/vxkrW0/threaded");
  await repair();
});

describe("without a tunnel nothing leaves in clear, though there is a default route with a neighbour that answers", () => {
  const TARGETS = { overlay: ["10.128.0.1", "10.128.64.254", "fd00:128::1"], other: ["203.0.113.9", "2001:db8::9"] };

  /** How many pings to these targets arrive at the neighbour. */
  async function leaked(targets: string[]): Promise<number> {
    const clear = "iptables -t raw -Z; ip6tables -t raw -Z";
    await lab.exec("r1", clear);
    await runner.exec(targets.map((ip) => `ping -q -c 3 -i 0.2 -W 1 ${ip}`).join("; "));
    const { stdout } = await lab.exec(
      "r1",
      "{ iptables -t raw -nvxL PREROUTING; ip6tables -t raw -nvxL PREROUTING; } | awk '$1 ~ /^[0-9]+$/ { sum += $1 } END { print sum }'",
    );
    return Number(stdout);
  }

  beforeAll(async () => {
    const { address, address6 } = lab.host("r1");
    await must(
      runner,
      `ip route add default via ${address}; ip -6 route add default via ${address6}; ping -c 1 -W 5 ${address}; ping -c 1 -W 5 ${address6}`,
    );
    expect(await leaked(TARGETS.other)).toBe(6);
  });
  afterAll(async () => {
    await must(runner, `ip route del default via ${outside()}; ip -6 route del default`);
  });

  test.each([
    "ip link del vxkrW0",
    "ip link set vxkrW0 down",
    "wg set vxkrW0 peer $(wg show vxkrW0 peers) remove",
    "wg genkey >/tmp/other.key; wg set vxkrW0 private-key /tmp/other.key",
  ])("%s", async (spoil) => {
    await must(runner, spoil);
    expect(await leaked(TARGETS.overlay)).toBe(0);
    await must(runner, "systemctl start overlay-network.service");
    await expectPings();
  });
});

test("after a power cut of both all is restored without Pulumi", async () => {
  await Promise.all([hub, runner].map(reboot));
  expect(await Promise.all([hub, runner].map(deviceType))).toEqual(["wireguard", "wireguard"]);
  await expectPings();
});

test("destroy leaves no device, rule or key", async () => {
  await stack.destroy();
  for (const vm of [hub, runner]) {
    expect(
      await must(
        vm,
        `ls -d /var/lib/overlay 2>/dev/null; ip -br link | grep -E 'vxkr|kohaku'; iptables-save | grep OVERLAY; ip6tables-save | grep OVERLAY; :`,
      ),
    ).toBe("");
  }
});
