import type { EngineName } from "../engines";
import { EMPTY, NEARLY_FULL } from "./cases";
import type { Figure } from "./report";
import { compareRounds } from "./statistics";
import { FLOOR, type How } from "./subjects";

/** How many times as fast one is as the other, and the aim, if there is one. */
export interface Ratio {
  what: string;
  value: number;
  least?: number;
}

type Point = [system: string, where: string, how: How];
type Comparison = [what: string, Point, Point, least: number | undefined];

const ONE: How = "1 at a time";

const PHYSICS: Comparison[] = [
  ["sqlite / fdatasync", ["sqlite", EMPTY, ONE], [FLOOR, "beside sqlite", ONE], 0.5],
  ["sqlite, 32 together / fdatasync", ["sqlite", EMPTY, "32 together"], [FLOOR, "beside sqlite", ONE], 1],
];

const fullness = (system: EngineName, wheres: string[]): Comparison[] =>
  wheres.map((where) => [`${system}: ${where} / empty`, [system, where, ONE], [system, EMPTY, ONE], 0.5]);

function peer(system: EngineName, atEmpty?: number, nearlyFull?: number): Comparison[] {
  const other = `go-ipam, ${system}`;
  return [
    [`${system} / go-ipam: empty`, [system, EMPTY, ONE], [other, EMPTY, ONE], atEmpty],
    [`${system} / go-ipam: 90 %`, [system, NEARLY_FULL, ONE], [other, NEARLY_FULL, ONE], nearlyFull],
    [`${system}, 8 processes / go-ipam, 1`, [system, EMPTY, "8 processes"], [other, EMPTY, ONE], 1],
  ];
}

export function ratiosOf(figures: Figure[]): Ratio[] {
  const wheres = [...new Set(figures.map(({ where }) => where))].filter((where) => where !== EMPTY);
  const comparisons = [
    ...PHYSICS,
    ...(["sqlite", "postgres", "etcd"] as const).flatMap((system) => fullness(system, wheres)),
    ...peer("postgres", 1, 50),
    ...peer("etcd"),
  ];
  return comparisons.flatMap(([what, a, b, least]) => {
    const value = ratio(find(figures, a), find(figures, b));
    return value === undefined ? [] : [{ what, value, ...(least !== undefined && { least }) }];
  });
}

const find = (figures: Figure[], [system, where, how]: Point): Figure | undefined =>
  figures.find((figure) => figure.system === system && figure.where === where && figure.how === how);

const ratio = (a?: Figure, b?: Figure): number | undefined => a && b && compareRounds(a.rounds, b.rounds).median;
