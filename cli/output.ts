import { escapeControls, escapeLine } from "../provider/errors";

/** The order of hosts and runners: r2 is before r10. */
export const compareNaturally = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

/**
 * The output of commands. With `--json`: one object per line on stdout, also for errors. Without: tables and sentences. Notes go to
 * stderr, so that stdout can be piped.
 */
export class Output {
  constructor(
    private readonly json: boolean,
    private readonly colours = process.stdout.isTTY === true && !process.env.NO_COLOR,
  ) {}

  /** Prints a list: one object per line, or a table with these columns. `units` formats columns of the table. */
  list<T extends object>(rows: T[], columns: (keyof T & string)[], units: Units<T> = {}): void {
    if (this.json) for (const row of rows) writeLine(jsonLine(row));
    else if (rows.length > 0)
      writeLine(
        this.#table(
          rows.map((row) => withUnits(row, units)),
          columns,
        ),
      );
  }

  /** Prints one object, or a line for each of its properties. */
  one<T extends object>(thing: T, units: Units<T> = {}): void {
    writeLine(this.json ? jsonLine(thing) : this.#lines(withUnits(thing, units)));
  }

  #lines(thing: object): string {
    const lines = Object.entries(thing).filter(([, value]) => value !== undefined);
    const width = Math.max(...lines.map(([key]) => key.length)) + 2;
    return lines.map(([key, value]) => `${this.#dim(key.padEnd(width))}${this.#cell(value)}`).join("\n");
  }

  /** Prints only with `--json`. */
  emit(thing: object): void {
    if (this.json) writeLine(jsonLine(thing));
  }

  /** Prints only without `--json`. */
  say(text: string): void {
    if (!this.json) writeLine(escapeControls(text));
  }

  note(text: string): void {
    process.stderr.write(`${escapeControls(text)}\n`);
  }

  #table<T extends object>(rows: T[], columns: (keyof T & string)[]): string {
    const shown = columns.filter((column) => rows.some((row) => row[column] !== undefined));
    const widths = shown.map((column) => Math.max(column.length, ...rows.map((row) => formatCell(row[column]).length)));
    const line = (cells: string[]) => cells.join("  ").trimEnd();
    return [
      line(shown.map((column, i) => this.#dim(column.padEnd(widths[i]!)))),
      ...rows.map((row) =>
        line(
          shown.map((column, i) => this.#cell(row[column]) + " ".repeat(widths[i]! - formatCell(row[column]).length)),
        ),
      ),
    ].join("\n");
  }

  #cell(value: unknown): string {
    const code = COLOURS[formatCell(value)];
    return this.colours && code ? `\u001b[${code}m${formatCell(value)}\u001b[0m` : formatCell(value);
  }

  #dim(value: string): string {
    return this.colours ? `\u001b[2m${value}\u001b[0m` : value;
  }
}

/** By the text of a cell. */
const COLOURS: Record<string, number> = { used: 32, reserved: 36, offered: 33, quarantined: 2, add: 32, release: 31 };

/** JSON has plain numbers, tables have units. */
export type Units<T> = { [K in keyof T]?: (value: T[K]) => string };

function withUnits<T extends object>(row: T, units: Units<T>): T {
  const texts = Object.keys(units).map((key) => [key, units[key as keyof T]!(row[key as keyof T])]);
  return texts.length === 0 ? row : { ...row, ...Object.fromEntries(texts) };
}

/** On one line; objects such as labels as KEY=VALUE. */
function formatCell(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (typeof value !== "object" || Array.isArray(value)) return escapeLine(String(value));
  return escapeLine(
    Object.entries(value)
      .map(([key, each]) => `${key}=${each}`)
      .join(","),
  );
}

/** Escapes control characters, because text of hosts and stores may be in it. */
export const jsonLine = (thing: object): string => escapeControls(JSON.stringify(thing));

const writeLine = (line: string): void => void process.stdout.write(`${line}\n`);
