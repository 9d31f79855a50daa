import { readFile } from "node:fs/promises";
import { fromLine } from "../addressing/line";
import { OverlayError } from "../errors";
import type { Enrolment, Fact, Opening } from "../pool";
import { command, withPool } from "./command";
import { atAddress, knownNetworks } from "./ip/place";
import { factFor, isOf, view } from "./ip/reservation";
import { addressSpec, type Runner } from "./ip/runner";
import { type Row, rowsIn } from "./rows";

interface Options {
  dryRun?: boolean;
}

type Problem = { line: number; ip: string; message: string };

/** All of the file or nothing of it; every problem is named at once. */
export const importCommand = () =>
  command(
    "import",
    "Enter addresses that are in use already, from a CSV or JSON file: ip, and if known by, network, runner.",
  )
    .argument("<file>", "CSV with a header, a JSON array, or what `ip list --json` prints")
    .option("--dry-run", "only say what would be entered, and what is in the way")
    .action(
      withPool<Options>(async ({ pool, out }, { dryRun = false }, file) => {
        const text = await readFile(file!, "utf8").catch((error: Error) => {
          throw new OverlayError("INPUT_INVALID", `${file} cannot be read: ${error.message}.`, "Name a file.", error);
        });
        const networks = await knownNetworks(pool);
        const problems: Problem[] = [];
        const [facts, known, runners] = [new Map<Fact, Row>(), [] as Row[], new Map<string, Runner>()];
        for (const row of rowsIn(file!, text)) {
          const place = await atAddress(pool, networks, row);
          if (typeof place === "string") {
            problems.push(problemAt(row, place));
            continue;
          }
          runners.set(place.pool, place);
          const holder = row.by === undefined ? undefined : await pool.find(place.pool, { value: row.ip });
          if (holder && isOf(holder, row.by!)) known.push(row);
          else facts.set(factFor(place, row), row);
        }
        const opening = [...runners.values()].filter(({ lease, pool }) => lease.opens !== pool).map(openingOf);
        const plan = await pool.enrol([...facts.keys()], { opening, dryRun: dryRun || problems.length > 0 });
        problems.push(...plan.conflicts.map(({ fact, error }) => problemAt(facts.get(fact)!, error.message)));
        if (problems.length > 0) throw refusal(file!, problems);
        out.list(plan.added.map(view), ["ip", "network", "runner", "state", "usedBy"]);
        out.note(summary(plan, known.length, dryRun));
      }),
    );

const problemAt = ({ line, ip }: Row, message: string): Problem => ({ line, ip: fromLine(ip), message });

const openingOf = (runner: Runner): Opening => ({
  pool: runner.lease.pool,
  leaseId: runner.lease.leaseId,
  opens: addressSpec(runner),
});

const summary = ({ added, known }: Enrolment, others: number, dryRun: boolean): string =>
  `${added.length} addresses ${dryRun ? "would be" : "were"} entered; ${known.length + others} ${dryRun ? "are" : "were"} there.`;

function refusal(file: string, problems: Problem[]): OverlayError {
  const lines = problems
    .sort((a, b) => a.line - b.line)
    .map(({ line, ip, message }) => `\n  line ${line}, ${ip}: ${message}`);
  const what = `${problems.length} addresses in ${file} cannot be entered; nothing was written.${lines.join("")}\n`;
  return new OverlayError("IP_IN_USE", what, "Correct the file or release what is in the way, and run again.");
}
