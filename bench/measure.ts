import type { TraceEvent } from "../test/e2e/stack";

/** Times of whole commands and of the provider within them, in milliseconds. */

export const seconds = (milliseconds: number): string => (milliseconds / 1000).toFixed(2);
export const ratio = (a: number, b: number): string => `${(a / b).toFixed(2)}×`;

export async function timed(act: () => Promise<unknown>): Promise<number> {
  const started = performance.now();
  await act();
  return Math.round(performance.now() - started);
}

/** The time during which at least one call was at work. */
export function insideProvider(events: TraceEvent[]): number {
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
