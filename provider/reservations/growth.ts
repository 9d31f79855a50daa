import type { Event, Ipam } from "../ipam/types";
import { isBeginning, isEnd } from "./history";

/** How fast a pool fills, by its history. */
export interface Growth {
  /** Values that were given out in the last hour, less those that were returned. Negative: the pool empties. */
  growthLastHour: number;
  growthLastDay: number;
  /** Seconds until nothing is left at the faster of both rates; absent when it does not grow. */
  exhaustedInSeconds?: number;
}

const HOUR = 3600;
const DAY = 24 * HOUR;

/** How many changes a pool keeps at least. */
const KEPT = 10_000;

/** `now` is in milliseconds. If the changes that a pool keeps are of less than a day, the rate is that of their time. */
export async function readGrowth(
  pool: Pick<Ipam, "history">,
  name: string,
  { capacity, held }: { capacity: bigint; held: bigint },
  now: number,
): Promise<Growth> {
  const events = await pool.history(name, { after: now - DAY * 1000, limit: 2 * KEPT });
  const coveredSeconds = events.length >= KEPT ? Math.max(1, (now - events[0]!.at) / 1000) : DAY;
  // What has expired is in the history only after the next change, so the pool cannot have grown by more than it holds.
  const growth = (seconds: number) => Math.min(netGrowth(events, now - seconds * 1000), Number(held));
  const rate = (seconds: number) => growth(seconds) / Math.min(seconds, coveredSeconds);
  const fastest = Math.max(rate(HOUR), rate(DAY));
  return {
    growthLastHour: growth(HOUR),
    growthLastDay: growth(DAY),
    ...(fastest > 0 && { exhaustedInSeconds: Math.max(0, Math.round(Number(capacity - held) / fastest)) }),
  };
}

const netGrowth = (events: Event[], since: number): number =>
  events
    .filter(({ at }) => at > since)
    .reduce((sum, event) => sum + Number(isBeginning(event)) * sizeOf(event) - Number(isEnd(event)) * sizeOf(event), 0);

/** A second extent is the address of the other family. */
const sizeOf = ({ extents: [main] }: Event): number => Number(main!.last - main!.first + 1n);
