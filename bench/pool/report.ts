import { cpus } from "node:os";
import { median } from "../measure";
import { table } from "../table";
import type { Sample } from "./claimers";
import { type Ratio, ratiosOf } from "./ratios";
import { HOWS, type How, type Subject } from "./subjects";

/** Claims a second: the median, and each round's. */
export interface Figure {
  system: string;
  where: string;
  how: How;
  rate: number;
  rounds: number[];
  duplicates: number;
}

export interface PoolsReport {
  quick: boolean;
  fileSystem: string;
  durability: Record<string, string>;
  figures: Figure[];
}

export function figureOf({ system, where, how }: Subject, samples: Sample[]): Figure {
  const rounds = samples.map(({ rate }) => Math.round(rate * 10) / 10);
  const duplicates = samples.reduce((sum, sample) => sum + sample.duplicates, 0);
  return { system, where, how, rate: median(rounds), rounds, duplicates };
}

export function printPools(all: PoolsReport): Ratio[] {
  const ratios = ratiosOf(all.figures);
  console.log(
    `Claims a second: medians of rounds in which all subjects were measured alternately. ${cpus().length} CPUs.`,
  );
  console.log(`Data on ${all.fileSystem}, every claim durable when it is answered:`);
  for (const [name, durability] of Object.entries(all.durability)) console.log(`  ${name}: ${durability}`);
  console.log("go-ipam in memory keeps nothing.\n");
  console.log(table(figureRows(all.figures), [2, 3, 4]));
  const duplicates = all.figures.filter((figure) => figure.duplicates > 0);
  for (const { system, how, duplicates: count } of duplicates)
    console.log(`${system}, ${how}: ${count} addresses were given twice.`);
  console.log(`\n${table(ratioRows(ratios))}\n`);
  return ratios;
}

function figureRows(figures: Figure[]): string[][] {
  const rows = new Map<string, string[]>();
  for (const { system, where, how, rate } of figures) {
    const row = rows.get(system + where) ?? [system, where, "", "", ""];
    row[2 + HOWS.indexOf(how)] = Math.round(rate).toLocaleString("en");
    rows.set(system + where, row);
  }
  return [["", "", ...HOWS], ...rows.values()];
}

const ratioRows = (ratios: Ratio[]): string[][] => [
  ["", "ratio", "aim"],
  ...ratios.map(({ what, value, least }) => [
    what,
    `${value.toFixed(2)}×`,
    least === undefined ? "" : verdict(value, least),
  ]),
];

const verdict = (value: number, least: number): string => `≥ ${least}: ${value >= least ? "met" : "missed"}`;
