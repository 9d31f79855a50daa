import { type ChildProcess, fork } from "node:child_process";
import type { Program } from "./compiled";
import { countDuplicates } from "./statistics";

/** "Create the pool", "claim until so many are yours or the time is up", "release all that you have"; only go-ipam: "empty the pool". */
export type Order = { do: "create" } | ClaimOrder | { do: "release" } | { do: "reset" };

export interface ClaimOrder {
  do: "claim";
  pool: string;
  limit: number;
  milliseconds: number;
  /** How many clients of one process claim at once, each the next when it has the answer to the last. */
  together: number;
  /** Each claim follows an offer to the same owner, as in an up. */
  withOffer?: boolean;
}

/** Milliseconds since 1970; `values` were given in between. */
export interface Answer {
  from: number;
  to: number;
  values: string[];
}

/** A process that claims on request: with this package or with go-ipam. */
export interface Claimer {
  tell(order: Order): Promise<Answer>;
  stop(): unknown;
}

export async function claimerAt(program: Program, url: string, name: string): Promise<Claimer> {
  const child = fork(program.claimer, [program.adapter, url, name], { execArgv: [] });
  const answers = answersOf<Answer>(child, name, (hear) => child.on("message", hear));
  await answers.next();
  return {
    tell: (order) => {
      child.send(order);
      return answers.next();
    },
    stop: () => child.connected && child.disconnect(),
  };
}

/** What a process says, one answer for each question; all that is open fails when it ends. */
export function answersOf<T>(child: ChildProcess, name: string, on: (hear: (answer: T) => void) => void) {
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

export interface Work extends Pick<ClaimOrder, "pool" | "together"> {
  /** How many values there are for all of them. */
  room: number;
}

export interface Sample {
  /** Claims a second. */
  rate: number;
  /** Values that two were given at once. */
  duplicates: number;
}

/** So many claims in one go, by all processes together: an empty pool is to stay nearly empty. */
const GO = 256;
const WHOLE = 30_000;

/**
 * Claims for about so long, in goes; what was claimed is released between them, off the clock. Several processes always
 * finish a go: cut short, it would end with all of them waiting in line for one last claim.
 */
export async function sample(claimers: Claimer[], work: Work, milliseconds: number): Promise<Sample> {
  let [claims, time, duplicates] = [0, 0, 0];
  const limit = Math.max(1, Math.floor(Math.min(work.room, GO) / claimers.length));
  for (const deadline = Date.now() + 4 * milliseconds; time < milliseconds && Date.now() < deadline; ) {
    const left = claimers.length > 1 ? WHOLE : milliseconds - time;
    const go = await claimTogether(claimers, { do: "claim", ...work, limit, milliseconds: left });
    await releaseAll(claimers);
    claims += go.claims;
    duplicates += go.duplicates;
    time += go.milliseconds;
  }
  return { rate: (claims * 1000) / time, duplicates };
}

/** All processes begin at once; timed from the first claim to the last answer. */
export async function claimTogether(claimers: Claimer[], order: ClaimOrder) {
  const answers = await Promise.all(claimers.map((claimer) => claimer.tell(order)));
  const values = answers.flatMap((answer) => answer.values);
  const milliseconds = Math.max(...answers.map(({ to }) => to)) - Math.min(...answers.map(({ from }) => from));
  return { claims: values.length, duplicates: countDuplicates(values), milliseconds };
}

export const releaseAll = (claimers: Claimer[]): Promise<unknown> =>
  Promise.all(claimers.map((claimer) => claimer.tell({ do: "release" })));
