import { readFile } from "node:fs/promises";
import { OverlayError } from "../errors";
import { describeLease, type Imported, importAddresses } from "../reservations";
import { valueText } from "../reservations/leases";
import { command, withPool } from "./command";
import { type Row, rowsIn } from "./rows";

interface Options {
  dryRun?: boolean;
}

/** All of the file or nothing of it; every problem is named at once. */
export const importCommand = () =>
  command(
    "import",
    "Enter addresses that are in use already, from a CSV or JSON file: ip, and if known by, network, runner, pool.",
  )
    .argument("<file>", "CSV with a header, a JSON array, or what `ip list --json` prints")
    .option("--dry-run", "only say what would be entered, and what is in the way")
    .action(
      withPool<Options>(async ({ pool, context: { tenant }, out }, { dryRun = false }, file) => {
        const text = await readFile(file!, "utf8").catch((error: Error) => {
          throw new OverlayError("INPUT_INVALID", `${file} cannot be read: ${error.message}.`, "Name a file.", error);
        });
        const rows = rowsIn(file!, text);
        const { result, known, problems } = await importAddresses(pool, rows, { dryRun, tenant });
        if (problems.length > 0) throw refusal(file!, rows.length, problems);
        out.list(result.added.map(describeLease), ["ip", "pool", "state", "usedBy"]);
        const verb = dryRun ? "Would be entered" : "Entered";
        out.note(`${verb}: ${result.added.length}; there already: ${result.known.length + known}.`);
      }),
    );

function refusal(file: string, total: number, problems: Imported<Row>["problems"]): OverlayError {
  const lines = problems
    .sort((a, b) => a.address.line - b.address.line)
    .map(({ address: { line, ip }, message }) => `\n  line ${line}, ${valueText(ip)}: ${message}`);
  const what = `${problems.length} of ${total} addresses in ${file} cannot be entered; nothing was written.${lines.join("")}\n `;
  return new OverlayError("IP_IN_USE", what, "Correct the file or release what is in the way, and run again.");
}
