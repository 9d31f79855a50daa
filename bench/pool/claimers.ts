import { type ChildProcess, fork } from "node:child_process";
import type { CompiledProgram } from "./compiled";
import { countDuplicates } from "./statistics";

/** Create the pool; claim up to a number of values or for a time; release all; for go-ipam only: empty the pool. */
export type Command = { do: "create" } | ClaimCommand | { do: "release" } | { do: "reset" };

export interface ClaimCommand {
  do: "claim";
  pool: string;
  limit: number;
  milliseconds: number;
  /** How many clients of one process claim at once. Each sends its next claim when it has the answer to the last. */
  together: number;
  /** Each claim follows an offer to the same owner, as in an up. */
  withOffer?: boolean;
}

/** The values that were given between two times, in milliseconds since 1970. */
export interface Answer {
  from: number;
  to: number;
  values: string[];
}

/** A process that executes commands: with this package or with go-ipam. */
export interface Claimer {
  send(command: Command): Promise<Answer>;
  stop(): unknown;
}

export async function startClaimer(program: CompiledProgram, url: string, name: string): Promise<Claimer> {
  const child = fork(program.claimer, [program.adapter, url, name], { execArgv: [] });
  const answers = answersOf<Answer>(child, name, (onAnswer) => child.on("message", onAnswer));
  await answers.next();
  return {
    send: (command) => {
      child.send(command);
      return answers.next();
    },
    stop: () => child.connected && child.disconnect(),
  };
}

/** The answers of a process, one for each command. A command without an answer fails when the process ends. */
export function answersOf<T>(child: ChildProcess, name: string, on: (onAnswer: (answer: T) => void) => void) {
  let open: { resolve(answer: T): void; reject(error: Error): void } | undefined;
  on((answer) => open?.resolve(answer));
  child.once("exit", (code, signal) => open?.reject(new Error(`${name} ended with ${code ?? signal}`)));
  return {
    next: () =>
      new Promise<T>((resolve, reject) => {
        open = { resolve, reject };
      }),
  };
}

export interface ClaimWork extends Pick<ClaimCommand, "pool" | "together"> {
  /** How many values are free for all of them. */
  room: number;
}

export interface Sample {
  /** Claims a second. */
  rate: number;
  /** Values that were given twice. */
  duplicates: number;
}

/** Claims in one batch, of all processes together: an empty pool must stay nearly empty. */
const BATCH = 256;
const WHOLE_BATCH_MS = 30_000;

/**
 * Claims in batches for about this time. Values are released between batches, which is not measured. Several processes always finish
 * a batch: an interrupted one would end with all of them waiting for one last claim.
 */
export async function sample(claimers: Claimer[], work: ClaimWork, milliseconds: number): Promise<Sample> {
  let [claims, time, duplicates] = [0, 0, 0];
  const limit = Math.max(1, Math.floor(Math.min(work.room, BATCH) / claimers.length));
  for (const deadline = Date.now() + 4 * milliseconds; time < milliseconds && Date.now() < deadline; ) {
    const left = claimers.length > 1 ? WHOLE_BATCH_MS : milliseconds - time;
    const batch = await claimTogether(claimers, { do: "claim", ...work, limit, milliseconds: left });
    await releaseAll(claimers);
    claims += batch.claims;
    duplicates += batch.duplicates;
    time += batch.milliseconds;
  }
  return { rate: (claims * 1000) / time, duplicates };
}

/** All processes start at once. The time is from the first claim to the last answer. */
export async function claimTogether(claimers: Claimer[], command: ClaimCommand) {
  const answers = await Promise.all(claimers.map((claimer) => claimer.send(command)));
  const values = answers.flatMap((answer) => answer.values);
  const milliseconds = Math.max(...answers.map(({ to }) => to)) - Math.min(...answers.map(({ from }) => from));
  return { claims: values.length, duplicates: countDuplicates(values), milliseconds };
}

export const releaseAll = (claimers: Claimer[]): Promise<unknown> =>
  Promise.all(claimers.map((claimer) => claimer.send({ do: "release" })));
