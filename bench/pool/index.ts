import { rmSync } from "node:fs";
import { setPriority } from "node:os";
import { parseArgs } from "node:util";
import { diskFolder, ENGINES, type EngineName, enginesNamed, fileSystemOf } from "../engines";
import { casesWith } from "./cases";
import { compiledClaimer } from "./compiled";
import { builtGoIpam } from "./go-ipam";
import { type Figure, figureOf, type Report, report } from "./report";
import { floorIn, goIpamOn, linearIn, oursOn, type Subject } from "./subjects";
import type { Claimer, Sample } from "./team";

/**
 * Claims a second, for each engine, beside what shares the machine with it in the same minutes: go-ipam, a linear
 * search, and the disk itself. Machines are noisy: everything is measured in turn, again and again, and what counts are
 * medians, and ratios of figures that were taken side by side.
 */
export async function benchPool(args: string[]): Promise<void> {
  const { values } = parseArgs({ args, options: { quick: { type: "boolean" }, engines: { type: "string" } } });
  const pace = values.quick ? QUICK : FULL;
  const engines = enginesNamed(values.engines);
  const goIpam = await builtGoIpam();
  const claimer = compiledClaimer();
  goFirst();
  const folder = diskFolder();
  const all: Report = { quick: values.quick === true, fileSystem: fileSystemOf(folder), durability: {}, figures: [] };
  try {
    for (const name of engines) {
      const { missing } = ENGINES[name];
      if (missing) console.error(`${name} is left out: ${missing}.`);
      else await benchEngine(name, { ...pace, seconds: pace.seconds / engines.length }, folder, all, claimer, goIpam);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
  report(all);
}

/** What is measured, servers and go-ipam with it, comes before whatever else this machine does; where one may. */
function goFirst(): void {
  try {
    setPriority(-10);
  } catch {
    console.error("Without the right to a higher priority: everything else that runs here is in the figures.");
  }
}

interface Pace {
  /** For all engines together, filling and starting included. */
  seconds: number;
  rounds: number;
  /** Leases in the large pools. */
  many: number;
}

const FULL: Pace = { seconds: 295, rounds: 5, many: 100_000 };
const QUICK: Pace = { seconds: 68, rounds: 3, many: 10_000 };

async function benchEngine(
  name: EngineName,
  pace: Pace,
  folder: string,
  into: Report,
  claimer: string,
  goIpam?: string,
): Promise<void> {
  const deadline = Date.now() + pace.seconds * 1000;
  const cases = casesWith(pace.many);
  const engine = await ENGINES[name].start();
  const claimers: Claimer[] = [];
  try {
    console.error(`${name}: filling.`);
    const [ours, ourTeam] = await oursOn(engine, claimer, cases);
    claimers.push(...ourTeam);
    const [theirs, theirTeam] = goIpam === undefined ? [[], []] : await goIpamOn(engine, goIpam, cases);
    claimers.push(...theirTeam);
    const subjects = [floorIn(folder, engine), ...ours, ...theirs, ...(name === "sqlite" ? linearIn(cases) : [])];
    console.error(`${name}: measuring.`);
    into.durability[name] = engine.durability;
    into.figures.push(...(await measure(inTurn(subjects), pace.rounds, deadline)));
  } finally {
    for (const claimer of claimers) claimer.stop();
    await engine.stop();
  }
}

/** Those that are compared with each other come one after another. */
const inTurn = (subjects: Subject[]): Subject[] =>
  [...new Set(subjects.map(({ where }) => where))].flatMap((at) => subjects.filter(({ where }) => where === at));

/** The rest goes into releases. */
const TIMED = 0.4;

async function measure(subjects: Subject[], rounds: number, deadline: number): Promise<Figure[]> {
  const samples = subjects.map((): Sample[] => []);
  const milliseconds = Math.max(50, ((deadline - Date.now()) * TIMED) / rounds / subjects.length);
  for (const subject of subjects) await subject.sample(milliseconds / 4);
  for (let round = 0; round < rounds; round++) {
    for (const [i, subject] of subjects.entries())
      if (round === 0 || Date.now() < deadline) samples[i]!.push(await subject.sample(milliseconds));
  }
  return subjects.map((subject, i) => figureOf(subject, samples[i]!));
}
