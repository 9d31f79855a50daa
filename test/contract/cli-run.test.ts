import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Ctl, deploy } from "../unit/cli/ctl";

/** An address for the life of a command, whatever ends it. */
const ctl = new Ctl();
beforeAll(() => ctl.withPool((pool) => deploy(pool, ["node1"])));
afterAll(() => ctl.remove());

const run = (...args: string[]): string[] => ["ip", "run", "--network", "training", "--runner", "node1", ...args];
const held = () => ctl.withPool((pool) => pool.leases("runner/training/node1"));
const live = async () => (await held()).filter(({ state }) => state === "reserved");

async function until(what: string, condition: () => Promise<boolean> | boolean): Promise<void> {
  for (const deadline = Date.now() + 20_000; !(await condition()); await sleep(50)) {
    if (Date.now() > deadline) throw new Error(`in 20 s it did not come to this: ${what}`);
  }
}

describe.sequential("overlayctl ip run", { timeout: 60_000 }, () => {
  test("the command finds its address, gateway and runner in its environment; its exit code is passed on", async () => {
    const script = 'echo "$OVERLAY_IP $OVERLAY_GATEWAY $OVERLAY_NETWORK $OVERLAY_RUNNER"; exit 7';
    const { code, stdout } = await ctl.run(...run("--ip", "10.128.64.40", "--", "sh", "-c", script));
    expect([code, stdout]).toEqual([7, "10.128.64.40 10.128.64.1 training node1\n"]);
    expect(await live()).toEqual([]);
  });

  test("options behind the command are the command's", async () => {
    const { code, stdout } = await ctl.run(...run("echo", "--json", "--ip", "x"));
    expect([code, stdout]).toEqual([0, "--json --ip x\n"]);
  });

  test("a command that is not there is 127, and leaves nothing held", async () => {
    const { code, stderr } = await ctl.run(...run("--", "no-such-program"));
    expect(code).toBe(127);
    expect(stderr).toContain("no-such-program");
    expect(await live()).toEqual([]);
  });

  test("signals reach the command, and its end by one is passed on as a shell would", async () => {
    const running = ctl.start(
      run("--", "sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done"),
    );
    await until("the command runs", () => running.soFar().includes("ready"));
    running.child.kill("SIGTERM");
    expect(await running.ended).toMatchObject({ code: 3, stdout: "ready\ncaught\n" });
    expect((await ctl.run(...run("--", "sh", "-c", "kill -9 $$"))).code).toBe(137);
    expect(await live()).toEqual([]);
  });

  test("the lease is renewed as long as the command runs, and is over soon after kill -9, and so is the command", async () => {
    const running = ctl.start(run("--ttl", "2", "--", "sh", "-c", "echo ready; exec sleep 30"));
    await until("the command runs", () => running.soFar().includes("ready"));
    const [lease] = await live();
    await sleep(3500);
    expect((await live()).map(({ uid }) => uid)).toEqual([lease!.uid]);
    running.child.kill("SIGKILL");
    const killed = Date.now();
    await running.ended; // which is when the command has left its output, too
    await until("nobody holds it", async () => (await live()).length === 0);
    expect(Date.now() - killed).toBeLessThan(4000);
    const events = (await ctl.withPool((pool) => pool.history("runner/training/node1"))).filter(
      ({ uid }) => uid === lease!.uid,
    );
    expect(events.map(({ what }) => what)).toEqual(["claimed"]);
    expect((await ctl.run("store", "check")).code).toBe(0);
  });

  test("a command whose lease was taken away is ended", async () => {
    const running = ctl.start(run("--ttl", "2", "--", "sh", "-c", "echo ready; exec sleep 30"));
    await until("the command runs", () => running.soFar().includes("ready"));
    const [lease] = await live();
    await ctl.withPool((pool) => pool.release(lease!.pool, lease!.leaseId));
    running.child.stdin.end();
    const { code, stderr } = await running.ended;
    expect(code).toBe(143);
    expect(stderr).toMatch(/^LEASE_EXPIRED: The lease on 10\.128\.\d+\.\d+ could not be kept: LEASE_FENCED/);
  });
});
