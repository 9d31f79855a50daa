import { openIpam } from "../../provider/ipam";
import type { Engine } from "../engines";
import { SETTINGS } from "./adapter";
import { type Case, EMPTY, fillCase, openCase, roomIn } from "./cases";
import { type Claimer, type Sample, sample, startClaimer } from "./claimers";
import type { CompiledProgram } from "./compiled";
import { fdatasyncs } from "./floors";
import { type GoIpamOptions, goIpamOptionsAt, startGoIpam } from "./go-ipam";

/** What one figure measures: a system, in a case, with a number of clients or processes. */
export interface Subject {
  system: string;
  /** Name of a case; empty if there is none. */
  where: string;
  how: How;
  sample(milliseconds: number): Promise<Sample>;
}

export const HOWS = ["1 at a time", "32 together", "8 processes"] as const;
export type How = (typeof HOWS)[number];
const PROCESSES = 8;

export async function ourSubjects(
  engine: Engine,
  program: CompiledProgram,
  cases: Case[],
): Promise<[Subject[], Claimer[]]> {
  await fill(engine, cases);
  const names = Array.from({ length: PROCESSES }, (_, i) => `claimer-${i}`);
  const claimers = await Promise.all(names.map((name) => startClaimer(program, engine.url, name)));
  const subjects = cases.flatMap((one) => {
    const of = (how: How, claimers: Claimer[], together: number): Subject => ({
      system: engine.name,
      where: one.name,
      how,
      sample: (milliseconds) => sample(claimers, { pool: one.spec.name, together, room: roomIn(one) }, milliseconds),
    });
    return [
      of("1 at a time", claimers.slice(0, 1), 1),
      of("32 together", claimers.slice(0, 1), 32),
      of("8 processes", claimers, 1),
    ];
  });
  return [subjects, claimers];
}

async function fill(engine: Engine, cases: Case[]): Promise<void> {
  const pool = await openIpam(engine.url, SETTINGS);
  for (const one of cases) await openCase(pool, one);
  await pool.end();
  for (const one of cases) if (one.leases > 0) await fillCase(engine, one);
}

/**
 * go-ipam on the same storage, or in memory. It stores all addresses of a prefix in one value, so only the /18 is a fair
 * comparison.
 */
export async function goIpamSubjects(engine: Engine, program: string, cases: Case[]): Promise<[Subject[], Claimer[]]> {
  const fair = cases.filter(({ filled }) => filled === "from the bottom");
  const opening = goIpamOptionsFor(engine);
  const fill = Object.fromEntries(fair.map(({ cidr, leases }) => [cidr, leases]));
  const claimers = [await startGoIpam(program, { ...opening, fill })];
  while (opening.storage !== "memory" && claimers.length < PROCESSES)
    claimers.push(await startGoIpam(program, opening));
  const of = (one: Case, how: How, claimers: Claimer[]): Subject => ({
    system: `go-ipam, ${opening.storage}`,
    where: one.name,
    how,
    sample: (milliseconds) => sample(claimers, { pool: one.cidr, together: 1, room: roomIn(one) }, milliseconds),
  });
  const subjects = fair.flatMap((one) => [
    of(one, "1 at a time", claimers.slice(0, 1)),
    ...(claimers.length > 1 && one.name === EMPTY ? [of(one, "8 processes", claimers)] : []),
  ]);
  return [subjects, claimers];
}

function goIpamOptionsFor({ postgres, etcd }: Engine): GoIpamOptions {
  if (postgres) return goIpamOptionsAt("postgres", postgres.port);
  if (etcd) return goIpamOptionsAt("etcd", etcd.ports[0]!);
  return { storage: "memory" };
}

export const FLOOR = "fdatasync";

/** Measured beside each engine, because the speed of the disk varies. */
export const floorSubject = (folder: string, { name }: Engine): Subject => ({
  system: FLOOR,
  where: `beside ${name}`,
  how: "1 at a time",
  sample: async (milliseconds) => ({ rate: fdatasyncs(folder, milliseconds), duplicates: 0 }),
});
