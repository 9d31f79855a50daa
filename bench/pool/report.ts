import { cpus } from "node:os";
import { table } from "../table";
import { EMPTY, NEARLY_FULL } from "./cases";
import { FLOOR, HOWS, type How, type Subject } from "./subjects";
import type { Sample } from "./team";

/** Claims a second: the median, and each round's. */
export interface Figure {
  who: string;
  where: string;
  how: How;
  rate: number;
  rounds: number[];
  duplicates: number;
}

export interface Report {
  quick: boolean;
  fileSystem: string;
  durability: Record<string, string>;
  figures: Figure[];
}

interface Ratio {
  what: string;
  value: number;
  aim: string;
  met: boolean;
}

export function figureOf({ who, where, how }: Subject, samples: Sample[]): Figure {
  const rounds = samples.map(({ rate }) => Math.round(rate * 10) / 10);
  const duplicates = samples.reduce((sum, sample) => sum + sample.duplicates, 0);
  return { who, where, how, rate: median(rounds), rounds, duplicates };
}

export function median(numbers: number[]): number {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

export function report(all: Report): void {
  const ratios = ratiosOf(all.figures);
  console.log(`Claims a second: medians of rounds in which everything was measured in turn. ${cpus().length} CPUs.`);
  console.log(`Data on ${all.fileSystem}, every claim durable when it is answered:`);
  for (const [name, durability] of Object.entries(all.durability)) console.log(`  ${name}: ${durability}`);
  console.log("go-ipam and linear search in memory keep nothing.\n");
  console.log(table(figureRows(all.figures), [2, 3, 4]));
  const duplicates = all.figures.filter((figure) => figure.duplicates > 0);
  for (const { who, how, duplicates: count } of duplicates)
    console.log(`${who}, ${how}: ${count} addresses were given to two at once.`);
  console.log(`\n${table(ratioRows(ratios))}`);
  console.log(JSON.stringify({ ...all, ratios }));
}

function figureRows(figures: Figure[]): string[][] {
  const rows = new Map<string, string[]>();
  for (const { who, where, how, rate } of figures) {
    const row = rows.get(who + where) ?? [who, where, "", "", ""];
    row[2 + HOWS.indexOf(how)] = Math.round(rate).toLocaleString("en");
    rows.set(who + where, row);
  }
  return [["", "", ...HOWS], ...rows.values()];
}

const ratioRows = (ratios: Ratio[]): string[][] => [
  ["", "ratio", "aim"],
  ...ratios.map(({ what, value, aim, met }) => [what, `${value.toFixed(2)}×`, `${aim}: ${met ? "met" : "missed"}`]),
];

/** Each round's figures were taken within seconds, so ratios are taken round by round: noise that lasts cancels out. */
function ratiosOf(figures: Figure[]): Ratio[] {
  const find = (who: string, where: string, how: How) =>
    figures.find((figure) => figure.who === who && figure.where === where && figure.how === how);
  const ratios: Ratio[] = [];
  const compare = (what: string, a: Figure | undefined, b: Figure | undefined, least: number) => {
    if (!a || !b) return;
    const both = Math.min(a.rounds.length, b.rounds.length);
    const value = median(a.rounds.slice(0, both).map((rate, i) => rate / b.rounds[i]!));
    ratios.push({ what, value, aim: `≥ ${least}`, met: value >= least });
  };
  for (const who of ["sqlite", "postgres", "etcd"]) {
    const empty = find(who, EMPTY, "1 at a time");
    for (const full of figures.filter(({ where, how }) => how === "1 at a time" && where !== EMPTY))
      if (full.who === who) compare(`${who}: ${full.where} / empty`, full, empty, 0.5);
    const other = `go-ipam, ${who}`;
    compare(`${who} / ${other}: empty`, empty, find(other, EMPTY, "1 at a time"), 1);
    compare(
      `${who} / ${other}: 90 %`,
      find(who, NEARLY_FULL, "1 at a time"),
      find(other, NEARLY_FULL, "1 at a time"),
      50,
    );
    compare(
      `${who}, 8 processes / ${other}, 1: empty`,
      find(who, EMPTY, "8 processes"),
      find(other, EMPTY, "1 at a time"),
      1,
    );
  }
  const floor = find(FLOOR, "beside sqlite", "1 at a time");
  compare("sqlite / fdatasync: empty", find("sqlite", EMPTY, "1 at a time"), floor, 0.5);
  compare("sqlite, 32 together / fdatasync: empty", find("sqlite", EMPTY, "32 together"), floor, 1);
  return ratios;
}
