import { afterAll, beforeAll, expect, test } from "vitest";
import { LabDocker } from "../../lab/docker";
import { Lab } from "../../lab/lab";
import { must } from "../lab/lab-stack";
import { type Stack, Workspace } from "./stack";

/** A container that was started by hand, in the output of Pulumi's commands. */
let lab: Lab;
let docker: LabDocker;
let workspace: Workspace;
let stack: Stack;
let why: string | undefined;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  docker = new LabDocker(lab);
  why = await docker.findObstacle("r1");
  if (why) return console.warn(`\nSKIPPED: all tests with Docker, since it cannot run here: ${why}\n`);
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
});
afterAll(async () => {
  if (docker && !why) await docker.stop("r1");
  await lab?.down();
  workspace?.remove();
});

const addresses = (): Promise<string> => workspace.overlayctl("ip", "list", "--json");

test("a preview of a refresh shows its address and commits nothing; up --refresh makes it used, once", async ({
  skip,
}) => {
  skip(why !== undefined, why);
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    new overlay.RunnerSubnet("r1", { network, connection: at("r1") });
  `);
  await stack.mustUp();
  const run = "docker run -d --stop-signal KILL --name alpha --network pulumi-overlay --ip 10.128.64.9";
  await must(lab, "r1", `${run} busybox /bin/sleep 9999`);
  const shown = await stack.must("refresh", "--preview-only", "--diff", "--stack", "dev", "--color", "never");
  expect(shown).toContain("container alpha has 10.128.64.9, which is not reserved");
  expect(await addresses()).toBe("");
  await stack.mustUp("--refresh");
  expect(JSON.parse(await addresses())).toMatchObject({ ip: "10.128.64.9", state: "used", usedBy: "alpha" });
  await stack.must("preview", "--refresh", "--expect-no-changes", "--stack", "dev");
  await must(lab, "r1", "docker rm -f alpha");
  await stack.destroy();
});
