import { rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Ctl } from "../unit/cli/ctl";
import { Stack, Workspace } from "./stack";

/** The store's file is lost after an up with 50 runners: nothing is allocated until it is rebuilt from the stack. */
const RUNNERS = 50;
const TIMEOUT_MS = 600_000;
const ctl = new Ctl();
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

const program = (more = ""): void =>
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    for (let i = 1; i <= ${RUNNERS}; i++) new overlay.RunnerSubnet("r" + i, { network, connection: at("r" + i) });
    ${more}
  `);

const overlayctl = (...args: string[]) => ctl.must(...args, "--store", workspace.store);

beforeAll(async () => {
  lab = await Lab.up({ runners: RUNNERS });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
  program();
  await stack.mustUp();
  await stack.must("stack", "export", "--stack", "dev", "--file", join(ctl.folder, "dev.json"));
}, TIMEOUT_MS);

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
  ctl.remove();
}, TIMEOUT_MS);

test("preview and up allocate nothing, and fail with a fix", { timeout: TIMEOUT_MS }, async () => {
  const file = workspace.store.replace("sqlite:", "");
  for (const end of ["", "-wal", "-shm", "-journal"]) rmSync(`${file}${end}`, { force: true });
  stack.trace();
  program('new overlay.RunnerSubnet("r51", { network, connection: at("10.254.99.99") });');
  for (const run of [await stack.pulumi("preview", "--stack", "dev"), await stack.up()]) {
    expect(run.code).not.toBe(0);
    expect(run.text).toMatch(/STORE_LOST: .*Nothing is given out\..*`overlayctl recover`/);
  }
  expect(Stack.writes(stack.trace())).toEqual({});
  const pools = await overlayctl("pool", "list");
  expect(pools.filter(({ allocated }) => allocated !== 0)).toEqual([]);
});

test("after the recovery nothing differs, no host is contacted, and new claims avoid all 50", {
  timeout: TIMEOUT_MS,
}, async () => {
  const plan = await overlayctl("recover", "--stack-export", "dev.json");
  expect(plan).toHaveLength(RUNNERS + 1);
  expect(await overlayctl("pool", "list")).toEqual([]);
  await overlayctl("recover", "--stack-export", "dev.json", "--yes");
  expect(await overlayctl("store", "check")).toEqual([]);

  program();
  expect(await stack.preview()).toEqual([]);
  stack.trace();
  await stack.mustUp();
  expect(Stack.writes(stack.trace())).toEqual({});

  const { child, ended } = ctl.start(
    ["gc", "--older-than", "0", "--store", workspace.store],
    stack.env as Record<string, string>,
  );
  child.stdin.end();
  expect(await ended).toMatchObject({
    code: 0,
    stdout: "",
    stderr: "Would be released: 0. Nothing is released without --yes.\n",
  });

  const held = Object.values(await stack.state()).map(({ outputs }) => outputs.runnerId);
  program('new overlay.RunnerSubnet("r51", { network, connection: at("10.254.99.99") });');
  const steps = await stack.preview();
  expect(steps).toMatchObject([{ op: "create", name: "r51", inputs: { runnerId: RUNNERS + 1 } }]);
  expect(held).not.toContain(steps[0]!.inputs.runnerId);
});
