import { parseArgs } from "node:util";
import { ENGINES, type EngineName, parseEngines } from "../engines";
import { busyShare, raisePriority } from "../measure";
import { benchCycles } from "./cycles";
import { benchHostile } from "./hostile";
import { benchMillion } from "./million";
import { compilePrograms } from "./processes";
import { printReport, type Report } from "./report";
import type { Rounds } from "./subjects";

/**
 * `overlayctl serve` over HTTP on loopback, with 32 clients in a process of their own.
 *
 * `--part cycles`: reserve, use and release by one and two instances on each engine, beside a constant answer, a linear search, and the
 * pool in one process. `--part million`: the same and some reads in a subnet with a million leases, beside an empty one. `--part hostile`: for how
 * long one hostile request holds the event loop.
 */
export async function benchService(args: string[]): Promise<void> {
  const { values } = parseArgs({ args, options: OPTIONS });
  const named = parseEngines(values.engine?.join(","), "--engine");
  const parts = parseParts(values.part);
  const budget = values.quick ? QUICK : FULL;
  for (const name of named) if (ENGINES[name].missing) console.error(`${name} is left out: ${ENGINES[name].missing}.`);
  const engines = named.filter((name) => !ENGINES[name].missing);
  const programs = compilePrograms();
  raisePriority();
  const report: Report = { quick: values.quick, busy: 0, cycles: [], million: [], hostile: [] };
  const run = async <T>(part: Part, into: T[], bench: (engine: EngineName) => Promise<T>): Promise<void> => {
    for (const name of parts.includes(part) ? engines : []) {
      report.busy = Math.max(report.busy, await busyShare());
      into.push(await bench(name));
    }
  };
  await run("cycles", report.cycles, (name) => benchCycles(name, programs, budget));
  await run("million", report.million, (name) => benchMillion(name, programs, budget));
  if (parts.includes("hostile")) report.hostile.push(...(await benchHostile()));
  printReport(report);
}

const OPTIONS = {
  quick: { type: "boolean", default: false },
  engine: { type: "string", multiple: true },
  part: { type: "string", default: "cycles,million,hostile" },
} as const;

const PARTS = ["cycles", "million", "hostile"] as const;
type Part = (typeof PARTS)[number];

function parseParts(list: string): Part[] {
  const names = list.split(",");
  const unknown = names.filter((name) => !PARTS.includes(name as Part));
  if (unknown.length) throw new Error(`--part takes ${PARTS.join(",")}, not ${unknown.join(",")}`);
  return names as Part[];
}

type Budget = Rounds & {
  /** In the full subnet. */
  leases: number;
};

const FULL: Budget = { rounds: 5, milliseconds: 2500, leases: 1_000_000 };
const QUICK: Budget = { rounds: 3, milliseconds: 1000, leases: 20_000 };
