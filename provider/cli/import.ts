import { readFile } from "node:fs/promises";
import { fromLine } from "../addressing/line";
import { OverlayError } from "../errors";
import type { Enrolment, Fact, Opening, Pool } from "../pool";
import { command, withPool } from "./command";
import { atAddress, knownNetworks } from "./ip/place";
import { factFor, isOf, view } from "./ip/reservation";
import type { Runner } from "./ip/runner";
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
        const rows = rowsIn(file!, text);
        const { facts, known, opening, problems } = await placed(pool, rows);
        const plan = await pool.enrol([...facts.keys()], { opening, dryRun: dryRun || problems.length > 0 });
        problems.push(...plan.conflicts.map(({ fact, error }) => problemAt(facts.get(fact)!, error.message)));
        if (problems.length > 0) throw refusal(file!, rows.length, problems);
        out.list(plan.added.map(view), ["ip", "network", "runner", "state", "usedBy"]);
        out.note(summary(plan, known, dryRun));
      }),
    );

/** Finds each address its runner. What its container has already is no fact to be entered. */
async function placed(pool: Pool, rows: Row[]) {
  const [facts, runners, problems] = [new Map<Fact, Row>(), new Map<string, Runner>(), [] as Problem[]];
  const networks = await knownNetworks(pool);
  let known = 0;
  for (const row of rows) {
    const runner = await atAddress(pool, networks, row);
    if (typeof runner === "string") problems.push(problemAt(row, runner));
    else if (await isHeldBy(pool, runner, row)) known++;
    else {
      runners.set(runner.pool, runner);
      facts.set(factFor(runner, row), row);
    }
  }
  const closed = [...runners.values()].filter(({ lease, pool }) => lease.opens !== pool);
  return { facts, known, opening: closed.map(openingOf), problems };
}

async function isHeldBy(pool: Pool, runner: Runner, { ip, by }: Row): Promise<boolean> {
  const holder = by === undefined ? undefined : await pool.find(runner.pool, { value: ip });
  return holder !== undefined && isOf(holder, by!);
}

const problemAt = ({ line, ip }: Row, message: string): Problem => ({ line, ip: fromLine(ip), message });

const openingOf = (runner: Runner): Opening => ({
  pool: runner.lease.pool,
  leaseId: runner.lease.leaseId,
  opens: runner.addresses,
});

const summary = ({ added, known }: Enrolment, others: number, dryRun: boolean): string =>
  `${dryRun ? "Would be entered" : "Entered"}: ${added.length}; there already: ${known.length + others}.`;

function refusal(file: string, total: number, problems: Problem[]): OverlayError {
  const lines = problems
    .sort((a, b) => a.line - b.line)
    .map(({ line, ip, message }) => `\n  line ${line}, ${ip}: ${message}`);
  const what = `${problems.length} of ${total} addresses in ${file} cannot be entered; nothing was written.${lines.join("")}\n `;
  return new OverlayError("IP_IN_USE", what, "Correct the file or release what is in the way, and run again.");
}
