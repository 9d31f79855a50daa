import { setTimeout as sleep } from "node:timers/promises";
import type { Answer, Ctl } from "../unit/cli/ctl";

/** `overlayctl serve` as a process of its own, on a free port of loopback. */
export interface ServiceProcess {
  url: string;
  pid: number;
  /** What it has logged so far. */
  log(): string;
  /** Ends it as systemd does, if it has not ended. */
  stop(): Promise<Answer>;
  ended: Promise<Answer>;
}

export async function startService(
  ctl: Ctl,
  args: string[] = [],
  env: Record<string, string> = {},
): Promise<ServiceProcess> {
  const { child, ended, soFar } = ctl.start(["serve", "--listen", "127.0.0.1:0", ...args], env);
  child.stdin.end();
  const exited = ended.then(({ stdout, stderr }) => {
    throw new Error(`overlayctl serve has ended:\n${stdout}${stderr}`);
  });
  exited.catch(() => {}); // also when it ends later, as it should
  const url = await Promise.race([exited, waitFor(() => /listening at (http[^"]+)/.exec(soFar())?.[1])]);
  return {
    url,
    pid: child.pid!,
    log: soFar,
    ended,
    stop: () => {
      child.kill("SIGTERM");
      return ended;
    },
  };
}

/** Asks until there is an answer. */
export async function waitFor<T>(ask: () => T | undefined | Promise<T | undefined>, seconds = 40): Promise<T> {
  for (const deadline = Date.now() + seconds * 1000; Date.now() < deadline; await sleep(25)) {
    const answer = await ask();
    if (answer !== undefined) return answer;
  }
  throw new Error(`No answer within ${seconds} s.`);
}
