import type { EngineName } from "../engines";
import { EMPTY, NEARLY_FULL } from "./cases";
import type { Figure } from "./report";
import { compareRounds } from "./statistics";
import { FLOOR, type How } from "./subjects";

/** How many times as fast one is as the other, and how many times it is to be at least, where there is an aim. */
export interface Ratio {
  what: string;
  value: number;
  least?: number;
}

type Point = [who: string, where: string, how: How];
type Comparison = [what: string, Point, Point, least: number | undefined];

const ONE: How = "1 at a time";

const PHYSICS: Comparison[] = [
  ["sqlite / fdatasync", ["sqlite", EMPTY, ONE], [FLOOR, "beside sqlite", ONE], 0.5],
  ["sqlite, 32 together / fdatasync", ["sqlite", EMPTY, "32 together"], [FLOOR, "beside sqlite", ONE], 1],
];

const fullness = (who: EngineName, wheres: string[]): Comparison[] =>
  wheres.map((where) => [`${who}: ${where} / empty`, [who, where, ONE], [who, EMPTY, ONE], 0.5]);

function peer(who: EngineName, atEmpty?: number, nearlyFull?: number): Comparison[] {
  const other = `go-ipam, ${who}`;
  return [
    [`${who} / go-ipam: empty`, [who, EMPTY, ONE], [other, EMPTY, ONE], atEmpty],
    [`${who} / go-ipam: 90 %`, [who, NEARLY_FULL, ONE], [other, NEARLY_FULL, ONE], nearlyFull],
    [`${who}, 8 processes / go-ipam, 1`, [who, EMPTY, "8 processes"], [other, EMPTY, ONE], 1],
  ];
}

export function ratiosOf(figures: Figure[]): Ratio[] {
  const wheres = [...new Set(figures.map(({ where }) => where))].filter((where) => where !== EMPTY);
  const comparisons = [
    ...PHYSICS,
    ...(["sqlite", "postgres", "etcd"] as const).flatMap((who) => fullness(who, wheres)),
    ...peer("postgres", 1, 50),
    ...peer("etcd"),
  ];
  return comparisons.flatMap(([what, a, b, least]) => {
    const value = ratio(find(figures, a), find(figures, b));
    return value === undefined ? [] : [{ what, value, ...(least !== undefined && { least }) }];
  });
}

const find = (figures: Figure[], [who, where, how]: Point): Figure | undefined =>
  figures.find((figure) => figure.who === who && figure.where === where && figure.how === how);

const ratio = (a?: Figure, b?: Figure): number | undefined => a && b && compareRounds(a.rounds, b.rounds).median;
