import { openPool } from "../../provider/pool";
import type { Engine } from "../engines";
import { SETTINGS } from "./adapter";
import { type Case, EMPTY, fillCase, openCase, roomIn } from "./cases";
import type { Program } from "./compiled";
import { fdatasyncs, linearSearches } from "./floors";
import { goIpamAt, type Opening, openingAt } from "./go-ipam";
import { type Claimer, claimerAt, type Sample, sample } from "./team";

/** One figure: who claims, in which case, how. */
export interface Subject {
  who: string;
  /** A case's name; empty where there is none. */
  where: string;
  how: How;
  sample(milliseconds: number): Promise<Sample>;
}

export const HOWS = ["1 at a time", "32 together", "8 processes"] as const;
export type How = (typeof HOWS)[number];
const PROCESSES = 8;

export async function oursOn(engine: Engine, program: Program, cases: Case[]): Promise<[Subject[], Claimer[]]> {
  await fill(engine, cases);
  const names = Array.from({ length: PROCESSES }, (_, i) => `claimer-${i}`);
  const team = await Promise.all(names.map((name) => claimerAt(program, engine.url, name)));
  const subjects = cases.flatMap((one) => {
    const of = (how: How, claimers: Claimer[], together: number): Subject => ({
      who: engine.name,
      where: one.name,
      how,
      sample: (milliseconds) => sample(claimers, { pool: one.spec.name, together, room: roomIn(one) }, milliseconds),
    });
    return [
      of("1 at a time", team.slice(0, 1), 1),
      of("32 together", team.slice(0, 1), 32),
      of("8 processes", team, 1),
    ];
  });
  return [subjects, team];
}

async function fill(engine: Engine, cases: Case[]): Promise<void> {
  const pool = await openPool(engine.url, SETTINGS);
  for (const one of cases) await openCase(pool, one);
  await pool.end();
  for (const one of cases) if (one.leases > 0) await fillCase(engine, one);
}

/**
 * go-ipam in the storage that it shares with us, or in memory. It keeps all addresses of a prefix in one value, so only
 * the /18 is fair to it.
 */
export async function goIpamOn(engine: Engine, program: string, cases: Case[]): Promise<[Subject[], Claimer[]]> {
  const fair = cases.filter(({ filled }) => filled === "from the bottom");
  const opening = openingFor(engine);
  const fill = Object.fromEntries(fair.map(({ cidr, leases }) => [cidr, leases]));
  const team = [await goIpamAt(program, { ...opening, fill })];
  while (opening.storage !== "memory" && team.length < PROCESSES) team.push(await goIpamAt(program, opening));
  const of = (one: Case, how: How, claimers: Claimer[]): Subject => ({
    who: `go-ipam, ${opening.storage}`,
    where: one.name,
    how,
    sample: (milliseconds) => sample(claimers, { pool: one.cidr, together: 1, room: roomIn(one) }, milliseconds),
  });
  const subjects = fair.flatMap((one) => [
    of(one, "1 at a time", team.slice(0, 1)),
    ...(team.length > 1 && one.name === EMPTY ? [of(one, "8 processes", team)] : []),
  ]);
  return [subjects, team];
}

function openingFor({ postgres, etcd }: Engine): Opening {
  if (postgres) return openingAt("postgres", postgres.port);
  if (etcd) return openingAt("etcd", etcd.ports[0]!);
  return { storage: "memory" };
}

export const linearIn = (cases: Case[]): Subject[] =>
  cases
    .filter(({ filled }) => filled === "from the bottom")
    .map((one) => ({
      who: "linear search, memory",
      where: one.name,
      how: "1 at a time",
      sample: async (milliseconds) => ({ rate: linearSearches(one, milliseconds), duplicates: 0 }),
    }));

export const FLOOR = "fdatasync";

/** Taken beside each engine: the disk is not the same at all times. */
export const floorIn = (folder: string, { name }: Engine): Subject => ({
  who: FLOOR,
  where: `beside ${name}`,
  how: "1 at a time",
  sample: async (milliseconds) => ({ rate: fdatasyncs(folder, milliseconds), duplicates: 0 }),
});
