import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { constants } from "node:os";
import { delimiter, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError, OverlayError } from "../../errors";
import type { Lease, Pool } from "../../pool";
import { address, command, refuse, seconds, withPool } from "../command";
import { reserve, view } from "./reservation";
import { runnerNamed } from "./runner";

interface Options {
  network: string;
  runner: string;
  ip?: bigint;
  ttl: number;
}

/**
 * The address is held by a short lease that is renewed as long as the command runs. Whatever ends this process, kill -9 or
 * a power cut, the lease is over within `ttl`; and a command whose lease was lost is ended, since its address may be
 * somebody else's by now.
 */
export const runCommand = () =>
  command("run", "Hold an address for the life of a command, which finds it in OVERLAY_IP.")
    .requiredOption("--network <name>", "the network")
    .requiredOption("--runner <name>", "the runner")
    .option("--ip <address>", "exactly this one", address)
    .option("--ttl <seconds>", "how long it stays held if this process is killed", seconds, 30)
    .argument("<command...>", "the command and its arguments, after --")
    .passThroughOptions()
    .action(
      withPool<Options>(async ({ pool }, { network, runner: name, ip, ttl }, words) => {
        const runner = await runnerNamed(pool, network, name);
        const lease = await reserve(pool, runner, { ttl, ...(ip !== undefined && { ip }) });
        try {
          const env = { ...environment(lease), OVERLAY_GATEWAY: runner.layouts[0]!.gateway };
          process.exitCode = await run(words as unknown as string[], env, (child) => keep(pool, lease, ttl, child));
        } finally {
          await pool.release(lease.pool, lease.leaseId);
        }
      }),
    );

function environment(lease: Lease): Record<string, string> {
  const { ip, ip6, network, runner } = view(lease);
  return {
    OVERLAY_IP: ip,
    ...(ip6 !== undefined && { OVERLAY_IP6: ip6 }),
    OVERLAY_NETWORK: network!,
    OVERLAY_RUNNER: runner!,
  };
}

const FORWARDED: NodeJS.Signals[] = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH"];
/** A terminal sends these to the whole foreground group, the command included. */
const FROM_TERMINAL: NodeJS.Signals[] = ["SIGINT", "SIGQUIT"];

/** Where there is a way, the command ends with this process even if that is killed: nobody would renew its lease. */
const tie = (): string[] =>
  process.platform === "linux" && isOnPath("setpriv") ? ["setpriv", "--pdeathsig", "TERM"] : [];

const isOnPath = (program: string): boolean =>
  (process.env.PATH ?? "").split(delimiter).some((folder) => folder !== "" && existsSync(join(folder, program)));

/** Its exit code, as a shell would give it. */
async function run(words: string[], env: Record<string, string>, during: (child: ChildProcess) => () => void) {
  const [program, ...args] = [...tie(), ...words] as [string, ...string[]];
  const child = spawn(program, args, { stdio: "inherit", env: { ...process.env, ...env } });
  const forward = (signal: NodeJS.Signals) => child.kill(signal);
  const ignore = () => {};
  for (const signal of FORWARDED) process.on(signal, forward);
  for (const signal of FROM_TERMINAL) process.on(signal, process.stdin.isTTY ? ignore : forward);
  const stop = during(child);
  try {
    return await new Promise<number>((resolve) => {
      child.once("error", (error: NodeJS.ErrnoException) => {
        process.stderr.write(`${program}: ${error.message}\n`);
        resolve(error.code === "ENOENT" ? 127 : 126);
      });
      child.once("exit", (code, signal) => resolve(code ?? 128 + constants.signals[signal!]));
    });
  } finally {
    stop();
    for (const signal of [...FORWARDED, ...FROM_TERMINAL]) process.removeAllListeners(signal);
  }
}

/** Renews the lease three times in its life; returns how to stop that. */
function keep(pool: Pool, lease: Lease, ttl: number, child: ChildProcess): () => void {
  const stopped = new AbortController();
  const renewing = async () => {
    for (let good = Date.now(); !stopped.signal.aborted; ) {
      await sleep((ttl * 1000) / 3, undefined, { signal: stopped.signal });
      const error = await pool.touch(lease.pool, lease.leaseId, { ttl }).then(
        () => undefined,
        (error: unknown) => error,
      );
      if (error === undefined) good = Date.now();
      else if (isOverlayError(error, "LEASE_FENCED", "LEASE_EXPIRED") || Date.now() - good > ttl * 1000) {
        return lost(child, lease, error);
      }
    }
  };
  renewing().catch((error: Error) => {
    if (error.name !== "AbortError") throw error;
  });
  return () => stopped.abort();
}

function lost(child: ChildProcess, lease: Lease, cause: unknown): void {
  child.kill("SIGTERM");
  const what = `The lease on ${view(lease).ip} could not be kept: ${(cause as Error).message}`;
  refuse(new OverlayError("LEASE_EXPIRED", what, "The command was ended. Run it again.", cause), false);
}
