import { ENGINES, type Engine, type EngineName } from "../engines";
import { busyShare } from "../measure";
import { POOL } from "./adapter";
import { type ClaimCommand, type Claimer, claimTogether, releaseAll, startClaimer } from "./claimers";
import type { CompiledProgram, CompiledPrograms } from "./compiled";
import { goIpamOptionsAt, startGoIpam } from "./go-ipam";
import { openLink } from "./link";

/** Typical work of users: a number of processes, each with a number of claims by concurrent clients. */
export interface UsersWork {
  label: string;
  processes: number;
  claims: number;
  together: number;
  withOffer?: boolean;
}

/** Pulumi runs eight resource operations at once on two cores. */
export const WORKS: Record<string, UsersWork> = {
  single: { label: "one client, one claim at a time", processes: 1, claims: 100, together: 1 },
  up: { label: "an up of 1,000 at once", processes: 1, claims: 1000, together: 1000, withOffer: true },
  clients: { label: "32 clients of one process", processes: 1, claims: 640, together: 32 },
  stacks: { label: "three ups with 200 each, 8 at once", processes: 3, claims: 200, together: 8, withOffer: true },
  processes: { label: "eight processes with 50 each", processes: 8, claims: 50, together: 1 },
};

/** The work that go-ipam is measured with, too. */
const COMPARED = "processes";

export interface UsersOptions {
  engines: EngineName[];
  works: string[];
  /** Round trips to servers, in milliseconds; 0: no link in between. */
  links: number[];
  rounds: number;
  /** The share of each work's claims to run. */
  share: number;
  programs: CompiledPrograms;
  goIpam?: string;
}

/** Claims per second in each round. */
export interface UsersFigure {
  /** An engine, or `memory`. */
  where: string;
  linkMs: number;
  work: string;
  /** This checkout, the one that it is compared with, or go-ipam. */
  system: "this" | "against" | "go-ipam";
  rates: number[];
  /** Values that were given twice, in all rounds. */
  duplicates: number;
}

export interface UsersReport {
  /** The highest share of the CPUs that other work used before a measurement. */
  busy: number;
  figures: UsersFigure[];
}

export async function benchUsers(options: UsersOptions): Promise<UsersReport> {
  const report: UsersReport = { busy: 0, figures: [] };
  for (const name of options.works.length ? options.engines.filter((each) => !ENGINES[each].missing) : []) {
    const engine = await ENGINES[name].start();
    try {
      // Each checkout has a database of its own, since their layouts may differ; go-ipam has another.
      for (const system of Object.keys(options.programs)) await engine.postgres?.sql(`CREATE DATABASE ${system}`);
      for (const ms of name === "sqlite" ? [0] : options.links) {
        console.error(`${name}${ms ? ` over ${ms} ms` : ""}: measuring the work of users.`);
        report.busy = Math.max(report.busy, await busyShare());
        report.figures.push(...(await measureOver(engine, ms, options)));
      }
    } finally {
      await engine.stop();
    }
  }
  return report;
}

/** Processes that claim in one store. */
interface ClaimerGroup {
  where: string;
  system: UsersFigure["system"];
  pool: string;
  claimers: Claimer[];
  works: string[];
  /** Empties the pool. */
  release(claimers: Claimer[]): Promise<unknown>;
}

async function measureOver(engine: Engine, linkMs: number, options: UsersOptions): Promise<UsersFigure[]> {
  const direct = engine.postgres ? [engine.postgres.port] : (engine.etcd?.ports ?? []);
  const link = linkMs ? await openLink(direct, linkMs) : undefined;
  const ports = link?.ports ?? direct;
  const groups: ClaimerGroup[] = [];
  try {
    for (const [system, program] of Object.entries(options.programs) as ["this" | "against", CompiledProgram][]) {
      if (engine.name === "sqlite") groups.push(await startGroup("memory", system, program, "memory:", options.works));
      groups.push(await startGroup(engine.name, system, program, urlOf(engine, ports, system), options.works));
    }
    if (options.goIpam && engine.name !== "sqlite" && options.works.includes(COMPARED))
      groups.push(await startGoIpamGroup(engine.name, options.goIpam, ports[0]!, direct[0]!));
    return await measureAlternately(groups, linkMs, options);
  } finally {
    for (const claimer of groups.flatMap(({ claimers }) => claimers)) claimer.stop();
    link?.close();
  }
}

