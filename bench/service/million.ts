import { ENGINES, type Engine, type EngineName } from "../engines";
import { type Driver, startDriver } from "./drivers";
import { type HttpProcess, type Programs, startInstance } from "./processes";
import { type Figure, figureOf } from "./report";
import { type Resources, withResources } from "./resources";
import { fillRunner, LARGE_LAYOUT, prepareStore, RUNNER } from "./store";
import { API, httpSubject, measureInTurn, type Rounds } from "./subjects";

/** Reads, one at a time. */
export const READS: Record<string, { path: string; count: number }> = {
  "ip/stats": { path: `${API}/ip/stats`, count: 50 },
  "ip/available": { path: `${API}/ip/available?runner=${RUNNER}&limit=100`, count: 50 },
  // The state of pools is cached for five seconds, less than a round takes: each round reads it once.
  "/metrics": { path: "/metrics", count: 1 },
};

/** Milliseconds of one read, in each round. */
export interface ReadFigure {
  read: string;
  empty: number[];
  full: number[];
}

export interface EngineMillion {
  engine: EngineName;
  leases: number;
  cycles: { empty: Figure; full: Figure };
  reads: ReadFigure[];
}

/** etcd keeps its keys in memory, and at most two gigabytes of them. */
const MOST_LEASES: Partial<Record<EngineName, number>> = { etcd: 100_000 };

/** A subnet with many leases and an empty one of the same size, each on a store of its own. */
export const benchMillion = (
  name: EngineName,
  programs: Programs,
  rounds: Rounds & { leases: number },
): Promise<EngineMillion> =>
  withResources(async (resources) => {
    const leases = Math.min(rounds.leases, MOST_LEASES[name] ?? Infinity);
    console.error(`${name}: filling a subnet with ${leases.toLocaleString("en")} leases.`);
    const driver = await resources.add(startDriver(programs.driver));
    const empty = await startFilled(resources, await resources.add(ENGINES[name].start()), 0);
    const full = await startFilled(resources, await resources.add(ENGINES[name].start()), leases);
    console.error(`${name}: measuring an empty and a full subnet.`);
    const reads = Object.keys(READS).map((read): ReadFigure => ({ read, empty: [], full: [] }));
    const subjects = [empty, full].map(({ process, token }, i) =>
      httpSubject(["empty", "full"][i]!, driver, { processes: [process], base: API, token }),
    );
    const samples = await measureInTurn(subjects, rounds, async () => {
      for (const figure of reads) {
        figure.empty.push(await readOnce(driver, empty, figure.read));
        figure.full.push(await readOnce(driver, full, figure.read));
      }
    });
    const [ofEmpty, ofFull] = subjects.map(({ system }, i) => figureOf(system, samples[i]!)) as [Figure, Figure];
    return { engine: name, leases, cycles: { empty: ofEmpty, full: ofFull }, reads };
  });

interface Filled {
  process: HttpProcess;
  token: string;
}

async function startFilled(resources: Resources, engine: Engine, leases: number): Promise<Filled> {
  const { token, spec } = await prepareStore(engine.url, LARGE_LAYOUT);
  if (leases > 0) await fillRunner(engine, spec, leases);
  return { process: await resources.add(startInstance(engine.url)), token };
}

async function readOnce(driver: Driver, { process, token }: Filled, read: string): Promise<number> {
  return (await driver.get({ url: process.url, token, ...READS[read]! })).p50;
}
