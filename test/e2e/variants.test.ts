import { mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { Workspace } from "./stack";

/** Other ways to use it: both address families, a user with sudo, a jump host, and programs that are ES modules. */
let lab: Lab;
let workspace: Workspace;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  workspace = new Workspace(lab);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

test("a dual-stack network, by a user with sudo, one runner behind a jump host", async () => {
  const stack = await workspace.stack("dual");
  stack.program(`
    const ops = (host, more) => ({ ...at(host, more), user: "ops" });
    const network = new overlay.OverlayNetwork("dual", {
      subnets: ["10.128.0.0/12/6/14", "fd00:128::/40/6/82"], hubConnection: ops("hub"),
    });
    new overlay.RunnerSubnet("r1", { network, connection: ops("r1") });
    new overlay.RunnerSubnet("r2", { network, connection: ops("r2", { proxy: at("hub") }) });
  `);
  await stack.mustUp();
  const { r1, r2, dual } = await stack.state();
  expect(dual!.outputs).toMatchObject({ cidr: "10.128.0.0/12", cidr6: "fd00:128::/40", hubIp6: "fd00:128::1" });
  expect([r1!.outputs.subnet6, r2!.outputs.subnet6].sort()).toEqual(["fd00:128:4::/46", "fd00:128:8::/46"]);
  for (const { outputs } of [r1!, r2!]) {
    await lab.container(String(outputs.runnerName), "job", {
      bridge: "overlay-br",
      address: [`${outputs.firstIp}/18`, `${outputs.firstIp6}/46`],
      gateway: [String(outputs.gateway), String(outputs.gateway6)],
    });
  }
  for (const target of [r2!.outputs.firstIp, r2!.outputs.firstIp6, "10.128.0.1", "fd00:128::1"]) {
    const { stdout } = await lab.exec("r1", `ip netns exec job ping -q -c 2 -i 0.2 -M do -s 1400 ${target}`);
    expect(`${target}:${/, (\d+% packet loss)/.exec(stdout)?.[1]}`).toBe(`${target}:0% packet loss`);
  }
  await stack.destroy();
  for (const { name } of lab.hosts) expect(`${name}: ${await findLeftovers(lab, name)}`).toBe(`${name}: `);
});

test("a program that is an ES module shares one instance with the provider", async () => {
  const stack = await workspace.stack("esm", { project: "esm" });
  rmSync(join(stack.folder, "package.json"));
  writeFileSync(join(stack.folder, "package.json"), '{ "type": "module", "main": "index.js" }');
  writeFileSync(
    join(stack.folder, "index.js"),
    `import { OverlayNetwork, RunnerSubnet } from "pulumi-overlay";
const network = new OverlayNetwork("esm", { hubConnection: { host: "10.254.0.1" } });
new RunnerSubnet("r1", { network, connection: { host: "10.254.1.1" } });
`,
  );
  const steps = await stack.preview();
  expect(steps.find(({ name }) => name === "r1")!.inputs).toMatchObject({
    runnerId: 1,
    network: "esm",
  });
});

test.each([
  ["CommonJS, the default of ts-node", "commonjs", "node10", "{}"],
  ["ES modules with NodeNext", "nodenext", "nodenext", '{ "type": "module" }'],
])("types fit a TypeScript program: %s", async (_, module, moduleResolution, pkg) => {
  const folder = join(workspace.folder, `types-${module}`);
  const repo = join(__dirname, "../..");
  mkdirSync(join(folder, "node_modules"), { recursive: true });
  symlinkSync(repo, join(folder, "node_modules/pulumi-overlay"));
  symlinkSync(join(repo, "node_modules/@pulumi"), join(folder, "node_modules/@pulumi"));
  writeFileSync(join(folder, "package.json"), pkg);
  writeFileSync(
    join(folder, "index.ts"),
    `import * as pulumi from "@pulumi/pulumi";
import { type ConnectionArgs, OverlayNetwork, RunnerSubnet } from "pulumi-overlay";
import type { types } from "@pulumi/command";
declare const shared: types.input.remote.ConnectionArgs;
const connection: ConnectionArgs = shared; // one object serves both packages
const network = new OverlayNetwork("n", { hubConnection: connection, mtu: 1400 });
const runner = new RunnerSubnet("r", { network, connection });
const byName = new RunnerSubnet("s", { network: "n", connection, hubConnection: connection });
export const subnet: pulumi.Output<string> = runner.subnet;
export const id: pulumi.Output<number> = byName.runnerId;
// @ts-expect-error there is no such input
new OverlayNetwork("n", { hubConnection: connection, colour: "red" });
`,
  );
  const options = [
    "--strict",
    "--noEmit",
    "--skipLibCheck",
    "--target",
    "es2022",
    "--module",
    module,
    "--moduleResolution",
    moduleResolution,
  ];
  const { code, stdout } = await lab.controller(
    "node",
    [join(repo, "node_modules/typescript/bin/tsc"), ...options, "index.ts"],
    { cwd: folder },
  );
  expect(`${code} ${stdout}`).toBe("0 ");
});
