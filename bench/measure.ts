import { cpus, setPriority } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import type { TraceEvent } from "../test/e2e/stack";

/** Times of whole commands and of the provider within them, in milliseconds. */

export const seconds = (milliseconds: number): string => (milliseconds / 1000).toFixed(2);
export const ratio = (a: number, b: number): string => `${(a / b).toFixed(2)}×`;

export async function measureTime(act: () => Promise<unknown>): Promise<number> {
  const started = performance.now();
  await act();
  return Math.round(performance.now() - started);
}

/** The time during which at least one call of the provider was running. */
export function timeInProvider(events: TraceEvent[]): number {
  const spans = events.filter(({ call }) => call).map(({ at, milliseconds = 0 }) => [at - milliseconds, at] as const);
  let [sum, until] = [0, 0];
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
    sum += Math.max(0, to - Math.max(from, until));
    until = Math.max(until, to);
  }
  return sum;
}

export function median(numbers: number[]): number {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** The time of all CPUs of this machine since its start. */
function cpuTimes(): { idle: number; all: number } {
  const times = cpus().map((cpu) => cpu.times);
  const idle = times.reduce((total, time) => total + time.idle, 0);
  return { idle, all: times.flatMap((time) => Object.values(time)).reduce((a, b) => a + b, 0) };
}

/** The part of it in which they were busy, with other programs' work. */
export function cpuMilliseconds(): number {
  const { idle, all } = cpuTimes();
  return all - idle;
}

/** The share of the CPUs that are busy at the moment. */
export async function busyShare(milliseconds = 1000): Promise<number> {
  const before = cpuTimes();
  await sleep(milliseconds);
  const after = cpuTimes();
  return 1 - (after.idle - before.idle) / (after.all - before.all);
}

/** Gives this process, and those that it starts, a higher priority than other work on this machine, if it is allowed. */
export function raisePriority(): void {
  try {
    setPriority(-10);
  } catch {
    console.error("No permission for a higher priority: other work on this machine affects the figures.");
  }
}

/** In milliseconds. */
export interface Spent {
  wall: number;
  /** CPU time of the process. */
  node: number;
}

/** What `floor-side.ts` measures in one round, in milliseconds. */
export interface Floors {
  /** Only connections. */
  connected: number;
  created: number;
  refreshed: number;
  withoutPulumi: { created: Spent; refreshed: Spent };
}
