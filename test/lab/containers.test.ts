import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { LabDocker } from "../../lab/docker";
import { Lab } from "../../lab/lab";
import { LabStack, must } from "./lab-stack";
import { LabCtl } from "./labctl";

/** Containers that were started by hand on a runner, in the pool and in `overlayctl gc`. Tests build on each other. */
let lab: Lab;
let docker: LabDocker;
let ctl: LabCtl;
let stack: LabStack;
let why: string | undefined;

const dockerTest = (name: string, body: () => Promise<void>) =>
  test(name, async ({ skip }) => {
    skip(why !== undefined, why);
    await body();
  });

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  docker = new LabDocker(lab);
  why = await docker.findObstacle("r1");
  if (why) return console.warn(`\nSKIPPED: all tests with Docker, since it cannot run here: ${why}\n`);
  ctl = new LabCtl(lab);
  stack = await LabStack.on(lab, ctl.store);
  await stack.network({ subnets: ["10.128.0.0/12/6/14", "fd00:128::/48/16/64"] });
  await stack.runner("r1");
});

afterAll(async () => {
  if (docker && !why) await docker.stop("r1");
  await lab?.down();
  ctl?.remove();
});

const run = (name: string, options = "") =>
  must(
    lab,
    "r1",
    `docker run -d --stop-signal KILL --name ${name} --network kohakuriver-overlay ${options} busybox /bin/sleep 9999`,
  );
const list = async (...args: string[]): Promise<string[]> => {
  const { code, json, stderr } = await ctl.run([...args, "--json"]);
  if (code !== 0) throw new Error(stderr);
  return json.map(({ ip, value, state, action, usedBy, owner }) =>
    [ip ?? value, state ?? action, usedBy ?? owner].join(" "),
  );
};
const addresses = (): Promise<string[]> => list("ip", "list");
const candidates = (...args: string[]): Promise<string[]> =>
  list("gc", "--containers", "training", "--older-than", "0", ...args);

dockerTest("a refresh shows addresses of containers without a lease, and the next up imports them", async () => {
  await ctl.run(["ip", "use", "--network", "training", "--runner", "r1", "--ip", "10.128.64.7", "--by", "told"]);
  await run("told", "--ip 10.128.64.7");
  await run("alpha", "--ip 10.128.64.9 --ip6 fd00:128:0:1::9");
  await run("picked");
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual([
    `${lab.host("r1").address}: container alpha has 10.128.64.9 and fd00:128:0:1::9, which is not reserved`,
  ]);
  expect(await addresses()).toEqual(["10.128.64.7 used told"]);
  await stack.refresh();
  stack.steps();
  await stack.runner("r1");
  expect(stack.steps()).toEqual({ hub: 0, r1: 0 });
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
  expect(await addresses()).toEqual(["10.128.64.7 used told", "10.128.64.9 used alpha"]);
});

dockerTest("gc lists leases of removed containers, and not those of stopped containers or VMs", async () => {
  const use = ["ip", "use", "--network", "training", "--runner", "r1", "--ip", "10.128.64.8", "--by", "vm"];
  await ctl.run(use);
  expect(await candidates()).toEqual(["10.128.64.8 release overlayctl/training/r1/vm"]);
  await ctl.run([...use, "--vm"]);
  expect(await candidates()).toEqual([]);
  await must(lab, "r1", "docker stop -t 0 told alpha");
  expect(await candidates()).toEqual([]);
  await must(lab, "r1", "docker rm told");
  expect(await candidates()).toEqual(["10.128.64.7 release overlayctl/training/r1/told"]);
  expect(await addresses()).toHaveLength(3);
  expect(await candidates("--yes")).toEqual(["10.128.64.7 release overlayctl/training/r1/told"]);
  expect(await addresses()).toEqual(["10.128.64.8 used vm", "10.128.64.9 used alpha"]);
});

dockerTest("gc does not list imported leases: any program may use them", async () => {
  const file = join(ctl.folder, "used.csv");
  writeFileSync(file, "10.128.64.30,printer\n");
  await ctl.run(["import", file]);
  expect(await addresses()).toContain("10.128.64.30 used printer");
  expect(await candidates()).toEqual([]);
  await ctl.run(["ip", "free", "--network", "training", "--runner", "r1", "--ip", "10.128.64.30"]);
});

dockerTest("while a container runs, its runner and its lease cannot be deleted", async () => {
  await ctl.run(["ip", "free", "--network", "training", "--runner", "r1", "--ip", "10.128.64.8"]);
  await must(lab, "r1", "docker start alpha");
  await expect(stack.destroy()).rejects.toThrow("DOCKER_NETWORK_IN_USE");
  await must(lab, "hub", "ip link show vxkr1"); // the hub's end of its tunnel stays, too
  expect(await addresses()).toContain("10.128.64.9 used alpha");
});

dockerTest("while dockerd is down gc prints that, and lists nothing", async () => {
  await must(lab, "r1", "docker rm -f alpha picked");
  await docker.stop("r1");
  const { json, stderr } = await ctl.run(["gc", "--containers", "training", "--older-than", "0", "--json"]);
  expect(json).toEqual([]);
  expect(stderr).toContain("Skipped: r1 (DOCKER_UNAVAILABLE: its Docker does not answer.");
  await docker.start("r1");
  expect(await candidates()).toEqual(["10.128.64.9, fd00:128:0:1::9 release docker/training/r1/alpha"]);
});

dockerTest("imported leases of containers do not prevent the delete of a runner", async () => {
  await stack.destroy();
  expect(await must(lab, "r1", "docker network ls --format '{{.Name}}'")).not.toContain("kohakuriver-overlay");
});
