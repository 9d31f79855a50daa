import { rmSync } from "node:fs";
import { parseArgs } from "node:util";
import { diskFolder, ENGINES, type EngineName, fileSystemOf, parseEngines } from "../engines";
import { raisePriority } from "../measure";
import { casesWith } from "./cases";
import type { Claimer, Sample } from "./claimers";
import { type CompiledProgram, compilePrograms } from "./compiled";
import { buildGoIpam } from "./go-ipam";
import { type Figure, figureOf, type PoolsReport, printPools } from "./report";
import { floorSubject, goIpamSubjects, ourSubjects, type Subject } from "./subjects";
import { benchUsers, WORKS } from "./users";
import { renderUsers } from "./users-report";

/**
 * Claims per second of each engine, and in the same run of go-ipam, and of the disk itself. Figures vary with other
 * load on the machine, so all subjects are measured alternately in several rounds, and medians and ratios within rounds are reported.
 *
 * `--work pools`: in pools from empty to nearly full. `--work users`, or some of its parts: the work that users have.
 */
export async function benchPool(args: string[]): Promise<void> {
  const { values } = parseArgs({ args, options: OPTIONS });
  const quick = values.quick === true;
  const engines = parseEngines(values.engines);
  const works = parseWorks(values.work ?? (values.against === undefined ? "pools,users" : "users"));
  const goIpam = await buildGoIpam();
  const programs = compilePrograms(values.against);
  raisePriority();
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

/** Parses `pools`, `users` for all work of users, or parts of it by name. */
function parseWorks(list: string): string[] {
  const names = list.split(",").flatMap((name) => (name === "users" ? Object.keys(WORKS) : [name]));
  const known = ["pools", ...Object.keys(WORKS)];
  const unknown = names.filter((name) => !known.includes(name));
  if (unknown.length) throw new Error(`--work takes users,${known.join(",")}, not ${unknown.join(",")}`);
  return names;
}

async function benchPools(
  engines: EngineName[],
  quick: boolean,
  program: CompiledProgram,
  goIpam?: string,
): Promise<PoolsReport> {
  const budget = quick ? QUICK : FULL;
  const folder = diskFolder();
  const all: PoolsReport = { quick, fileSystem: fileSystemOf(folder), durability: {}, figures: [] };
  try {
    for (const name of engines.filter((each) => !ENGINES[each].missing))
      await benchEngine(name, { ...budget, seconds: budget.seconds / engines.length }, folder, all, program, goIpam);
  } finally {
    rmSync(folder, { recursive: true });
  }
  return all;
}

interface Budget {
  /** For all engines together, filling and starting included. */
  seconds: number;
  rounds: number;
  /** Leases in the large pools. */
  many: number;
}

const FULL: Budget = { seconds: 295, rounds: 5, many: 100_000 };
const QUICK: Budget = { seconds: 68, rounds: 3, many: 10_000 };

async function benchEngine(
  name: EngineName,
  budget: Budget,
  folder: string,
  into: PoolsReport,
  program: CompiledProgram,
  goIpam?: string,
): Promise<void> {
  const deadline = Date.now() + budget.seconds * 1000;
  const cases = casesWith(budget.many);
  const engine = await ENGINES[name].start();
  const claimers: Claimer[] = [];
  try {
    console.error(`${name}: filling.`);
    const [ours, ourClaimers] = await ourSubjects(engine, program, cases);
    claimers.push(...ourClaimers);
    const [theirs, theirClaimers] = goIpam === undefined ? [[], []] : await goIpamSubjects(engine, goIpam, cases);
    claimers.push(...theirClaimers);
    const subjects = [floorSubject(folder, engine), ...ours, ...theirs];
    console.error(`${name}: measuring.`);
    into.durability[name] = engine.durability;
    into.figures.push(...(await measure(groupByCase(subjects), budget.rounds, deadline)));
  } finally {
    for (const claimer of claimers) claimer.stop();
    await engine.stop();
  }
}

/** Subjects of one case are measured one after another, because they are compared with each other. */
const groupByCase = (subjects: Subject[]): Subject[] =>
  [...new Set(subjects.map(({ where }) => where))].flatMap((at) => subjects.filter(({ where }) => where === at));

/** The share of the time for claims. Releases take the rest. */
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
