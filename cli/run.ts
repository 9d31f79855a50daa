import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { constants } from "node:os";
import { describeLease, holdAddress, holdInput } from "../provider/reservations";
import { command, parseOptions, printError, withNewPool } from "./command";
import { withAddressOptions } from "./ip";

/**
 * Holds an address by a short lease that is renewed while the command runs. The lease is released after all processes of the command
 * have ended. If the lease is lost, they are ended, because the address may have another owner.
 */
export const runCommand = () =>
  withAddressOptions(
    command("run", "Hold an address while a command runs, with the address in its OVERLAY_IP."),
    "exactly this one",
  )
    .option("--ttl <seconds>", "how long the address stays held if this process is killed; default 30")
    .argument("<command...>", "the command and its arguments, after --")
    .passThroughOptions()
    .action(
      withNewPool(async ({ context }, options, words) => {
        const hold = await holdAddress(context, parseOptions(holdInput, options));
        const { ip, ip6, pool, network, runner } = describeLease(hold.lease);
        const [gateway, gateway6] = hold.gateways;
        const env = {
          OVERLAY_IP: ip,
          OVERLAY_IP6: ip6,
          OVERLAY_POOL: pool,
          OVERLAY_NETWORK: network,
          OVERLAY_RUNNER: runner,
          OVERLAY_GATEWAY: gateway,
          OVERLAY_GATEWAY6: gateway6,
        };
        try {
          const command = supervise(words as unknown as string[], env);
          void hold.lost.then((error) => {
            command.end();
            printError(error, false);
          });
          process.exitCode = await command.ended;
        } finally {
          await hold.release();
        }
      }),
    );

/** Runs a command so that none of its processes outlives this one, even if this one is killed. */
export interface Supervised {
  /** The exit code as a shell gives it, once all processes of the command have ended. */
  ended: Promise<number>;
  /** Ends all processes of the command. */
  end(): void;
}

const FORWARDED: NodeJS.Signals[] = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH"];
/** A terminal sends these to the whole foreground group, the command included. */
const FROM_TERMINAL: NodeJS.Signals[] = ["SIGINT", "SIGQUIT"];

function supervise(words: string[], variables: Record<string, string | undefined>): Supervised {
  const [program, ...args] = words as [string, ...string[]];
  const mark = randomUUID();
  const watchdog = startWatchdog(mark);
  const env = { ...withoutSecrets(process.env), ...variables, [MARK_VARIABLE]: mark };
  const child = spawn(program, args, { stdio: "inherit", env });
  const forward = (signal: NodeJS.Signals) => child.kill(signal);
  const ignore = () => {};
  for (const signal of FORWARDED) process.on(signal, forward);
  for (const signal of FROM_TERMINAL) process.on(signal, process.stdin.isTTY ? ignore : forward);
  const exited = new Promise<number>((resolve) => {
    child.once("error", (error: NodeJS.ErrnoException) => {
      process.stderr.write(`${program}: ${error.message}\n`);
      resolve(error.code === "ENOENT" ? 127 : 126);
    });
    child.once("exit", (code, signal) => resolve(code ?? 128 + constants.signals[signal!]));
  });
  const ended = exited.then(async (code) => {
    await watchdog.endAll();
    for (const signal of [...FORWARDED, ...FROM_TERMINAL]) process.removeAllListeners(signal);
    return code;
  });
  const end = () => {
    child.kill("SIGTERM");
    void watchdog.endAll();
  };
  return { ended, end };
}

/** Credentials of this program, its PostgreSQL client and Pulumi are not passed to the command. */
const OWN_VARIABLES = /^OVERLAY_|^PG[A-Z]|^PULUMI_(ACCESS_TOKEN|BACKEND_URL|CONFIG_PASSPHRASE)/;

const withoutSecrets = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !OWN_VARIABLES.test(name)));

/** In the environment of the command and of all that it starts. */
const MARK_VARIABLE = "OVERLAY_RUN";
/** Between SIGTERM and SIGKILL. */
const GRACE_TENTHS = 20;

/**
 * A shell that waits until its standard input ends, which also happens when this process is killed, and then ends every process that
 * has the mark in its environment, and every descendant and member of a session or process group of such a process. A process
 * escapes only if it has cleared its environment, or overwritten it, and its parents were gone before.
 */
const WATCHDOG = String.raw`
mark=$1 grace=$2 found= tries=0
list() {
  { grep -lzx "$mark" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|mark \1|'; cat /proc/[0-9]*/stat; } 2>/dev/null |
    awk -v found="$found" '
      BEGIN { n = split(found, list, " "); for (i = 1; i <= n; i++) known[list[i]] = 1 }
      $1 == "mark" { take[$2] = 1; next }
      {
        pid = $1; sub(/^.*\) /, "")
        if ($1 == "Z" || $1 == "X") next
        parent[pid] = $2; group[pid] = $3; session[pid] = $4; id[pid] = pid ":" $20
        if (id[pid] in known) take[pid] = 1
      }
      END {
        do {
          more = 0
          for (pid in parent)
            if (!(pid in take) && (parent[pid] in take || group[pid] in take || session[pid] in take)) take[pid] = more = 1
        } while (more)
        for (pid in parent) if (pid in take) print id[pid]
      }'
}
while read -r _; do :; done
while found=$(list) && [ -n "$found" ] && [ $tries -lt 600 ]; do
  pids=$(echo "$found" | cut -d: -f1)
  if [ $tries -ge "$grace" ]; then kill -KILL $pids; elif [ $tries -eq 0 ]; then kill -TERM $pids; fi 2>/dev/null
  tries=$((tries + 1))
  sleep 0.1
done
`;

interface Watchdog {
  endAll(): Promise<void>;
}

/** In a session of its own, so that a signal for this process's group does not reach it. It needs Linux's /proc. */
function startWatchdog(mark: string): Watchdog {
  if (process.platform !== "linux") return { endAll: async () => {} };
  const shell = spawn(
    "/bin/sh",
    ["-c", WATCHDOG, "overlayctl-watchdog", `${MARK_VARIABLE}=${mark}`, String(GRACE_TENTHS)],
    {
      stdio: ["pipe", "ignore", "ignore"],
      env: { PATH: process.env.PATH ?? "/usr/sbin:/usr/bin:/sbin:/bin" },
      detached: true,
    },
  );
  const ended = new Promise<void>((resolve) => {
    shell.once("exit", () => resolve());
    shell.once("error", () => resolve());
  });
  shell.stdin.on("error", () => {}); // it has already exited
  return {
    endAll: () => {
      shell.stdin.end();
      return ended;
    },
  };
}
