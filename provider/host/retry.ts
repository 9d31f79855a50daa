import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../errors";
import { nameOf } from "./address";
import type { DialFailed } from "./dial";
import type { Connection, HostSettings } from "./types";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000;

/** The patience with one host: so many failed dials, so many seconds. */
export class Tries {
  #failed = 0;
  #began: number | undefined;

  constructor(
    private readonly connection: Connection,
    private readonly settings: HostSettings,
  ) {}

  /** Milliseconds that the next dial may take. The clock starts with the first one, not while it waits for its turn. */
  limit(): number {
    this.#began ??= Date.now();
    const one = (this.connection.perDialTimeout ?? this.settings.connectTimeout) * 1000;
    return Math.ceil((one > 0 ? Math.min(one, this.#left()) : this.#left()) / 100) * 100;
  }

  /** Waits before the next try, or throws when it was the last one. */
  async pause(failure: DialFailed, ended: AbortSignal): Promise<void> {
    const most = this.connection.dialErrorLimit ?? 10;
    const wait = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** this.#failed);
    this.#failed++;
    if (ended.aborted || (most > 0 && this.#failed >= most) || this.#left() <= wait) throw this.#unreachable(failure);
    await sleep(wait, undefined, { signal: ended }).catch(() => {
      throw this.#unreachable(failure);
    });
  }

  #left(): number {
    return Math.max(1, this.#began! + this.settings.operationTimeout * 1000 - Date.now());
  }

  #unreachable({ phase, reason }: DialFailed): OverlayError {
    const seconds = Math.round((Date.now() - this.#began!) / 100) / 10;
    const tries = `${this.#failed} ${this.#failed === 1 ? "try" : "tries"} in ${seconds} s`;
    return new OverlayError(
      "SSH_UNREACHABLE",
      `${nameOf(this.connection)} cannot be reached by SSH: ${phase} failed with ${reason} (${tries}).`,
      "Is the machine up, the address right, sshd listening, and no firewall in between? For a machine that boots slowly, " +
        "raise dialErrorLimit or operationTimeout.",
    );
  }
}
