import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../errors";
import { type Connection, connectionName, type HostSettings, portOf } from "../connection";
import type { DialFailed, DialOutcome } from "./dial";

const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 5000;

/** Seconds after which the user is notified about a host that does not answer. */
const NOTICE_AFTER_SECONDS = 15;

/**
 * Seconds for which a host is dialled again after a clear answer. A closed port may be a host that is just booting; a name that
 * does not exist is mistyped. A connection with dialErrorLimit or perDialTimeout has its own limits.
 */
const CLEAR_ANSWER_LIMIT: Record<DialOutcome, number> = { unknownName: 0, closed: 9, noAnswer: Infinity };

/** Counts the failed dials of one host, and decides whether to retry. */
export class DialRetries {
  #failed = 0;
  #began: number | undefined;

  constructor(
    private readonly connection: Connection,
    private readonly settings: HostSettings,
  ) {}

  /** Milliseconds that the next dial may take. The clock starts with the first dial, not while it waits for a slot. */
  limit(): number {
    this.#began ??= Date.now();
    const one = (this.connection.perDialTimeout ?? this.settings.connectTimeout) * 1000;
    return Math.ceil((one > 0 ? Math.min(one, this.#left()) : this.#left()) / 100) * 100;
  }

  /** Waits before the next try, or throws when it was the last one. */
  async pause(failure: DialFailed, ended: AbortSignal): Promise<void> {
    const most = this.connection.dialErrorLimit ?? 10;
    const wait = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#failed);
    this.#failed++;
    const isLast = (most > 0 && this.#failed >= most) || this.#left() <= wait || this.#isAnswered(failure, wait);
    if (ended.aborted || isLast) throw this.#unreachable(failure);
    await sleep(wait, undefined, { signal: ended }).catch(() => {
      throw this.#unreachable(failure);
    });
  }

  /** Calls `notify` once if the host has not been reached after a while; returns a function that cancels it. */
  notifyWhenSlow(notify: (text: string) => void): () => void {
    const { host } = this.connection;
    const place = `${host.includes(":") ? `[${host}]` : host}:${portOf(this.connection)}`;
    const text =
      `waiting for SSH on ${place}: not reached after ${NOTICE_AFTER_SECONDS} s. It is given up ` +
      `after ${this.settings.operationTimeout} s (overlay:operationTimeout), or as its dialErrorLimit says.`;
    const timer = setTimeout(() => notify(text), NOTICE_AFTER_SECONDS * 1000);
    return () => clearTimeout(timer);
  }

  /** Whether the host, or the resolver, has refused for long enough. */
  #isAnswered({ outcome }: DialFailed, wait: number): boolean {
    const { dialErrorLimit, perDialTimeout } = this.connection;
    if (dialErrorLimit !== undefined || perDialTimeout !== undefined) return false;
    return Date.now() - this.#began! + wait > CLEAR_ANSWER_LIMIT[outcome] * 1000;
  }

  #left(): number {
    return Math.max(1, this.#began! + this.settings.operationTimeout * 1000 - Date.now());
  }

  #unreachable({ phase, reason }: DialFailed): OverlayError {
    const seconds = Math.round((Date.now() - this.#began!) / 100) / 10;
    const tries = `${this.#failed} ${this.#failed === 1 ? "try" : "tries"} in ${seconds} s`;
    return new OverlayError(
      "SSH_UNREACHABLE",
      `${connectionName(this.connection)} cannot be reached by SSH: ${phase} failed with ${reason} (${tries}).`,
      "Check that the host is up, its address and port are right, sshd listens, and no firewall is in between. For a host that is " +
        "still booting, set dialErrorLimit in its connection (0: try until overlay:operationTimeout).",
    );
  }
}
