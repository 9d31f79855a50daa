import { ENGINES, type Engine, type EngineName } from "../engines";
import { busyShare } from "../measure";
import { POOL } from "./adapter";
import type { Program, Programs } from "./compiled";
import { goIpamAt, openingAt } from "./go-ipam";
import { openLink } from "./link";
import { type Claimer, type ClaimOrder, claimerAt, claimTogether, releaseAll } from "./team";

/** Work as users have it: so many processes, each with so many claims by so many clients at once. */
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

/** The work that go-ipam is measured with as well. */
const COMPARED = "processes";

export interface UsersOptions {
  engines: EngineName[];
  works: string[];
  /** Round trips to servers, in milliseconds; 0: no link in between. */
  links: number[];
  rounds: number;
  /** A part of each work's claims. */
  share: number;
  programs: Programs;
  goIpam?: string;
}

/** Claims a second, a figure for each round. */
export interface UsersFigure {
  /** An engine, or `memory`. */
  where: string;
  linkMs: number;
  work: string;
  /** This checkout, the one that it is compared with, or go-ipam. */
  who: "this" | "against" | "go-ipam";
  rates: number[];
  /** Values that two claims were given at once, in all rounds. */
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
      for (const who of Object.keys(options.programs)) await engine.postgres?.sql(`CREATE DATABASE ${who}`);
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
interface Team {
  where: string;
  who: UsersFigure["who"];
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
  const teams: Team[] = [];
  try {
    for (const [who, program] of Object.entries(options.programs) as ["this" | "against", Program][]) {
      if (engine.name === "sqlite") teams.push(await startTeam("memory", who, program, "memory:", options.works));
      teams.push(await startTeam(engine.name, who, program, urlOf(engine, ports, who), options.works));
    }
    if (options.goIpam && engine.name !== "sqlite" && options.works.includes(COMPARED))
      teams.push(await startGoIpam(engine.name, options.goIpam, ports[0]!, direct[0]!));
    return await measureInTurns(teams, linkMs, options);
  } finally {
    for (const claimer of teams.flatMap(({ claimers }) => claimers)) claimer.stop();
    link?.close();
  }
}

function urlOf(engine: Engine, ports: number[], who: "this" | "against"): string {
  if (engine.postgres) return engine.postgres.url({ port: ports[0]!, database: who });
  if (engine.etcd) return `etcd://${ports.map((port) => `127.0.0.1:${port}`).join(",")}/${who}`;
  return `${engine.url}-${who}`;
}

async function startTeam(
  where: string,
  who: "this" | "against",
  program: Program,
  url: string,
  all: string[],
): Promise<Team> {
  // A store in memory is that of one process.
  const works = all.filter((work) => where !== "memory" || WORKS[work]!.processes === 1);
  const count = Math.max(0, ...works.map((work) => WORKS[work]!.processes));
  const start = (_: unknown, i: number) => claimerAt(program, url, `stack-${i}`);
  const claimers = await Promise.all(Array.from({ length: count }, start));
  await claimers[0]?.tell({ do: "create" });
  return { where, who, pool: POOL, claimers, works, release: releaseAll };
}

/** Releases that conflict take go-ipam minutes: one more process, without a link in between, empties the prefix instead. */
async function startGoIpam(where: "postgres" | "etcd", program: string, port: number, direct: number): Promise<Team> {
  const pool = POOL.slice("pool/".length);
  const reset = await goIpamAt(program, { ...openingAt(where, direct), fill: { [pool]: 0 } });
  const start = () => goIpamAt(program, openingAt(where, port));
  const claimers = await Promise.all(Array.from({ length: WORKS[COMPARED]!.processes }, start));
  const release = () => reset.tell({ do: "reset" });
  return { where, who: "go-ipam", pool, claimers: [...claimers, reset], works: [COMPARED], release };
}

/** After this time no further round begins, when there are three; a run that takes longer than the other is cut off. */
const ENOUGH_MS = 60_000;
const LONGEST_RUN_MS = 15_000;

/** One fifth of each run first, which does not count. Every other round goes backwards, so that neither side always comes first. */
async function measureInTurns(teams: Team[], linkMs: number, options: UsersOptions): Promise<UsersFigure[]> {
  const runs = options.works.flatMap((work) =>
    teams
      .filter(({ works }) => works.includes(work))
      .map((team) => ({ team, work, figure: newFigure(team, linkMs, work) })),
  );
  for (const { team, work } of runs) await run(team, work, options.share / 5);
  const from = Date.now();
  for (let round = 0; round < options.rounds && (round < 3 || Date.now() - from < ENOUGH_MS); round++) {
    for (const { team, work, figure } of round % 2 ? [...runs].reverse() : runs) {
      const { claims, milliseconds, duplicates } = await run(team, work, options.share);
      figure.rates.push(Math.round((claims * 10_000) / milliseconds) / 10);
      figure.duplicates += duplicates;
    }
  }
  return runs.map(({ figure }) => figure);
}

const newFigure = ({ where, who }: Team, linkMs: number, work: string): UsersFigure => ({
  where,
  linkMs,
  work,
  who,
  rates: [],
  duplicates: 0,
});

async function run(team: Team, work: string, share: number) {
  const { processes, claims, together, withOffer = false } = WORKS[work]!;
  const claimers = team.claimers.slice(0, processes);
  const limit = Math.ceil(claims * share);
  const order: ClaimOrder = { do: "claim", pool: team.pool, limit, milliseconds: LONGEST_RUN_MS, together, withOffer };
  const result = await claimTogether(claimers, order);
  await team.release(claimers);
  return result;
}
