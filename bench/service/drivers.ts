import { fork } from "node:child_process";
import { answersOf } from "../pool/claimers";
import type { Latencies, Step } from "./latencies";

/** Reserve, use and release for a time. */
export interface Command {
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

export interface Driver {
  cycles(command: Command): Promise<CycleAnswer>;
  stop(): void;
}

export async function startDriver(program: string): Promise<Driver> {
  const child = fork(program, { execArgv: [] });
  const answers = answersOf<CycleAnswer | { error: string }>(child, "the driver", (add) => child.on("message", add));
  await answers.next();
  return {
    cycles: async (command) => {
      child.send(command);
      const answer = await answers.next();
      if ("error" in answer) throw new Error(answer.error);
      return answer;
    },
    stop: () => {
      if (child.connected) child.disconnect();
    },
  };
}
