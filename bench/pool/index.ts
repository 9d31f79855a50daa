import { rmSync } from "node:fs";
import { setPriority } from "node:os";
import { parseArgs } from "node:util";
import { diskFolder, ENGINES, type EngineName, enginesNamed, fileSystemOf } from "../engines";
import { casesWith } from "./cases";
import { compilePrograms, type Program } from "./compiled";
import { builtGoIpam } from "./go-ipam";
import { type Figure, figureOf, printPools, type Report } from "./report";
import { floorIn, goIpamOn, linearIn, oursOn, type Subject } from "./subjects";
import type { Claimer, Sample } from "./team";
import { benchUsers, WORKS } from "./users";
import { renderUsers } from "./users-report";

/**
 * Claims a second, for each engine, beside what shares the machine with it in the same minutes: go-ipam, a linear
 * search, and the disk itself. Machines are noisy: everything is measured in turn, again and again, and what counts are
 * medians, and ratios of figures that were taken side by side.
 *
 * `--work pools`: in pools from empty to nearly full. `--work users`, or some of its parts: the work that users have.
 */
export async function benchPool(args: string[]): Promise<void> {
  const { values } = parseArgs({ args, options: OPTIONS });
  const quick = values.quick === true;
  const engines = enginesNamed(values.engines);
  const works = worksNamed(values.work ?? (values.against === undefined ? "pools,users" : "users"));
  const goIpam = await builtGoIpam();
  const programs = compilePrograms(values.against);
  goFirst();
  for (const name of engines)
    if (ENGINES[name].missing) console.error(`${name} is left out: ${ENGINES[name].missing}.`);
  const pools = works.includes("pools") ? await benchPools(engines, quick, programs.this, goIpam) : undefined;
  const users = await benchUsers({
    engines,
    works: works.filter((work) => work !== "pools"),
    links: values.links.split(",").map(Number),
    rounds: Number(values.rounds),
    share: quick ? 0.2 : 1,
    programs,
    ...(goIpam !== undefined && { goIpam }),
  });
  const ratios = pools && printPools(pools);
  if (users.figures.length > 0) console.log(renderUsers(users));
  console.log(JSON.stringify({ ...pools, ratios, users }));
}

const OPTIONS = {
  quick: { type: "boolean" },
  engines: { type: "string" },
  work: { type: "string" },
  links: { type: "string", default: "0,1,20" },
  rounds: { type: "string", default: "5" },
  against: { type: "string" },
} as const;

/** `pools`, `users` for all that users do, or parts of it by name. */
function worksNamed(list: string): string[] {
  const names = list.split(",").flatMap((name) => (name === "users" ? Object.keys(WORKS) : [name]));
  const known = ["pools", ...Object.keys(WORKS)];
  const unknown = names.filter((name) => !known.includes(name));
  if (unknown.length) throw new Error(`--work takes users,${known.join(",")}, not ${unknown.join(",")}`);
  return names;
}

async function benchPools(engines: EngineName[], quick: boolean, program: Program, goIpam?: string): Promise<Report> {
  const pace = quick ? QUICK : FULL;
  const folder = diskFolder();
  const all: Report = { quick, fileSystem: fileSystemOf(folder), durability: {}, figures: [] };
  try {
    for (const name of engines.filter((each) => !ENGINES[each].missing))
      await benchEngine(name, { ...pace, seconds: pace.seconds / engines.length }, folder, all, program, goIpam);
  } finally {
    rmSync(folder, { recursive: true });
  }
  return all;
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
  program: Program,
  goIpam?: string,
): Promise<void> {
  const deadline = Date.now() + pace.seconds * 1000;
  const cases = casesWith(pace.many);
  const engine = await ENGINES[name].start();
  const claimers: Claimer[] = [];
  try {
    console.error(`${name}: filling.`);
    const [ours, ourTeam] = await oursOn(engine, program, cases);
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
