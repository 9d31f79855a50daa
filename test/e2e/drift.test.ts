import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { OVERLAYCTL } from "../unit/cli/ctl";
import { type Stack, Workspace } from "./stack";

/** What the check for drift in a pipeline prints: each difference with its host, whatever the state has already. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

const program = (masquerade: boolean): void =>
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    for (const name of ["r1", "r2"]) new overlay.RunnerSubnet(name, { network, connection: at(name), runnerId: Number(name.slice(1)), masquerade: ${masquerade} });
  `);

/** The lines about drift, without those that an up has failed. */
async function check(): Promise<{ code: number; drift: string[] }> {
  const { code, text } = await stack.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", "dev");
  const drift = [...text.matchAll(/^\s*warning: drift of (.*?)\s*$/gm)].map(([, line]) => line!);
  return { code, drift: [...new Set(drift)].filter((line) => !line.includes("not applied: ")).sort() };
}

const MASQUERADE = "rule '-s 10.128.64.0/18 ! -d 10.128.0.0/12 -j MASQUERADE' in OVERLAY-NAT (IPv4 nat)";
const LEFT = [
  "RunnerSubnet r1: 10.254.1.1: chain OVERLAY-NAT (IPv4 nat): still there, should be removed",
  "RunnerSubnet r1: 10.254.1.1: jump from POSTROUTING to OVERLAY-NAT (IPv4 nat): still there, should be removed",
  `RunnerSubnet r1: 10.254.1.1: ${MASQUERADE}: still there, should be removed`,
];

test("after a failed up every difference is named, on its host and on others, in each run", async () => {
  program(true);
  await stack.mustUp();
  expect(await check()).toEqual({ code: 0, drift: [] });

  const tool = "/usr/local/sbin/iptables-restore";
  await lab.exec("r1", `printf '#!/bin/sh\\nexit 1\\n' >${tool}; chmod +x ${tool}`);
  program(false);
  expect((await stack.up()).code).not.toBe(0);
  await lab.exec("r1", `rm ${tool}`);
  expect(await check()).toEqual({ code: 7, drift: LEFT });

  await stack.must("refresh", "--yes", "--skip-preview", "--stack", "dev");
  expect(await check()).toEqual({ code: 7, drift: LEFT });
  await lab.exec("r2", "ip link set overlay-br mtu 1300");
  const changed = "RunnerSubnet r2: 10.254.1.2: link overlay-br: MTU is 1300, should be 1450";
  expect(await check()).toEqual({ code: 7, drift: [...LEFT, changed] });

  const json = await stack.pulumi("preview", "--refresh", "--json", "--stack", "dev");
  const urn = "urn:pulumi:dev::e2e::pulumi-nodejs:dynamic/overlay:RunnerSubnet::r2";
  const message = expect.stringContaining(`drift of ${changed}`);
  const { diagnostics } = JSON.parse(json.text.slice(json.text.indexOf("{"), json.text.lastIndexOf("}") + 1));
  expect(diagnostics).toContainEqual({ urn, message, severity: "warning" });

  const repaired = await stack.mustUp("--refresh");
  for (const line of [...LEFT, changed]) expect(repaired).toContain(line.replace(/^RunnerSubnet r\d/, "corrected"));
  expect(await check()).toEqual({ code: 0, drift: [] });
  expect((await lab.exec("r1", "iptables-save -t nat")).stdout).not.toContain("OVERLAY");
});

const PAGE = readFileSync(join(__dirname, "../../docs/ci.md"), "utf8");
const [GITHUB, GITLAB] = [...PAGE.matchAll(/^```yaml\n(.*?)^```$/gms)].map(([, text]) => text!);

/** The commands of both workflows for the same checks. */
const STEPS = [...GITLAB!.matchAll(/^ {4}- ((?:npm|npx|pulumi) .*)$/gm)].map(([, command]) => command!);

/** A step as a pipeline runs it; packages are linked, and not installed. */
async function runStep(command: string): Promise<{ code: number | null; text: string }> {
  const script = `set -eo pipefail; npm() { :; }; npx() { shift; ${process.execPath} ${OVERLAYCTL} "$@"; }; ${command}`;
  const env = { ...stack.env, CI: "true", OVERLAY_PRIVATE_KEY: lab.privateKey };
  const { code, stdout, stderr } = await workspace.run("bash", ["-c", script], { cwd: stack.folder, env });
  return { code, text: stdout + stderr };
}
const codes = async () => {
  const all: [string, number | null][] = [];
  for (const step of STEPS) all.push([step.replace(/ --stack dev.*/, ""), (await runStep(step)).code]);
  return Object.fromEntries(all);
};

test("both workflows of docs/ci.md have the same steps", () => {
  const runs = [...GITHUB!.matchAll(/^ +(?:- )?run: (.*)$/gm)].map(([, command]) => command!);
  expect(runs.slice(0, -1)).toEqual(STEPS);
});

test("the workflow of docs/ci.md: passes with a change, fails at drift and at a host that refuses, with these fields", async () => {
  program(true);
  expect(await codes()).toEqual({
    "npm ci": 0,
    "pulumi refresh --preview-only --expect-no-changes": 0,
    "pulumi preview --diff": 0,
    "pulumi preview --json": 0,
    "npx overlayctl": 0,
  });
  expect(readFileSync(join(stack.folder, "plan.txt"), "utf8")).toMatch(
    /^# 10\.254\.1\.1: \d+ changes\n# {3}change file .*\n# {3}add chain /,
  );
  const text = readFileSync(join(stack.folder, "preview.json"), "utf8");
  const { steps, changeSummary } = JSON.parse(text.slice(text.indexOf("{")));
  const r1 = steps.find(({ urn }: { urn: string }) => urn.endsWith("::r1"));
  expect(r1).toMatchObject({
    op: "update",
    newState: { inputs: { subnet: "10.128.64.0/18", connection: "[secret]" } },
  });
  expect([r1.oldState.inputs.masquerade, r1.newState.inputs.masquerade]).toEqual([false, true]);
  expect(changeSummary).toMatchObject({ update: 2 });

  await lab.exec("r2", "ip link set overlay-br mtu 1300");
  expect((await codes())["pulumi refresh --preview-only --expect-no-changes"]).toBe(7);
  await lab.exec("r2", "ip link set overlay-br mtu 1450; ip route add 10.128.9.0/24 dev lo");
  expect(await codes()).toMatchObject({ "pulumi preview --diff": 0, "npx overlayctl": 1 });
  await lab.exec("r2", "ip route del 10.128.9.0/24 dev lo");
  stack.program(`new overlay.OverlayNetwork("training", { hubConnection: at("hub"), mtu: 100 });`);
  expect(await codes()).toMatchObject({ "pulumi preview --diff": 1 });
});
