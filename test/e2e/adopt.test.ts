import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import ts from "typescript";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { buildKohaku, subnetOf } from "../lab/kohaku";
import { LabCtl } from "../lab/labctl";
import { lossDuring } from "../lab/pings";
import { type Stack, Workspace } from "./stack";

/** An overlay of another program becomes a stack: scan, preview, plan, up, while its workloads exchange packets. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;
let ctl: LabCtl;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  await buildKohaku(lab);
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
  ctl = new LabCtl(lab);
});
afterAll(async () => {
  await lab?.down();
  workspace?.remove();
  ctl?.remove();
});

const overlayctl = (args: string[], input = "") => ctl.run([...args, "--store", workspace.store], input);

test("the program that scan writes is valid TypeScript, and adopts everything without a lost packet", async () => {
  const hosts = lab.hosts.map(({ address }) => address);
  const { stdout: program, code } = await overlayctl(["scan", ...hosts]);
  expect(code).toBe(0);
  typeCheck(program);
  const { outputText } = ts.transpileModule(program, { compilerOptions: { module: ts.ModuleKind.CommonJS } });
  writeFileSync(join(stack.folder, "index.js"), outputText);

  const preview = await stack.must("preview", "--json", "--stack", "dev");
  const planned = await overlayctl(["plan", "-", "--json"], preview);
  expect(planned.json.map(({ host, refused }) => [host, refused])).toEqual(hosts.map((host) => [host, []]));
  const listed = planned.json.flatMap(({ changes }) => changes as { verb: string; item: string }[]);
  const changes = listed.map(({ verb, item }) => `${verb} ${item}`);
  expect(changes).toContain("change link vxkr3");
  expect(changes.filter((change) => /^(add|remove) link/.test(change))).toEqual([]);

  const from = { host: "r1", container: "c1", target: `${subnetOf("r2")}.10` };
  expect(await lossDuring(lab, from, () => stack.mustUp())).toMatchObject({ lost: 0 });
  const state = await stack.state();
  expect([state.r1!.outputs.runnerId, state.r2!.outputs.runnerId]).toEqual([3, 1]);
  await stack.mustUp("--refresh", "--expect-no-changes");
  const done = await overlayctl(["plan", "-", "--json"], await stack.must("preview", "--json", "--stack", "dev"));
  expect(done).toMatchObject({ code: 0, json: [], stderr: "Nothing would be changed on any host.\n" });
});

function typeCheck(program: string): void {
  writeFileSync(join(stack.folder, "scanned.ts"), program);
  const tsc = require.resolve("typescript/bin/tsc");
  execFileSync(process.execPath, [tsc, "--noEmit", "--strict", "--skipLibCheck", "scanned.ts"], { cwd: stack.folder });
}
