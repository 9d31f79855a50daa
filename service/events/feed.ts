import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../../provider/errors";
import type { EventPage, Ipam, LoggedEvent } from "../../provider/ipam/types";
import { type Position, readNewest, requirePosition } from "./position";

/** How often the store is asked for events of other processes. Milliseconds. */
const POLL_MS = 250;

/** After a failure of the store. */
const RETRY_MS = 1000;

/** Events that are handed on at once. */
const PAGE = 200;

/** Newest events that are kept in memory, for followers that are not far behind. */
const KEPT = 2000;

export interface FeedOptions {
  pollMs?: number;
  retryMs?: number;
  /** The store has failed; it is asked again. */
  onError?(error: unknown): void;
}

/**
 * The events of the store, for all followers of this instance. One poller reads new events while there are followers. A follower pulls:
 * it gets the next events when it has dealt with the last ones, from memory or, if it is far behind, from the store. So a slow follower
 * takes no memory, and delays no other.
 */
export class EventFeed {
  /** Without gaps, up to `#last`. */
  #recent: LoggedEvent[] = [];
  /** The newest event that the poller knows; undefined: the next poll finds it. */
  #last: number | undefined;
  #followers = 0;
  #isPolling = false;
  /** A commit of this process that the poller has not read yet. */
  #isBehind = false;
  #endPause = () => {};
  readonly #waiting = new Set<() => void>();

  constructor(
    private readonly pool: Pick<Ipam, "events">,
    private readonly options: FeedOptions = {},
  ) {}

  get followers(): number {
    return this.#followers;
  }

  async newest(): Promise<number> {
    return (await this.pool.events({})).last;
  }

  newestPosition(): Promise<Position> {
    return readNewest(this.pool);
  }

  /** `EVENTS_LOST` if `follow` could not begin here. */
  mustHave(after: Position): Promise<void> {
    return requirePosition(this.pool, after);
  }

  /** After a commit of this process: its events are read at once. */
  wake(): void {
    this.#isBehind = true;
    this.#endPause();
  }

  /**
   * All events after this one, in order, until the signal is aborted. An empty list says that there was none for `idleMs`. Throws
   * `EVENTS_LOST` when the next event is no longer kept.
   */
  async *follow(after: number, signal: AbortSignal, idleMs?: number): AsyncGenerator<LoggedEvent[], void, void> {
    this.#followers++;
    void this.#poll();
    try {
      for (let at = after; !signal.aborted; ) {
        const events = this.#fromMemory(at) ?? (await this.#fromStore(at, signal));
        if (events.length > 0) {
          yield events;
          at = events.at(-1)!.id;
        } else if (this.#last === undefined || this.#last <= at) {
          // Nothing is awaited between this comparison and the wait, so no notification is missed.
          const isIdle = !(await this.#change(signal, idleMs));
          if (isIdle) yield [];
        }
      }
    } finally {
      this.#followers--;
      if (this.#followers === 0) this.#endPause();
    }
  }

  /** undefined: they are not in memory. */
  #fromMemory(after: number): LoggedEvent[] | undefined {
    if (this.#last === undefined || after > this.#last) return undefined;
    const skipped = this.#recent.length - (this.#last - after);
    return skipped < 0 ? undefined : this.#recent.slice(skipped, skipped + PAGE);
  }

  /** A store that fails does not end a follower, only events that are lost do. */
  async #fromStore(after: number, signal: AbortSignal): Promise<LoggedEvent[]> {
    try {
      return (await this.pool.events({ after, limit: PAGE })).events;
    } catch (error) {
      if (isOverlayError(error, "EVENTS_LOST")) throw error;
      this.options.onError?.(error);
      await sleep(this.#retryMs, undefined, { signal }).catch(() => {});
      return [];
    }
  }

  /** true: the poller has found events, or the signal was aborted; false: there was none for so long. */
  #change(signal: AbortSignal, idleMs?: number): Promise<boolean> {
    return new Promise((resolve) => {
      const end = (hasChanged: boolean) => {
        clearTimeout(timer);
        signal.removeEventListener("abort", notify);
        this.#waiting.delete(notify);
        resolve(hasChanged);
      };
      const notify = () => end(true);
      const timer = idleMs === undefined ? undefined : setTimeout(() => end(false), idleMs);
      signal.addEventListener("abort", notify);
      this.#waiting.add(notify);
      if (signal.aborted) notify();
    });
  }

  async #poll(): Promise<void> {
    if (this.#isPolling) return;
    this.#isPolling = true;
    while (this.#followers > 0) {
      this.#isBehind = false;
      const pauseMs = await this.#readNew();
      if (!this.#isBehind && this.#followers > 0) await this.#pause(pauseMs);
    }
    [this.#isPolling, this.#last, this.#recent] = [false, undefined, []];
  }

  /** Returns how long to wait before the next poll. */
  async #readNew(): Promise<number> {
    try {
      const page = await this.pool.events(this.#last === undefined ? {} : { after: this.#last, limit: KEPT });
      this.#keep(page);
      return page.last > this.#last! ? 0 : (this.options.pollMs ?? POLL_MS);
    } catch (error) {
      // Followers whose events are lost find out when they read the store.
      [this.#last, this.#recent] = [undefined, []];
      this.#notify();
      if (isOverlayError(error, "EVENTS_LOST")) return 0;
      this.options.onError?.(error);
      return this.#retryMs;
    }
  }

  #keep({ events, last }: EventPage): void {
    const isFirst = this.#last === undefined;
    this.#recent = [...this.#recent, ...events].slice(-KEPT);
    this.#last = events.at(-1)?.id ?? this.#last ?? last;
    if (isFirst || events.length > 0) this.#notify();
  }

  #notify(): void {
    for (const notify of this.#waiting) notify();
  }

  async #pause(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#endPause = () => {};
  }

  get #retryMs(): number {
    return this.options.retryMs ?? RETRY_MS;
  }
}
