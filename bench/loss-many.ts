import { Lab } from "../lab/lab";
import { inParallel } from "../lab/process";
import type { Values } from "../provider/lifecycle/values";
import { LabStack, must } from "../test/lab/lab-stack";
import { addJob, jobs, SUBNETS } from "../test/lab/live-tunnels";
import { type Loss, lossOfAll, type Ping, tries } from "../test/lab/pings";
import { table } from "./table";

/**
 * Packets lost of a dual-stack network of many runners with WireGuard. A workload on each runner pings that on the next one, in both families,
 * during the change and for a second and a half after it. All pings together are at most a thousand a second, so that they do not themselves
 * overload one machine with all hosts.
 */
const WIREGUARD = { tunnel: "wireguard", subnets: SUBNETS };
const PINGS_A_SECOND = 1000;
/** As Pulumi does by default on two cores. */
const RUNNERS_AT_ONCE = 8;

interface Change {
  losses: Record<string, Loss>;
  seconds: number;
}

class ManyRunners {
  private constructor(
    readonly lab: Lab,
    readonly stack: LabStack,
    readonly runners: number,
  ) {}

  /** Runner rN on host rN, each with a workload, and so many hosts more. */
  static async up(runners: number, network: Values, spare = 0): Promise<ManyRunners> {
    const lab = await Lab.up({ runners: runners + spare });
    try {
      const many = new ManyRunners(lab, await LabStack.on(lab), runners);
      await many.put(network);
      for (let id = 1; id <= runners; id++) await addJob(lab, `r${id}`, "job", id, 9);
      for (const { host, target } of Object.values(many.pings()))
        await must(lab, host, `(${tries(`ip netns exec job ping -n -c 1 -W 1 ${target} >/dev/null`)})`);
      return many;
    } catch (error) {
      await lab.down();
      throw error;
    }
  }

  /** An up of the whole stack. */
  async put(network: Values): Promise<void> {
    this.stack.nextRun();
    await this.stack.network(network);
    const runners = Array.from({ length: this.runners }, (_, i) => async () => {
      await this.stack.runner(`r${i + 1}`);
    });
    await inParallel(runners, RUNNERS_AT_ONCE);
  }

  async drift(): Promise<void> {
    const found = Array.from({ length: this.runners }, (_, i) => this.stack.drift("RunnerSubnet", `r${i + 1}`));
    const drift = (await Promise.all(found)).flat();
    if (drift.length > 0) throw new Error(`${drift}`);
  }

  /** Each of `runners` pings the next of them. */
  pings(runners = this.runners): Record<string, Ping> {
    const ring = Array.from({ length: runners }, (_, i) => [i + 1, ((i + 1) % runners) + 1] as const);
    return Object.fromEntries(
      ring.flatMap(([from, to]) =>
        Object.values(jobs(to, 9)).map((target) => [
          `r${from} to r${to}, ${target}`,
          { host: `r${from}`, container: "job", target },
        ]),
      ),
    );
  }

  async change(pings: Record<string, Ping>, act: () => Promise<unknown>): Promise<Change> {
    const interval = Math.max(0.02, Object.keys(pings).length / PINGS_A_SECOND);
    let seconds = 0;
    const timed = async () => {
      const started = performance.now();
      await act();
      seconds = (performance.now() - started) / 1000;
    };
    return { losses: await lossOfAll(this.lab, pings, timed, interval), seconds };
  }
}

const HEADER = ["lost", "pings with loss", "longest row"];
function columns({ losses }: Change): string[] {
  const all = Object.values(losses);
  const sum = (key: "lost" | "sent") => all.reduce((total, loss) => total + loss[key], 0);
  const lossy = all.filter(({ lost }) => lost > 0).length;
  return [`${sum("lost")} of ${sum("sent")}`, `${lossy} of ${all.length}`, `${Math.max(...all.map((l) => l.longest))}`];
}

/** All hosts get new keys, again and again. */
export async function benchRotation(runners = 20, rotations = 10): Promise<void> {
  const many = await ManyRunners.up(runners, WIREGUARD);
  try {
    const control = await many.change(many.pings(), () => many.drift());
    const rows = [["control: hosts are read", ...columns(control), control.seconds.toFixed(1)]];
    for (let keyGeneration = 1; keyGeneration <= rotations; keyGeneration++) {
      const change = await many.change(many.pings(), () => many.put({ ...WIREGUARD, keyGeneration }));
      rows.push([`keys of generation ${keyGeneration}`, ...columns(change), change.seconds.toFixed(1)]);
    }
    await many.drift();
    console.log(table([[`1 hub + ${runners} runners`, ...HEADER, "seconds"], ...rows], [1, 2, 3, 4]));
  } finally {
    await many.lab.down();
  }
}

/** In a mesh, the last runner moves to another host, and back. Pings are those of the other runners. */
export async function benchMove(runners = 63): Promise<void> {
  const many = await ManyRunners.up(runners, { ...WIREGUARD, topology: "mesh" }, 1);
  try {
    const { stack, lab } = many;
    const [mover, spare] = [`r${runners}`, `r${runners + 1}`];
    const pings = many.pings(runners - 1);
    const control = await many.change(pings, () => many.drift());
    const rows = [["control: hosts are read", ...columns(control), control.seconds.toFixed(1), "", ""]];
    for (const host of [spare, mover]) {
      stack.nextRun();
      stack.reports.splice(0);
      const change = await many.change(pings, () => stack.runner(mover, { connection: stack.at(host) }));
      const changed = stack.reports.filter(({ steps }) => steps > 0);
      const hosts = new Set(changed.map((report) => report.host)).size;
      rows.push([
        `${mover} moves to host ${host}`,
        ...columns(change),
        change.seconds.toFixed(1),
        String(hosts),
        String(stack.reports.length),
      ]);
      await expectDirect(lab, runners);
    }
    const header = [`mesh of ${runners} runners`, ...HEADER, "seconds", "hosts changed", "conversations"];
    console.log(table([header, ...rows], [1, 2, 3, 4, 5, 6]));
  } finally {
    await many.lab.down();
  }
}

/** Packets of the others reach the runner that has moved without the hub. */
async function expectDirect(lab: Lab, runners: number): Promise<void> {
  const gateway = jobs(runners, 1)[4];
  for (let id = 1; id < runners; id++) await must(lab, `r${id}`, `ping -n -c 1 -W 2 -t 1 ${gateway} >/dev/null`);
}
