import { readFile } from "node:fs/promises";
import { tryParseIp } from "../provider/addressing/ip";
import { OverlayError } from "../provider/errors";
import { describeLease, type Imported, importAddresses } from "../provider/reservations";
import { formatValue } from "../provider/reservations/leases";
import { command, rejectUnreadable, withPool } from "./command";

/** `overlayctl import`: addresses in use, from a file. */

interface Options {
  dryRun?: boolean;
}

/** Imports all addresses of a file, or reports all problems and imports none. */
export const importCommand = () =>
  command(
    "import",
    "Record addresses that are already in use, from a CSV or JSON file with ip, and optionally by, network, runner, pool.",
  )
    .argument("<file>", "CSV with a header, a JSON array, or the output of `ip list --json`")
    .option("--dry-run", "only show the addresses and conflicts")
    .action(
      withPool<Options>(async ({ context, out }, { dryRun = false }, file) => {
        const text = await readFile(file!, "utf8").catch(rejectUnreadable(file!));
        const rows = parseRows(file!, text);
        const { result, known, problems } = await importAddresses(context, rows, { dryRun });
        if (problems.length > 0) throw importError(file!, rows.length, problems);
        out.list(result.added.map(describeLease), ["ip", "pool", "state", "usedBy"]);
        const verb = dryRun ? "Would be recorded" : "Recorded";
        out.note(`${verb}: ${result.added.length}; already recorded: ${result.unchanged.length + known}.`);
      }),
    );

function importError(file: string, total: number, problems: Imported<ImportRow>["problems"]): OverlayError {
  const lines = problems
    .sort((a, b) => a.address.line - b.address.line)
    .map(({ address: { line, ip }, message }) => `\n  line ${line}, ${formatValue(ip)}: ${message}`);
  const what = `${problems.length} of ${total} addresses in ${file} cannot be recorded; nothing was written.${lines.join("")}\n `;
  return new OverlayError("IP_IN_USE", what, "Correct the file or release the conflicting addresses, and run again.");
}

/** One address of an import file. */
export interface ImportRow {
  line: number;
  ip: bigint;
  by?: string;
  network?: string;
  runner?: string;
  pool?: string;
}

type Fields = Record<string, unknown>;

/** CSV with a header (or only addresses), a JSON array, or one JSON object per line. Reports all invalid lines. */
function parseRows(file: string, text: string): ImportRow[] {
  const bad: string[] = [];
  const rows = parseRecords(file, text).flatMap(([line, fields]) => {
    const row = parseRow(line, fields);
    if (typeof row !== "string") return [row];
    bad.push(`\n  line ${line}: ${row}`);
    return [];
  });
  if (bad.length === 0) return rows;
  const what = `${bad.length} of ${bad.length + rows.length} lines of ${file} are invalid; nothing was written.${bad.join("")}\n `;
  throw new OverlayError("INPUT_INVALID", what, "Each line needs an ip, and may have by, network, runner and pool.");
}

function parseRow(line: number, fields: Fields): ImportRow | string {
  const { ip, network, runner, pool } = fields;
  const by = fields.by ?? fields.usedBy;
  const port = pool !== undefined && /^[1-9]\d{0,4}$/.test(String(ip)) ? BigInt(String(ip)) : undefined;
  const point = port ?? (typeof ip === "string" ? tryParseIp(ip) : undefined);
  if (point === undefined || formatValue(point) !== String(ip).toLowerCase())
    return `'${ip ?? ""}' is not an IP address`;
  const texts = Object.entries({ by, network, runner, pool }).filter(
    ([, value]) => value !== undefined && value !== "",
  );
  const wrong = texts.find(([, value]) => typeof value !== "string" || !/^[^\s\p{Cc}]{1,200}$/u.test(value));
  return wrong ? `${wrong[0]} is not a plain name` : { line, ip: point, ...Object.fromEntries(texts) };
}

function parseRecords(file: string, text: string): [line: number, Fields][] {
  const start = text.trimStart()[0];
  if (start !== "[" && start !== "{") return parseCsv(text);
  try {
    if (start === "[") return (JSON.parse(text) as unknown[]).map((item, i) => [i + 1, fieldsOf(item)]);
    return splitLines(text).map(([line, each]) => [line, fieldsOf(JSON.parse(each))]);
  } catch (cause) {
    throw new OverlayError("INPUT_INVALID", `${file} is not JSON: ${(cause as Error).message}.`, "Correct it.", cause);
  }
}

/** A string is an address. */
const fieldsOf = (item: unknown): Fields =>
  typeof item === "object" && item !== null ? (item as Fields) : { ip: item };

const splitLines = (text: string): [number, string][] =>
  text
    .split(/\r?\n/)
    .map((line, i): [number, string] => [i + 1, line])
    .filter(([, line]) => line.trim() !== "" && !line.startsWith("#"));

/** Without a header, the columns are the address and the container that uses it. */
function parseCsv(text: string): [number, Fields][] {
  const cells = splitLines(text).map(([line, each]): [number, string[]] => [line, each.split(",").map(unquote)]);
  const header = cells[0]?.[1].map((cell) => cell.toLowerCase()) ?? [];
  const named = header.includes("ip") || header.includes("address");
  const columns = named ? header.map((name) => ALIASES[name] ?? name) : ["ip", "by"];
  return cells
    .slice(named ? 1 : 0)
    .map(([line, values]) => [
      line,
      Object.fromEntries(values.map((value, i) => [columns[i] ?? `column ${i + 1}`, value])),
    ]);
}

const ALIASES: Record<string, string> = { address: "ip", usedby: "by", container: "by" };

/** No valid value contains a comma or a quote. */
const unquote = (cell: string): string => cell.trim().replace(/^"(.*)"$/, "$1");
