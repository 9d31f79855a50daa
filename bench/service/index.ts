import { parseArgs } from "node:util";
import { ENGINES, parseEngines } from "../engines";
import { busyShare, raisePriority } from "../measure";
import { benchCycles } from "./cycles";
import { benchHostile } from "./hostile";
import { compilePrograms } from "./processes";
import { printReport, type Report } from "./report";
import type { Rounds } from "./subjects";

/**
 * `overlayctl serve` over HTTP on loopback, with 32 clients in a process of their own.
 *
 * `--part cycles`: reserve, use and release by one and two instances on each engine, beside a constant answer, and the pool in one process.
 * `--part hostile`: for how long one hostile request holds the event loop.
 */
export async function benchService(args: string[]): Promise<void> {
  const { values } = parseArgs({ args, options: OPTIONS });
  const named = parseEngines(values.engine?.join(","), "--engine");
  const parts = parseParts(values.part);
  for (const name of named) if (ENGINES[name].missing) console.error(`${name} is left out: ${ENGINES[name].missing}.`);
  const engines = named.filter((name) => !ENGINES[name].missing);
  const programs = compilePrograms();
  raisePriority();
  const report: Report = { quick: values.quick, busy: 0, cycles: [], hostile: [] };
  for (const name of parts.includes("cycles") ? engines : []) {
    report.busy = Math.max(report.busy, await busyShare());
    report.cycles.push(await benchCycles(name, programs, values.quick ? QUICK : FULL));
  }
  if (parts.includes("hostile")) report.hostile.push(...(await benchHostile()));
  printReport(report);
}

const OPTIONS = {
  quick: { type: "boolean", default: false },
  engine: { type: "string", multiple: true },
  part: { type: "string", default: "cycles,hostile" },
} as const;

const PARTS = ["cycles", "hostile"] as const;
type Part = (typeof PARTS)[number];

function parseParts(list: string): Part[] {
  const names = list.split(",");
  const unknown = names.filter((name) => !PARTS.includes(name as Part));
  if (unknown.length) throw new Error(`--part takes ${PARTS.join(",")}, not ${unknown.join(",")}`);
  return names as Part[];
}

const FULL: Rounds = { rounds: 5, milliseconds: 2500 };
const QUICK: Rounds = { rounds: 3, milliseconds: 1000 };
