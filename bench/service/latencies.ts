export const STEPS = ["reserve", "use", "release"] as const;
export type Step = (typeof STEPS)[number];

/** Milliseconds. */
export interface Latencies {
  p50: number;
  p99: number;
  max: number;
}

export function summarizeLatencies(latencies: number[]): Latencies {
  const sorted = Float64Array.from(latencies).sort();
  const at = (share: number): number => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
  return { p50: at(0.5), p99: at(0.99), max: at(1) };
}
