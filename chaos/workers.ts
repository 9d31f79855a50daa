import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { ledgerFile } from "./ledger";

/** Starts, kills and replaces the worker processes. */

interface Worker {
  name: string;
  generation: number;
  process: ChildProcess;
}

/** Eight worker processes. A killed one is replaced by a new process of the same name. */
export class Workers {
  readonly #workers: Worker[];
  #ending = false;
  kills = 0;
  /** Workers that exited on their own. */
  readonly faults: string[] = [];

  constructor(
    private readonly url: string,
    private readonly folder: string,
    size = 8,
  ) {
    this.#workers = Array.from({ length: size }, (_, i) => this.#spawn(`w${i}`, 0));
  }

  /** Kills a random worker with SIGKILL. false: all are still starting. */
  killOne(): boolean {
    const busy = this.#workers.filter(({ name, generation }) => existsSync(ledgerFile(this.folder, name, generation)));
    const victim = busy[Math.floor(Math.random() * busy.length)];
    if (!victim) return false;
    victim.process.removeAllListeners("exit");
    victim.process.kill("SIGKILL");
    this.#workers[this.#workers.indexOf(victim)] = this.#spawn(victim.name, victim.generation + 1);
    this.kills++;
    return true;
  }

  /** Waits until all calls in progress have ended. */
  async end(): Promise<void> {
    this.#ending = true;
    const gone = this.#workers.map(async ({ process }) => {
      if (process.exitCode !== null || process.signalCode !== null) return;
      const exit = once(process, "exit");
      process.kill("SIGTERM");
      await Promise.race([exit, sleep(60_000, undefined, { ref: false })]);
      process.kill("SIGKILL");
    });
    await Promise.all(gone);
  }

  #spawn(name: string, generation: number): Worker {
    const args = ["--import", "tsx", join(__dirname, "worker.ts"), this.url, this.folder, name, String(generation)];
    let stderr = "";
    const child = spawn(process.execPath, args, { stdio: ["ignore", "ignore", "pipe"] });
    child.stderr.on("data", (data) => {
      stderr += data;
    });
    const worker = { name, generation, process: child };
    child.once("exit", (code, signal) => {
      // SIGTERM during start: no call is in progress.
      if (this.#ending && (code === 0 || signal === "SIGTERM")) return;
      this.faults.push(`${name}, process ${generation}, ended with ${code ?? signal}: ${errorIn(stderr)}`);
      if (this.#ending) return;
      this.#workers[this.#workers.indexOf(worker)] = this.#spawn(name, generation + 1);
    });
    return worker;
  }
}

/** Node shows the line of code first, then the error. */
const errorIn = (text: string): string => text.split("\n").find((line) => /Error/.test(line)) ?? text.slice(0, 200);
