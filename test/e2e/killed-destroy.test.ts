import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { descendantsOf, end, identityOf } from "../../lab/process";
import { openIpam } from "../../provider/ipam";
import type { Lease } from "../../provider/ipam/types";
import { type Stack, Workspace } from "./stack";

/** A destroy whose CLI and provider are killed: the next preview shows it, and up restores the resources, without `--refresh`. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
  stack.program(`const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    const runner = new overlay.RunnerSubnet("r1", { network, connection: at("r1"), runnerId: 5 });
    new overlay.IPReservation("a", { runner });`);
  await stack.mustUp();
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

const until = async (what: string, condition: () => Promise<boolean>): Promise<void> => {
  for (const deadline = Date.now() + 60_000; !(await condition()); ) {
    if (Date.now() > deadline) throw new Error(`in 60 s it did not come to this: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};

async function inStore<T>(look: (pool: Awaited<ReturnType<typeof openIpam>>) => Promise<T>): Promise<T> {
  const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
  return look(pool).finally(() => pool.end());
}

const runnerLease = (): Promise<Lease | undefined> =>
  inStore(async (pool) => (await pool.leases("network/training")).find(({ owner }) => owner.endsWith("::r1")));

/** Another process holds the host's lock until the returned function is called. */
async function holdLock(): Promise<() => Promise<unknown>> {
  const command = "flock /run/pulumi-overlay sh -c 'echo $$ >/tmp/holder; exec sleep 600'";
  await lab.exec("r1", `mkdir -pm 700 /run/pulumi-overlay; setsid ${command} </dev/null >/dev/null 2>&1 &`);
  await until("the lock is held", async () => (await lab.exec("r1", "[ -s /tmp/holder ]")).code === 0);
  return () => lab.exec("r1", "kill $(cat /tmp/holder); rm /tmp/holder");
}

/** A destroy that has begun with the runner, and waits for the lock of its host. */
async function startDestroy() {
  const args = ["--non-interactive", "destroy", "--yes", "--skip-preview", "--stack", "dev", "--color", "never"];
  const cli = lab.spawnInController("pulumi", args, { cwd: stack.folder, env: stack.env, stdio: "ignore" });
  const ended = new Promise((resolve) => cli.once("exit", resolve));
  await until("r1 is waited for", async () => (await lab.exec("r1", "pgrep -f '[f]lock -o -E'")).code === 0);
  const kill = async () => {
    await end([identityOf(cli.pid!)!, ...descendantsOf(cli.pid!)]);
    await ended;
    await stack.must("cancel", "--yes", "--stack", "dev");
  };
  return { cli: cli.pid!, kill };
}

const isUp = async (): Promise<boolean> => {
  const links = [await lab.exec("r1", "ip link show overlay-br"), await lab.exec("hub", "ip link show ovl5")];
  return links.every(({ code }) => code === 0);
};

async function expectPutBack(before: Awaited<ReturnType<Stack["state"]>>): Promise<void> {
  await stack.mustUp();
  const after = await stack.state();
  expect(after.r1!.outputs).toMatchObject({ runnerId: 5, subnet: before.r1!.outputs.subnet, drift: [] });
  expect(after.a!.outputs.ip).toBe(before.a!.outputs.ip);
  expect(await isUp()).toBe(true);
  await stack.mustUp("--expect-no-changes");
  expect(await inStore((pool) => pool.admin.fsck())).toEqual([]);
}

test("killed during a conversation with a host: preview shows it, and up restores what is missing", async () => {
  const before = await stack.state();
  const release = await holdLock();
  const destroy = await startDestroy();
  expect((await runnerLease())?.deletingSince).toBeTypeOf("number");
  await destroy.kill();
  await release();
  // All that the host may have done by then.
  await lab.exec("r1", "ip link del overlay-br");
  expect(await stack.must("preview", "--stack", "dev")).toMatch(
    /RunnerSubnet r1: a delete that began at .* was not finished\. Up restores/,
  );
  await expectPutBack(before);
});

test("killed after the release of the lease and before the state is written: up creates it again with the same values", async () => {
  const before = await stack.state();
  const release = await holdLock();
  const destroy = await startDestroy();
  process.kill(destroy.cli, "SIGSTOP"); // it gets no answer of its provider, and writes no state
  await release();
  await until("the runner's lease is released", async () => (await runnerLease())?.state === "quarantined");
  await destroy.kill();
  expect((await stack.state()).r1).toBeDefined();
  expect(await isUp()).toBe(false);
  const shown = await stack.preview();
  expect(shown.find(({ name }) => name === "r1")?.inputs).toMatchObject({ runnerId: 5 });
  await expectPutBack(before);
  await stack.destroy();
});
