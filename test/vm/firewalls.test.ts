import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Vm } from "../../lab/vm";
import { type Stack, Workspace } from "../e2e/stack";

/** A runner behind a real firewall, started before the overlay comes; the hub is a host of the lab without one. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;
let runner: Vm;

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
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
  const patience = { OVERLAY_CONNECT_TIMEOUT: "60", OVERLAY_OPERATION_TIMEOUT: "600" };
  stack = await workspace.stack(`fw${++made}`, { env: patience });
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

/** Both ways: what the runner begins, and what comes in to its gateway. */
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

test.each<[name: string, start: string, again: string[], stop: string]>([
  [
    "firewalld",
    "systemctl start firewalld",
    [
      "systemctl reload firewalld",
      // On a busy machine the client gives up before firewalld is done.
      "{ firewall-cmd --reload || until firewall-cmd --state; do sleep 2; done; } && systemctl start overlay-network",
      "systemctl restart firewalld",
    ],
    "systemctl stop firewalld",
  ],
  [
    "ufw",
    "ufw allow 22/tcp && ufw default deny incoming && ufw default deny routed && ufw --force enable && systemctl start ufw",
    ["systemctl restart ufw", "ufw reload && systemctl start overlay-network"],
    "ufw --force disable; systemctl stop ufw",
  ],
])(
  "%s lets the overlay through, also after it is reloaded or restarted, and is left as it was",
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

const settled = () => must("while systemctl list-jobs --no-legend | grep -q overlay; do sleep 1; done");

test("Docker keeps our bridge in its own zone of firewalld, and both may be restarted", async () => {
  await must("systemctl start firewalld && systemctl start docker");
  const before = await must(SETTINGS);
  await stack.mustUp();
  for (const command of ["systemctl restart docker", "systemctl restart firewalld"]) {
    await must(command);
    await settled();
    await must('until [ "$(firewall-cmd --get-zone-of-interface=kohaku-overlay)" = docker ]; do sleep 2; done');
    await must("docker network inspect kohakuriver-overlay");
    await expectPings();
    await expectNoDrift();
  }
  await stack.destroy();
  expect(await must(SETTINGS)).toBe(before);
  await must("systemctl stop docker docker.socket firewalld");
});

test("while firewalld is stopped it gets what it needs at its next start, and loses it again", async () => {
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

/** What an administrator has said to either of them. */
const SETTINGS =
  "if systemctl -q is-active firewalld; then firewall-cmd --list-all-zones; firewall-cmd --permanent --list-all-zones; else ufw status verbose; fi";
