import { cpus } from "node:os";
import { median } from "../measure";
import { compareRounds, summarize } from "../pool/statistics";
import { table } from "../table";
import type { EngineCycles } from "./cycles";
import { AIM_MS, type HostileFigure } from "./hostile";
import { type Latencies, STEPS, type Step } from "./latencies";
import { CLIENTS, CONSTANT, ONE, POOL_ITSELF, type Sample, TWO } from "./subjects";

/** A system in all rounds. */
export interface Figure {
  system: string;
  /** Requests a second in each round; for the pool itself, claims. */
  rates: number[];
  /** Medians of the rounds. Absent for the pool itself. */
  http?: HttpFigure;
}

interface HttpFigure {
  /** Milliseconds of a request, and those of each step. */
  p50: number;
  p99: number;
  steps: Record<Step, Pick<Latencies, "p50" | "p99">>;
  /** CPU time of the service for a request, in milliseconds. */
  cpuMs: number;
  /** Addresses that two clients had at the same time, in all rounds. */
  duplicates: number;
  /** Requests that were sent again after 503, in all rounds. */
  repeated: number;
}

export interface Report {
  quick: boolean;
  /** The highest share of the CPUs that other work used before an engine was measured. */
  busy: number;
  cycles: EngineCycles[];
  hostile: HostileFigure[];
}

export function figureOf(system: string, samples: Sample[]): Figure {
  const http = samples.flatMap((sample) => sample.http ?? []);
  const rates = samples.map(({ rate }) => round(rate));
  if (http.length === 0) return { system, rates };
  const middle = (of: (sample: (typeof http)[number]) => number) => round(median(http.map(of)), 3);
  const steps = STEPS.map((step) => [
    step,
    { p50: middle(({ steps }) => steps[step].p50), p99: middle(({ steps }) => steps[step].p99) },
  ]);
  return {
    system,
    rates,
    http: {
      p50: middle(({ p50 }) => p50),
      p99: middle(({ p99 }) => p99),
      steps: Object.fromEntries(steps) as HttpFigure["steps"],
      cpuMs: middle(({ cpuMs }) => cpuMs),
      duplicates: http.reduce((sum, { duplicates }) => sum + duplicates, 0),
      repeated: http.reduce((sum, { repeated }) => sum + repeated, 0),
    },
  };
}

const round = (value: number, digits = 1): number => Number(value.toFixed(digits));

/** A ratio or a time, and the aim for it. */
export interface Aim {
  what: string;
  value: number;
  unit: "×" | " ms";
  atLeast?: number;
  atMost?: number;
}

export function printReport(report: Report): void {
  const { cycles, hostile, busy } = report;
  const aims = [...cycles.flatMap(cycleAims), ...hostile.flatMap(hostileAims)];
  console.log(`${CLIENTS} clients on loopback, ${cpus().length} CPUs for them, the service and its store.`);
  console.log(`Other work used up to ${Math.round(busy * 100)} % of the CPUs before a measurement.\n`);
  for (const each of cycles) printCycles(each);
  for (const { what, sent, name, largestAnswer } of hostile)
    console.log(`${sent} ${what}: the worst was ${name}. The largest answer had ${largestAnswer} bytes.\n`);
  console.log(`${table([["", "", "aim"], ...aims.map(aimRow)])}\n`);
  console.log(JSON.stringify({ ...report, aims }));
}

function printCycles({ engine, durability, figures }: EngineCycles): void {
  const constant = find(figures, CONSTANT);
  const rows = figures.map((figure) => [
    figure.system,
    rangeText(figure.rates),
    ...(figure.http ? httpCells(figure.http, median(figure.rates)) : ["", "", "", ""]),
    figure.http ? compareRounds(figure.rates, constant.rates).median.toFixed(2) : "",
  ]);
  const heading = [engine, "requests/s", "cycles/s", "p50 ms", "p99 ms", "CPU ms", "/ constant"];
  console.log(table([heading, ...rows], [1, 2, 3, 4, 5, 6]));
  console.log(`${engine}: ${durability}.`);
  // Every client of the constant answer gets the same address.
  const others = figures.filter(({ system }) => system !== CONSTANT).flatMap(({ http }) => http ?? []);
  const sum = (key: "duplicates" | "repeated") => others.reduce((total, each) => total + each[key], 0);
  console.log(`Addresses given twice: ${sum("duplicates")}. Requests repeated after 503: ${sum("repeated")}.\n`);
}

const httpCells = ({ p50, p99, cpuMs }: HttpFigure, rate: number): string[] => [
  whole(rate / STEPS.length),
  p50.toFixed(1),
  p99.toFixed(1),
  cpuMs.toFixed(2),
];

function cycleAims({ engine, figures }: EngineCycles): Aim[] {
  const [one, two, pool] = [find(figures, ONE), find(figures, TWO), find(figures, POOL_ITSELF)];
  const compare = (a: Figure, b: Figure) => compareRounds(a.rates, b.rates).median;
  return [
    {
      what: `${engine}: requests / claims of the pool, 32 together`,
      value: compare(one, pool),
      unit: "×",
      ...(engine === "sqlite" && { atLeast: 0.5 }),
    },
    { what: `${engine}: two instances / one`, value: compare(two, one), unit: "×" },
    ...[one, two].map(({ system, http }): Aim => {
      return { what: `${engine}, ${system}: p99`, value: http!.p99, unit: " ms", atMost: 20 };
    }),
  ];
}

const hostileAims = ({ what, sent, held }: HostileFigure): Aim[] => [
  { what: `event loop held by the worst of ${sent} hostile ${what}`, value: held, unit: " ms", atMost: AIM_MS },
];

function aimRow({ what, value, unit, atLeast, atMost }: Aim): string[] {
  const aim =
    atLeast !== undefined
      ? `≥ ${atLeast}: ${value >= atLeast ? "met" : "missed"}`
      : atMost !== undefined
        ? `≤ ${atMost}: ${value <= atMost ? "met" : "missed"}`
        : "";
  return [what, `${value.toFixed(unit === "×" ? 2 : 1)}${unit}`, aim];
}

const find = (figures: Figure[], system: string): Figure => figures.find((figure) => figure.system === system)!;

/** Rounds that differ a lot show that other work was running meanwhile. */
function rangeText(rates: number[]): string {
  const { median, min, max } = summarize(rates);
  return `${whole(median)} (${whole(min)}–${whole(max)})`;
}

const whole = (value: number): string => Math.round(value).toLocaleString("en");
