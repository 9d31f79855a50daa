import { lossDuring } from "../test/lab/pings";
import { Live, PING, UPDATES, type Update } from "../test/lab/updates";
import { table } from "./table";

/**
 * Packets lost while a live network is changed: a workload pings another one on the other runner each 50 ms, during the
 * change and for a second and a half after it. Before each change there is a control run, in which the same hosts are only
 * read.
 */
interface Measured {
  update: Update;
  lost: number;
  longest: number;
  sent: number;
  control: number;
  milliseconds: number;
  steps: Record<string, number>;
}

export async function benchLoss(): Promise<void> {
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
    update.inPlace ? (lost <= control ? "reached" : "missed") : "",
    Object.entries(steps)
      .filter(([, count]) => count > 0)
      .map(([host, count]) => `${host} ${count}`)
      .join(", "),
  ]);
  console.log(table([["update", "lost", "longest gap", "control", "aim: none", "changes"], ...rows], [1, 2, 3]));
  console.log(JSON.stringify(measured.map(({ update, ...rest }) => ({ update: update.name, ...rest }))));
}
