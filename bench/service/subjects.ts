import { POOL } from "../pool/adapter";
import { sample, startClaimer } from "../pool/claimers";
import type { CompiledProgram } from "../pool/compiled";
import type { CycleAnswer, Driver } from "./drivers";
import { STEPS } from "./latencies";
import type { HttpProcess } from "./processes";
import { RUNNER } from "./store";

/** Clients of a service at once. Each sends its next request when it has the answer to the last. */
export const CLIENTS = 32;

/** What paths of the service begin with. */
export const API = "/api/overlay";

export const CONSTANT = "constant answer";
export const POOL_ITSELF = "pool, 32 together";
export const ONE = "one instance";
export const TWO = "two instances";

/** What one figure measures. */
export interface Subject {
  system: string;
  sample(milliseconds: number): Promise<Sample>;
}

/** One round of a subject. */
export interface Sample {
  /** Requests a second; for the pool itself, claims. */
  rate: number;
  /** Absent for the pool itself. */
  http?: CycleAnswer & { cpuMs: number };
}

export interface Rounds {
  rounds: number;
  /** Of each subject, in each round. */
  milliseconds: number;
}

export interface Target {
  processes: HttpProcess[];
  base: string;
  token?: string;
}

/** 32 clients that reserve, use and release. */
export function httpSubject(system: string, driver: Driver, { processes, base, token }: Target): Subject {
  const cpuTime = () => processes.reduce((sum, each) => sum + each.cpuTime(), 0);
  const urls = processes.map(({ url }) => url);
  const command = { urls, base, runner: RUNNER, clients: CLIENTS, ...(token !== undefined && { token }) };
  return {
    system,
    sample: async (milliseconds) => {
      const before = cpuTime();
      const http = await driver.cycles({ ...command, milliseconds });
      const requests = STEPS.length * http.cycles;
      const cpuMs = (cpuTime() - before) / requests;
      return { rate: (requests * 1000) / http.milliseconds, http: { ...http, cpuMs } };
    },
  };
}

/** The figure "32 together" of `bench -- pool`, on the store of the services. */
export async function poolSubject(url: string, program: CompiledProgram): Promise<Subject & { stop(): unknown }> {
  const claimer = await startClaimer(program, url, "bench");
  await claimer.send({ do: "create" });
  const work = { pool: POOL, together: CLIENTS, room: 1 << 14 };
  return {
    system: POOL_ITSELF,
    sample: async (milliseconds) => ({ rate: (await sample([claimer], work, milliseconds)).rate }),
    stop: () => claimer.stop(),
  };
}

/**
 * All subjects in turn in each round, after a round that does not count. Every second round is in reverse order, so that none is
 * always first. Returns the samples of each subject.
 */
export async function measureInTurn(subjects: Subject[], { rounds, milliseconds }: Rounds): Promise<Sample[][]> {
  const samples = subjects.map((): Sample[] => []);
  for (const subject of subjects) await subject.sample(milliseconds);
  for (let round = 0; round < rounds; round++) {
    const order = [...subjects.entries()];
    for (const [i, subject] of round % 2 ? order.reverse() : order)
      samples[i]!.push(await subject.sample(milliseconds));
  }
  return samples;
}
