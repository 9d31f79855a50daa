import { fork } from "node:child_process";
import { answersOf } from "../pool/claimers";
import type { Latencies, Step } from "./latencies";

export type { Step } from "./latencies";

/** Reserve, use and release for a time, or the same read several times. */
export type Command = CycleCommand | GetCommand;

export interface CycleCommand {
  do: "cycles";
  /** The service's instances. Each client has one of them. */
  urls: string[];
  /** What paths begin with. */
  base: string;
  runner: string;
  token?: string;
  /** Each has one connection, and sends its next request when it has the answer to the last. */
  clients: number;
  milliseconds: number;
}

export interface GetCommand {
  do: "get";
  url: string;
  path: string;
  token?: string;
  count: number;
}

/** Latencies are those of all requests. */
export interface CycleAnswer extends Latencies {
  cycles: number;
  milliseconds: number;
  /** Addresses that were given although another client held them. */
  duplicates: number;
  /** Requests that were sent again after 503. */
  repeated: number;
  steps: Record<Step, Latencies>;
}

export type GetAnswer = Latencies;

export interface Driver {
  cycles(command: Omit<CycleCommand, "do">): Promise<CycleAnswer>;
  get(command: Omit<GetCommand, "do">): Promise<GetAnswer>;
  stop(): void;
}

export async function startDriver(program: string): Promise<Driver> {
  const child = fork(program, { execArgv: [] });
  const answers = answersOf<unknown>(child, "the driver", (onAnswer) => child.on("message", onAnswer));
  await answers.next();
  const send = async (command: Command): Promise<unknown> => {
    child.send(command);
    const answer = (await answers.next()) as { error?: string };
    if (answer.error !== undefined) throw new Error(answer.error);
    return answer;
  };
  return {
    cycles: (command) => send({ do: "cycles", ...command }) as Promise<CycleAnswer>,
    get: (command) => send({ do: "get", ...command }) as Promise<GetAnswer>,
    stop: () => {
      if (child.connected) child.disconnect();
    },
  };
}
