import { spawn } from "node:child_process";
import type { Logger } from "pino";

/**
 * Tells systemd that the event loop runs, if the unit has WatchdogSec: systemd restarts a process that stops saying so. The socket of systemd is
 * one for datagrams, which Node cannot open, so `systemd-notify` sends them. Returns what ends it.
 */
export function startWatchdog(env: NodeJS.ProcessEnv, log: Logger): () => void {
  const microseconds = Number(env.WATCHDOG_USEC);
  if (env.NOTIFY_SOCKET === undefined || !(microseconds > 0)) return () => {};
  const notify = () =>
    spawn("systemd-notify", ["WATCHDOG=1"], { stdio: "ignore" })
      .on("error", (error) => log.warn(`systemd-notify failed: ${error.message}`))
      .unref();
  notify();
  const timer = setInterval(notify, microseconds / 3000).unref();
  return () => clearInterval(timer);
}
