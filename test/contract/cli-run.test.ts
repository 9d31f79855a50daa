import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { historyOf } from "../../provider/ipam/interface";
import { Ctl, deploy } from "../unit/cli/ctl";

/** An address that is held while a command runs, however the command ends. */
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

  test("an unknown command exits with 127, and its address is released", async () => {
    const { code, stderr } = await ctl.run(...run("--", "no-such-program"));
    expect(code).toBe(127);
    expect(stderr).toContain("no-such-program");
    expect(await live()).toEqual([]);
  });

  test("signals are passed to the command, and its end by a signal gives the exit code of a shell", async () => {
    const running = ctl.start(
      run("--", "sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done"),
    );
    await until("the command runs", () => running.soFar().includes("ready"));
    running.child.kill("SIGTERM");
    expect(await running.ended).toMatchObject({ code: 3, stdout: "ready\ncaught\n" });
    expect((await ctl.run(...run("--", "sh", "-c", "kill -9 $$"))).code).toBe(137);
    expect(await live()).toEqual([]);
  });

  test("the lease is renewed while the command runs; after kill -9 the command ends and the lease expires", async () => {
    const running = ctl.start(run("--ttl", "2", "--", "sh", "-c", "echo ready; exec sleep 30"));
    await until("the command runs", () => running.soFar().includes("ready"));
    const [lease] = await live();
    await sleep(3500);
    expect((await live()).map(({ uid }) => uid)).toEqual([lease!.uid]);
    running.child.kill("SIGKILL");
    const killed = Date.now();
    await running.ended; // the command has ended then, too
    await until("no owner holds it", async () => (await live()).length === 0);
    expect(Date.now() - killed).toBeLessThan(4000);
    const events = (await ctl.withPool((pool) => historyOf(pool, "runner/training/node1"))).filter(
      ({ uid }) => uid === lease!.uid,
    );
    expect(events.map(({ what }) => what)).toEqual(["claimed"]);
    expect((await ctl.run("store", "check")).code).toBe(0);
  });

  /** Starts processes in the background, in a session of their own and orphaned, and prints the pid of each. */
  const FAMILY = [
    "(sleep 300 & echo $!)",
    "setsid sh -c 'sleep 300 & echo $!; exec sleep 300' & echo $!",
    "sh -c 'env -i sh -c \"echo \\$\\$; exec sleep 300\"; exit' &",
    "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.2; done' &",
  ].join("\n");
  const pidsIn = (text: string): number[] =>
    text
      .split(/\s+/)
      .filter(Boolean)
      .map(Number)
      .filter((pid) => pid > 0);
  const isAlive = (pid: number): boolean => {
    try {
      return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
    } catch {
      return false;
    }
  };

  test.runIf(process.platform === "linux")(
    "kill -9 ends all processes of the command: in the background, in other sessions, ignoring SIGTERM",
    async () => {
      const running = ctl.start(run("--ttl", "2", "--", "sh", "-c", `${FAMILY}\nexec sleep 300`));
      await until("they all run", () => pidsIn(running.soFar()).length === 5);
      const pids = pidsIn(running.soFar());
      expect(pids.filter(isAlive)).toEqual(pids);
      running.child.kill("SIGKILL");
      await until("they are all gone", () => !pids.some(isAlive));
    },
  );

  test.runIf(process.platform === "linux")(
    "background processes of a command end before its address is released",
    async () => {
      const { code, stdout } = await ctl.run(...run("--", "sh", "-c", `${FAMILY}\nsleep 0.5; exit 5`));
      expect([code, pidsIn(stdout).filter(isAlive)]).toEqual([5, []]);
      expect(pidsIn(stdout)).toHaveLength(5);
      expect(await live()).toEqual([]);
    },
  );

  test("a command is ended if its lease is released by another caller", async () => {
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
