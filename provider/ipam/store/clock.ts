import { readFileSync } from "node:fs";
import { uptime } from "node:os";
import { OverlayError } from "../../errors";

/**
 * The store's clock decides when leases end, so a wrong one must not count. A single clock cannot be checked; a second one can
 * tell that it leapt: the time since boot, another machine's clock, or the time of the last commit.
 */
export const LEAP_MS = 5 * 60 * 1000;

/**
 * `leap`: `now` is ahead of everything that can tell the time. `behind`: the last commit is ahead of `now`, so the clock was ahead
 * then, or is behind now. Without witnesses no leap is seen: a store may lie idle for months.
 */
export function judgeClock(now: number, witnesses: number[], lastCommit = 0): "sound" | "leap" | "behind" {
  if (witnesses.length > 0 && now > Math.max(...witnesses) + LEAP_MS) return "leap";
  return lastCommit > now + LEAP_MS ? "behind" : "sound";
}

/** A moment by a clock that cannot be set: milliseconds since boot, suspension included, and which boot that was. */
export interface BootTime {
  boot: string;
  uptime: number;
}

const bootId = ((): string | undefined => {
  try {
    const id = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    // In a container whose uptime is its own, process 1 tells one start of it from the next. Field 22 of its stat is when it began.
    const started = readFileSync("/proc/1/stat", "utf8").split(") ").at(-1)!.split(" ")[19];
    return `${id}/${started}`;
  } catch {
    return undefined;
  }
})();

/** undefined where the system does not tell one boot from another. */
export const bootTime = (): BootTime | undefined =>
  bootId === undefined ? undefined : { boot: bootId, uptime: Math.round(uptime() * 1000) };

const start = { wall: Date.now(), uptime: uptime() };

/** This machine's clock as it was when this process began, and the time since boot since then: setting the clock does not move it. */
export const machineTime = (): number => start.wall + Math.round((uptime() - start.uptime) * 1000);

const timeText = (time: number): string => new Date(time).toISOString();

export const serverLeapt = (place: string, now: number, machine: number, lastCommit: number): OverlayError =>
  new OverlayError(
    "STORE_CLOCK",
    `The clock of ${place} shows ${timeText(now)}, this machine's ${timeText(machine)}${lastCommit > 0 ? `, and the last commit was at ${timeText(lastCommit)}` : ""}. Nothing was changed, and no lease ends by it.`,
    "Set the clock that is wrong, and run it again.",
  );

export const headAhead = (place: string, lastCommit: number, now: number): string =>
  `the last commit at ${place} is of ${timeText(lastCommit)}, but its clock shows ${timeText(now)}: the clock was ahead, and no lease ends until it is there again`;

const fileClockLeapt = (path: string, now: number, expected: number): OverlayError =>
  new OverlayError(
    "STORE_CLOCK",
    `This machine's clock shows ${timeText(now)}, but by the time since boot and the last commit to ${path} it is ${timeText(expected)}. Nothing was changed, and no lease ends by it.`,
    ACCEPT,
  );

const fileClockBehind = (path: string, now: number, lastCommit: number): OverlayError =>
  new OverlayError(
    "STORE_CLOCK",
    `This machine's clock shows ${timeText(now)}, but the last commit to ${path} is of ${timeText(lastCommit)}: the clock was ahead then, or is behind now. Nothing was changed.`,
    ACCEPT,
  );

const ACCEPT =
  "Set the clock if it is wrong. If it is right (it was corrected, or the machine was a paused virtual one), accept it with `overlayctl store check --repair`.";

/** What the last commit has noted of the time: by the clock, and since which boot. */
export interface NotedTime {
  noted_at: number;
  boot: string | null;
  uptime: number | null;
}

/** The time of a file's clock, this machine's. Throws `STORE_CLOCK` if it cannot be that by what was noted last. */
export function timeByNote(
  path: string,
  now: number,
  noted: NotedTime | undefined,
  bootTime: () => BootTime | undefined,
): number {
  if (!noted) return now;
  const { noted_at: at, boot, uptime } = noted;
  // The time since boot does not go back: it only matters after a while.
  const here = now > at + LEAP_MS ? bootTime() : undefined;
  const isSameBoot = here !== undefined && here.boot === boot && uptime !== null && here.uptime >= uptime;
  const expected = isSameBoot ? at + here.uptime - uptime : undefined;
  const verdict = judgeClock(now, expected === undefined ? [] : [expected], at);
  if (verdict === "leap") throw fileClockLeapt(path, now, expected!);
  if (verdict === "behind") throw fileClockBehind(path, now, at);
  return now;
}
