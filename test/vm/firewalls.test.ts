import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Vm } from "../../lab/vm";
import { type Stack, Workspace } from "../e2e/stack";

/** An emulated machine with a real firewall, started before the overlay is created; all others are hosts of the lab without one. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;
let runner: Vm;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  runner = await Vm.make(lab, "vm-r1", 1);
  await runner.start();
  workspace = new Workspace(lab);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

let made = 0;
beforeEach(async () => {
  const timeouts = { OVERLAY_CONNECT_TIMEOUT: "60", OVERLAY_OPERATION_TIMEOUT: "600" };
  stack = await workspace.stack(`fw${++made}`, { env: timeouts });
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    new overlay.RunnerSubnet("r1", { network, connection: at("${runner.address}") });
  `);
});

async function must(script: string): Promise<string> {
  const { code, stdout, stderr } = await runner.exec(script);
  if (code !== 0) throw new Error(`${script}: exit code ${code}: ${stderr}${stdout}`);
  return stdout.trim();
}

/** In both directions: from the runner, and to its gateway. */
async function expectPings(): Promise<void> {
  await must("ping -q -c 5 -W 10 -M do -s 1422 10.128.0.1");
  const { code, stdout } = await lab.exec("hub", "ping -q -c 5 -W 10 -I 10.128.64.254 10.128.64.1");
  expect(code, stdout).toBe(0);
}

async function expectNoDrift(): Promise<void> {
  const { code, text } = await stack.pulumi(
    "preview",
    "--refresh",
    "--diff",
    "--expect-no-changes",
    "--stack",
    stack.name,
  );
  expect(code, text).toBe(0);
}

/** Deletes all iptables chains, ours among them. On a busy machine the client gives up before firewalld is done. */
const RELOAD = "firewall-cmd --reload || until firewall-cmd --state; do sleep 2; done";

test.each<[name: string, start: string, again: string[], stop: string]>([
  [
    "firewalld",
    "systemctl start firewalld",
    ["systemctl reload firewalld", `{ ${RELOAD}; } && systemctl start overlay-network`, "systemctl restart firewalld"],
    "systemctl stop firewalld",
  ],
  [
    "ufw",
    "ufw allow 22/tcp && ufw default deny incoming && ufw default deny routed && ufw --force enable && systemctl start ufw",
    ["systemctl restart ufw", "ufw reload && systemctl start overlay-network"],
    "ufw --force disable; systemctl stop ufw",
  ],
])(
  "%s passes the overlay's packets, also after it is reloaded or restarted, and is restored by destroy",
  async (_, start, again, stop) => {
    await must(start);
    const before = await must(SETTINGS);
    await stack.mustUp();
    await expectPings();
    for (const command of again) {
      await must(command);
      await settled();
      await expectPings();
      await expectNoDrift();
    }
    await stack.destroy();
    expect(await must(SETTINGS)).toBe(before);
    await must(stop);
  },
);

const ZONES = "firewall-cmd --get-zone-of-interface=overlay-br; iptables -S INPUT | grep -o OVERLAY-IN; :";

/** A network namespace on the runner's bridge. */
const START_WORKLOAD = [
  "ip netns add workload && ip link add to-workload type veth peer name eth0 netns workload",
  "ip link set to-workload master overlay-br up && ip -n workload link set eth0 up",
  "ip -n workload addr add 10.128.64.7/18 dev eth0 && ip -n workload route add default via 10.128.64.1",
].join(" && ");

/** Which of these the workload reaches: a workload on another runner, a host outside the overlay, and its own runner. */
const REACHED = [
  'reach() { name=$1; shift; ip netns exec workload timeout 30 "$@" >/dev/null 2>&1 && echo $name; }',
  "reach other-runner ping -c 3 -i 0.2 10.128.128.1",
  "reach outside bash -c '</dev/tcp/10.254.1.2/22'",
  "reach ping ping -c 3 -i 0.2 10.128.64.1",
  "reach sshd bash -c '</dev/tcp/10.128.64.1/22'; :",
].join("\n");

const reached = async (): Promise<string[]> => (await must(REACHED)).split("\n");

/** It boots the machine once more, and runs firewalld's client some fifty times. */
const LONG = { timeout: 40 * 60_000 };

