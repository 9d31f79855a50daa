import { LiveTunnels, PINGS, RUNNERS } from "../test/lab/live-tunnels";
import { type Loss, lossDuring } from "../test/lab/pings";
import { Live, PING, UPDATES, type Update } from "../test/lab/updates";
import { benchMove, benchRotation } from "./loss-many";
import { table } from "./table";

/**
 * Packets lost while a live network is changed. `bench -- loss [PART [SIZE…]]`; without a part, all.
 *
 * `updates`: a workload pings another one on the other runner each 50 ms, during the
 * change and for a second and a half after it. Before each change there is a control run, in which the same hosts are only
 * read.
 *
 * `tunnels`: ten pings in both families between three runners and their hub, each 20 ms, while tunnel, keys or topology change.
 *
 * `rotation`, `move`: many runners, in `loss-many.ts`.
 */
const PARTS: Record<string, (sizes: number[]) => Promise<void>> = {
  updates: benchUpdates,
  tunnels: benchTunnels,
  rotation: ([runners, rotations]) => benchRotation(runners, rotations),
  move: ([runners]) => benchMove(runners),
};

export async function benchLoss([part, ...sizes]: string[]): Promise<void> {
  const chosen = part === undefined ? Object.values(PARTS) : [PARTS[part]];
  for (const bench of chosen) {
    if (!bench) throw new Error(`npm run bench -- loss [${Object.keys(PARTS).join(" | ")}]`);
    await bench(sizes.map(Number));
  }
}

interface Measured {
  update: Update;
  lost: number;
  longest: number;
  sent: number;
  control: number;
  milliseconds: number;
  steps: Record<string, number>;
}

async function benchUpdates(): Promise<void> {
  const live = await Live.up();
  try {
    const measured: Measured[] = [];
    for (const update of UPDATES) measured.push(await measure(live, update));
    report(measured);
  } finally {
    await live.lab.down();
  }
}

async function measure(live: Live, update: Update): Promise<Measured> {
  await update.before?.(live.lab);
  const control = await lossDuring(live.lab, PING, () => live.look());
  live.stack.steps();
  const started = performance.now();
  let milliseconds = 0;
  const { sent, lost, longest } = await lossDuring(live.lab, PING, async () => {
    await update.act(live);
    milliseconds = Math.round(performance.now() - started);
  });
  const steps = live.stack.steps();
  await update.after?.(live.lab);
  return { update, sent, lost, longest, control: control.lost, milliseconds, steps };
}

function report(measured: Measured[]): void {
  const rows = measured.map(({ update, lost, longest, sent, control, steps }) => [
    update.name,
    `${lost} of ${sent}`,
    longest === 0 ? "" : `${longest * 50} ms`,
    String(control),
    update.effect === "with loss" ? "" : lost <= control ? "reached" : "missed",
    Object.entries(steps)
      .filter(([, count]) => count > 0)
      .map(([host, count]) => `${host} ${count}`)
      .join(", "),
  ]);
  console.log(table([["update", "lost", "longest gap", "control", "aim: none", "changes"], ...rows], [1, 2, 3]));
  console.log(JSON.stringify(measured.map(({ update, ...rest }) => ({ update: update.name, ...rest }))));
}

const WIREGUARD = { tunnel: "wireguard" };
const NEW_KEYS = { ...WIREGUARD, keyGeneration: 1 };

type Change = [name: string, act: (live: LiveTunnels) => Promise<unknown>];

const THERE_AND_BACK: Change[] = [
  ["vxlan to wireguard", (live) => live.put(WIREGUARD)],
  ["wireguard to vxlan", (live) => live.put()],
];
const ALL_CHANGES: Change[] = [
  ...THERE_AND_BACK,
  ["vxlan to wireguard again", (live) => live.put(WIREGUARD)],
  ["new keys for all", (live) => live.put(NEW_KEYS)],
  [
    "new keys for one runner",
    async ({ stack }) => {
      stack.nextRun();
      await stack.runner("r1", { keyGeneration: 2 });
    },
  ],
  ["new keys for the hub and the others", (live) => live.put({ ...WIREGUARD, keyGeneration: 2 })],
  ["hub to mesh", (live) => live.put({ ...WIREGUARD, keyGeneration: 2, topology: "mesh" })],
  ["mesh to hub", (live) => live.put({ ...WIREGUARD, keyGeneration: 2 })],
];

async function benchTunnels(): Promise<void> {
  await changeTunnels("rp_filter=0", ALL_CHANGES, () => LiveTunnels.up());
  await changeTunnels("rp_filter=1 on all hosts", ALL_CHANGES, () => LiveTunnels.up({}, true));
  await changeTunnels("a cached ICMP redirect", THERE_AND_BACK, async () => {
    const live = await LiveTunnels.up();
    await live.learnRedirect();
    return live;
  });
}

async function changeTunnels(title: string, changes: Change[], up: () => Promise<LiveTunnels>): Promise<void> {
  const live = await up();
  try {
    const rows: string[][] = [];
    for (const [name, act] of changes) {
      const control = await live.lossDuring(() => live.drift());
      const started = performance.now();
      let seconds = 0;
      const losses = await live.lossDuring(async () => {
        await act(live);
        seconds = (performance.now() - started) / 1000;
      });
      const devices = await Promise.all(["hub", ...RUNNERS].map((host) => live.devices(host)));
      const [worst, { longest }] = Object.entries(losses).sort(([, one], [, other]) => other.longest - one.longest)[0]!;
      const gap = longest === 0 ? "" : `${longest * 20} ms: ${worst}`;
      rows.push([name, ...sumLosses(losses), gap, ...sumLosses(control), seconds.toFixed(1), devices.join(" | ")]);
    }
    const header = [title, "IPv4", "IPv6", "longest gap", "control IPv4", "IPv6", "seconds", "devices afterwards"];
    console.log(table([header, ...rows], [1, 2, 4, 5, 6]));
  } finally {
    await live.lab.down();
  }
}

/** "LOST of SENT" for each family. */
function sumLosses(losses: Record<string, Loss>): string[] {
  return [false, true].map((isIpv6) => {
    const ofFamily = Object.keys(losses).filter((name) => PINGS[name]!.target.includes(":") === isIpv6);
    const sum = (key: "lost" | "sent") => ofFamily.reduce((total, name) => total + losses[name]![key], 0);
    return `${sum("lost")} of ${sum("sent")}`;
  });
}
