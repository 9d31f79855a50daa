import { compareRounds, type Summary, summarize } from "./statistics";
import { type UsersFigure, type UsersReport, WORKS } from "./users";

/** Markdown for docs/benchmarks.md. */
export function renderUsers({ busy, figures }: UsersReport): string {
  const columns = [...new Set(figures.map(columnOf))];
  const works = Object.keys(WORKS).filter((name) => figures.some(({ work }) => work === name));
  const find = (column: string, work: string, system: UsersFigure["system"]) =>
    figures.find((figure) => columnOf(figure) === column && figure.work === work && figure.system === system);
  const row = (label: string, cell: (column: string) => string | undefined): string[] => {
    const cells = columns.map(cell);
    return cells.some(Boolean) ? [`| ${[label, ...cells.map((text) => text ?? "")].join(" | ")} |`] : [];
  };
  const rates = (work: string, system: UsersFigure["system"]) => (column: string) => {
    const figure = find(column, work, system);
    return figure && text(summarize(figure.rates), figure.rates.some((rate) => rate < 20) ? 1 : 0);
  };
  const ratios = (work: string, system: UsersFigure["system"]) => (column: string) => {
    const [ours, other] = [find(column, work, "this"), find(column, work, system)];
    return ours && other && text(compareRounds(ours.rates, other.rates), 2);
  };
  return [
    `| claims a second: median (lowest–highest) | ${columns.join(" | ")} |`,
    `| --- |${" --- |".repeat(columns.length)}`,
    ...works.flatMap((work) => [
      ...row(WORKS[work]!.label, rates(work, "this")),
      ...row(`${WORKS[work]!.label}: go-ipam`, rates(work, "go-ipam")),
      ...row("… ratio to go-ipam", ratios(work, "go-ipam")),
      ...row("… ratio to the other checkout", ratios(work, "against")),
    ]),
    "",
    ...(["this", "against", "go-ipam"] as const).flatMap((system) => duplicatesOf(figures, system)),
    `Other work used up to ${Math.round(busy * 100)} % of the CPUs before a measurement.`,
  ].join("\n");
}

const NAMES: Record<string, string> = { sqlite: "SQLite", postgres: "PostgreSQL" };
const columnOf = ({ where, linkMs }: UsersFigure): string =>
  `${NAMES[where] ?? where}${linkMs ? `, ${linkMs} ms` : ""}`;

function text({ median, min, max }: Summary, digits: number): string {
  const [middle, low, high] = [median, min, max].map((figure) =>
    figure.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
  );
  return `${middle} (${low}–${high})`;
}

function duplicatesOf(figures: UsersFigure[], system: UsersFigure["system"]): string[] {
  const own = figures.filter((figure) => figure.system === system);
  const found = own.filter(({ duplicates }) => duplicates > 0);
  const places = found.map((figure) => `${figure.duplicates} on ${columnOf(figure)} (${figure.work})`);
  return own.length ? [`Duplicates, ${system}: ${places.join(", ") || "0"}.`] : [];
}