test(
  "with firewalld workloads reach on their runner what hostAccess names, also while our chains are gone",
  LONG,
  async () => {
    const program = (hostAccess: string): void =>
      stack.program(`
      const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub"), hostAccess: "${hostAccess}" });
      const first = new overlay.RunnerSubnet("r1", { network, connection: at("${runner.address}") });
      new overlay.RunnerSubnet("r2", { network, connection: at("r1") }, { dependsOn: first });
    `);
    program("ping");
    await must("systemctl enable --now firewalld");
    const before = await must(SETTINGS);
    await stack.mustUp();
    await must(START_WORKLOAD);
    expect(await must(ZONES)).toBe("trusted\nOVERLAY-IN"); // firewalld has not loaded the new zone
    expect(await reached()).toEqual(["other-runner", "outside", "ping"]);

    await must(RELOAD);
    expect(await must(ZONES)).toBe("pulumi-overlay");
    expect(await reached()).toEqual(["other-runner", "ping"]); // nothing is masqueraded
    await must("systemctl start overlay-network");
    expect(await reached()).toEqual(["other-runner", "outside", "ping"]);
    await expectNoDrift();

    await must("sync");
    await runner.cutPower();
    await runner.start();
    await settled();
    await must(START_WORKLOAD);
    expect(await must(ZONES)).toBe("pulumi-overlay\nOVERLAY-IN");
    expect(await reached()).toEqual(["other-runner", "outside", "ping"]);

    program("all");
    await stack.mustUp();
    expect(await reached()).toEqual(["other-runner", "outside", "ping", "sshd"]);
    await must(RELOAD);
    expect(await reached()).toEqual(["other-runner", "ping", "sshd"]);

    await must("ip netns del workload");
    await stack.destroy();
    await must(RELOAD);
    expect(await must(SETTINGS)).toBe(before);
    expect(await must("firewall-cmd --get-zones")).not.toContain("pulumi-overlay");
    await must("systemctl disable --now firewalld");
  },
);

test("a hub with firewalld forwards between runners, which can only ping it, also while our chains are gone", async () => {
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("${runner.address}") });
    const first = new overlay.RunnerSubnet("r1", { network, connection: at("r1") });
    new overlay.RunnerSubnet("r2", { network, connection: at("r2") }, { dependsOn: first });
  `);
  await must("systemctl start firewalld");
  await stack.mustUp();
  const reach = async (command: string): Promise<number> => (await lab.exec("r1", `timeout 30 ${command}`)).code;
  const expectReached = async (): Promise<void> => {
    expect(await reach("ping -c 3 -i 0.2 10.128.128.1")).toBe(0);
    expect(await reach("ping -c 3 -i 0.2 10.128.0.1")).toBe(0);
    expect(await reach("bash -c '</dev/tcp/10.128.0.1/22'")).toBe(1); // refused at once
  };
  await expectReached();
  await must(RELOAD);
  await expectReached();
  await stack.destroy();
  await must("systemctl stop firewalld");
});

const settled = () => must("while systemctl list-jobs --no-legend | grep -q overlay; do sleep 1; done");

test("Docker keeps our bridge in its own zone of firewalld, and both may be restarted", async () => {
  await must("systemctl start firewalld && systemctl start docker");
  const before = await must(SETTINGS);
  await stack.mustUp();
  for (const command of ["systemctl restart docker", "systemctl restart firewalld"]) {
    await must(command);
    await settled();
    await must('until [ "$(firewall-cmd --get-zone-of-interface=overlay-br)" = docker ]; do sleep 2; done');
    await must("docker network inspect pulumi-overlay");
    await expectPings();
    await expectNoDrift();
  }
  await stack.destroy();
  expect(await must(SETTINGS)).toBe(before);
  await must("systemctl stop docker docker.socket firewalld");
});

test("while firewalld is stopped its entries for the next start are added, and removed again", async () => {
  await must("systemctl start firewalld");
  const before = await must(SETTINGS);
  await must("systemctl enable firewalld && systemctl stop firewalld");
  await stack.mustUp();
  await must("systemctl start firewalld");
  await settled();
  await expectPings();
  await expectNoDrift();
  await must("systemctl stop firewalld");
  await stack.destroy();
  await must("systemctl start firewalld");
  expect(await must(SETTINGS)).toBe(before);
  await must("systemctl disable --now firewalld");
});

/** The configuration of both firewalls. firewalld keeps a deleted zone loaded until it is reloaded. */
const SETTINGS =
  "if systemctl -q is-active firewalld; then firewall-cmd --list-all-zones | awk -v RS= '!/^pulumi-overlay/'; firewall-cmd --permanent --list-all-zones; else ufw status verbose; fi";
