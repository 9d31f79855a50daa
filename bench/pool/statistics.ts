import { median } from "../measure";

/** Median and range of several rounds. */
export interface Summary {
  median: number;
  min: number;
  max: number;
}

export const summarize = (rounds: number[]): Summary => ({
  median: median(rounds),
  min: Math.min(...rounds),
  max: Math.max(...rounds),
});

/** Figures of one round were measured within seconds of each other, so they are compared round by round. */
export const compareRounds = (a: number[], b: number[]): Summary =>
  summarize(a.slice(0, b.length).map((figure, i) => figure / b[i]!));

/** How many values were given although another claim holds them. */
export const countDuplicates = (values: string[]): number => values.length - new Set(values).size;
