import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { LabStack, must } from "./lab-stack";

/** Removals that fail: refresh names what is still there, and the next up removes it. */
let lab: Lab;
let stack: LabStack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
});
afterAll(async () => {
  await lab?.down();
});
beforeEach(async () => {
  await Promise.all(["hub", "r1", "r2"].map((host) => lab.rebuild(host)));
  stack = await LabStack.on(lab);
  await stack.network();
});

const TOOL = "/usr/local/sbin/iptables-restore";
const breakTool = (host: string) => must(lab, host, `printf '#!/bin/sh\\nexit 1\\n' >${TOOL}; chmod +x ${TOOL}`);
const mendTool = (host: string) => must(lab, host, `rm ${TOOL}`);
const drift = (type: string, name: string) => stack.drift(type, name) as Promise<string[]>;
/** Without the line that an up has failed. */
const onHosts = (lines: string[]): string[] => lines.filter((line) => !line.startsWith("not applied: "));

const FORWARDS = [80, 81].map((port) => ({ protocol: "tcp", port, to: "10.128.64.5" }));
const web = (forwards: unknown[]) =>
  stack.put("StaticIP", "web", {
    pool: "lb",
    attach: "training",
    connection: stack.at("hub"),
    ip: "10.254.200.0",
    forwards,
  });
const DNAT_81 =
  "rule '-d 10.254.200.0/32 -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.128.64.5:81' in OVERLAY-DNAT (IPv4 nat)";
const MASQUERADE_81 =
  "rule '-p tcp -m conntrack --ctstate DNAT --ctorigdst 10.254.200.0 --ctorigdstport 81 -j MASQUERADE' in OVERLAY-NAT (IPv4 nat)";
const stillThere = (item: string): string => `10.254.0.1: ${item}: still there, should be removed`;
const DNAT_RULES = "iptables-save -t nat | grep -e '-A OVERLAY-DNAT'";

test("a forward whose removal failed is drift until an up has removed it", async () => {
  await stack.runner("r1");
  await stack.put("IPPool", "lb", { ranges: ["10.254.200.0/28"] });
  await web(FORWARDS);
  await breakTool("hub");
  await expect(web(FORWARDS.slice(0, 1))).rejects.toThrow(
    /HOST_COMMAND_FAILED: 10\.254\.0\.1: .*--dport 81.*still there/,
  );
  await mendTool("hub");
  for (const _ of ["read", "read again"]) {
    await stack.refresh();
    expect(await drift("StaticIP", "web")).toEqual([
      expect.stringMatching(/^not applied: HOST_COMMAND_FAILED: 10\.254\.0\.1: /),
      stillThere(DNAT_81),
      stillThere(MASQUERADE_81),
    ]);
  }
  await web(FORWARDS.slice(0, 1));
  expect(await must(lab, "hub", DNAT_RULES)).not.toContain("81");
  expect(await drift("StaticIP", "web")).toEqual([]);
});

test("a rule that was taken away by hand after its removal failed is still on record; if it comes back, it is drift again", async () => {
  await stack.runner("r1");
  await breakTool("r1");
  await expect(stack.runner("r1", { masquerade: false })).rejects.toThrow("HOST_COMMAND_FAILED");
  await mendTool("r1");
  const rule = "-s 10.128.64.0/18 ! -d 10.128.0.0/12 -j MASQUERADE";
  await must(lab, "r1", `iptables -t nat -D OVERLAY-NAT ${rule}`);
  const uid = String(stack.props("RunnerSubnet", "r1").uid);
  expect(onHosts(await drift("RunnerSubnet", "r1"))).toEqual([
    `10.254.1.1: file /var/lib/overlay/training/${uid}.json: it lists rule '${rule}' in OVERLAY-NAT (IPv4 nat), which is not planned`,
    "10.254.1.1: chain OVERLAY-NAT (IPv4 nat): still there, should be removed",
    "10.254.1.1: jump from POSTROUTING to OVERLAY-NAT (IPv4 nat): still there, should be removed",
  ]);
  await must(lab, "r1", `iptables -t nat -A OVERLAY-NAT ${rule}`);
  expect(onHosts(await drift("RunnerSubnet", "r1"))).toContain(
    `10.254.1.1: rule '${rule}' in OVERLAY-NAT (IPv4 nat): still there, should be removed`,
  );
  await stack.runner("r1", { masquerade: false });
  expect(await must(lab, "r1", "iptables-save | grep -c OVERLAY-NAT || :")).toBe("0");
  expect(await drift("RunnerSubnet", "r1")).toEqual([]);
});

test("a chain of ours that was removed and comes back by hand is shown with the commands that remove it", async () => {
  await stack.runner("r1");
  await stack.runner("r1", { masquerade: false });
  const back = "-s 10.128.64.0/18 -j MASQUERADE";
  await must(
    lab,
    "r1",
    `iptables -t nat -N OVERLAY-NAT; iptables -t nat -A OVERLAY-NAT ${back}; iptables -t nat -A POSTROUTING -j OVERLAY-NAT`,
  );
  const [line = "", ...others] = await drift("RunnerSubnet", "r1");
  expect(others).toEqual([]);
  expect(line).toBe(
    "10.254.1.1: foreign chain OVERLAY-NAT (IPv4 nat), which no resource has: remove it with `iptables -t nat -D POSTROUTING -j OVERLAY-NAT; iptables -t nat -F OVERLAY-NAT; iptables -t nat -X OVERLAY-NAT`",
  );
  await must(lab, "r1", /`(.*)`/.exec(line)![1]!);
  expect(await drift("RunnerSubnet", "r1")).toEqual([]);
});

test("an up fails if the host that a runner has left cannot be cleaned, and the next one cleans it", async () => {
  await stack.runner("r1", { connection: stack.at("r2") });
  await breakTool("r2");
  const failure = /HOST_COMMAND_FAILED: 10\.254\.1\.2: .*still there/;
  await expect(stack.runner("r1")).rejects.toThrow(failure);
  await mendTool("r2");
  await stack.refresh();
  expect(await drift("RunnerSubnet", "r1")).toEqual([
    expect.stringMatching(/^not applied: HOST_COMMAND_FAILED: 10\.254\.1\.2: /),
  ]);
  await stack.runner("r1");
  expect(await must(lab, "r2", "ls /var/lib/overlay 2>/dev/null || :; iptables-save | grep OVERLAY || :")).toBe("");
  expect(await drift("RunnerSubnet", "r1")).toEqual([]);
});

test("a destroy fails if the host that a runner has left cannot be cleaned", async () => {
  await stack.runner("r1", { connection: stack.at("r2") });
  await breakTool("r2");
  await expect(stack.runner("r1")).rejects.toThrow("HOST_COMMAND_FAILED");
  await expect(stack.remove("RunnerSubnet", "r1")).rejects.toThrow(/HOST_COMMAND_FAILED: 10\.254\.1\.2/);
  await mendTool("r2");
  await stack.destroy();
  expect(await must(lab, "r2", "ls /var/lib/overlay 2>/dev/null || :; iptables-save | grep OVERLAY || :")).toBe("");
});