function urlOf(engine: Engine, ports: number[], system: "this" | "against"): string {
  if (engine.postgres) return engine.postgres.url({ port: ports[0]!, database: system });
  if (engine.etcd) return `etcd://${ports.map((port) => `127.0.0.1:${port}`).join(",")}/${system}`;
  return `${engine.url}-${system}`;
}

async function startGroup(
  where: string,
  system: "this" | "against",
  program: CompiledProgram,
  url: string,
  all: string[],
): Promise<ClaimerGroup> {
  // A store in memory has one process only.
  const works = all.filter((work) => where !== "memory" || WORKS[work]!.processes === 1);
  const count = Math.max(0, ...works.map((work) => WORKS[work]!.processes));
  const start = (_: unknown, i: number) => startClaimer(program, url, `stack-${i}`);
  const claimers = await Promise.all(Array.from({ length: count }, start));
  await claimers[0]?.send({ do: "create" });
  return { where, system, pool: POOL, claimers, works, release: releaseAll };
}

/** Releases that conflict take go-ipam minutes: one more process, without a link in between, empties the prefix instead. */
async function startGoIpamGroup(
  where: "postgres" | "etcd",
  program: string,
  port: number,
  direct: number,
): Promise<ClaimerGroup> {
  const pool = POOL.slice("pool/".length);
  const reset = await startGoIpam(program, { ...goIpamOptionsAt(where, direct), fill: { [pool]: 0 } });
  const start = () => startGoIpam(program, goIpamOptionsAt(where, port));
  const claimers = await Promise.all(Array.from({ length: WORKS[COMPARED]!.processes }, start));
  const release = () => reset.send({ do: "reset" });
  return { where, system: "go-ipam", pool, claimers: [...claimers, reset], works: [COMPARED], release };
}

/** After this time no further round starts, if there are three already. A run that takes longer than the second limit is stopped. */
const ENOUGH_MS = 60_000;
const LONGEST_RUN_MS = 15_000;

/** A fifth of each run first, as warm-up. Every second round is in reverse order, so that no side is always first. */
async function measureAlternately(
  groups: ClaimerGroup[],
  linkMs: number,
  options: UsersOptions,
): Promise<UsersFigure[]> {
  const runs = options.works.flatMap((work) =>
    groups
      .filter(({ works }) => works.includes(work))
      .map((group) => ({ group, work, figure: newFigure(group, linkMs, work) })),
  );
  for (const { group, work } of runs) await run(group, work, options.share / 5);
  const from = Date.now();
  for (let round = 0; round < options.rounds && (round < 3 || Date.now() - from < ENOUGH_MS); round++) {
    for (const { group, work, figure } of round % 2 ? [...runs].reverse() : runs) {
      const { claims, milliseconds, duplicates } = await run(group, work, options.share);
      figure.rates.push(Math.round((claims * 10_000) / milliseconds) / 10);
      figure.duplicates += duplicates;
    }
  }
  return runs.map(({ figure }) => figure);
}

const newFigure = ({ where, system }: ClaimerGroup, linkMs: number, work: string): UsersFigure => ({
  where,
  linkMs,
  work,
  system,
  rates: [],
  duplicates: 0,
});

async function run(group: ClaimerGroup, work: string, share: number) {
  const { processes, claims, together, withOffer = false } = WORKS[work]!;
  const claimers = group.claimers.slice(0, processes);
  const limit = Math.ceil(claims * share);
  const command: ClaimCommand = {
    do: "claim",
    pool: group.pool,
    limit,
    milliseconds: LONGEST_RUN_MS,
    together,
    withOffer,
  };
  const result = await claimTogether(claimers, command);
  await group.release(claimers);
  return result;
}
