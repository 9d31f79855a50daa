import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Connection } from "../../../provider/host/connection";
import { DialFailed, type DialOutcome, DialRetries } from "../../../provider/host/ssh/dial";

const SETTINGS = { connectTimeout: 15, operationTimeout: 120, parallelHosts: 16 };

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Dials until `DialRetries` gives up, each dial `seconds` long. Returns how often, for how long, and the error. */
async function giveUp(outcome: DialOutcome, more: Partial<Connection>, seconds: number) {
  const tries = new DialRetries({ host: "192.0.2.5", ...more }, SETTINGS);
  const start = Date.now();
  for (let dials = 1; ; dials++) {
    tries.limit();
    await vi.advanceTimersByTimeAsync(seconds * 1000);
    const pause = tries.pause(new DialFailed("dial", "a reason", outcome), new AbortController().signal).then(
      () => undefined,
      (error: Error) => error,
    );
    await vi.advanceTimersByTimeAsync(5000);
    const error = await pause;
    if (error)
      return { dials, seconds: Number(/in ([\d.]+) s\)/.exec(error.message)![1]), message: error.message, start };
  }
}

test.each<
  [what: string, outcome: DialOutcome, more: Partial<Connection>, seconds: number, dials: number, most: number]
>([
  ["a name that does not exist", "unknownName", {}, 0, 1, 0],
  ["a closed port", "closed", {}, 0, 3, 10],
  ["a host that does not answer", "noAnswer", {}, 15, 6, 120],
  ["a closed port with dialErrorLimit", "closed", { dialErrorLimit: 6 }, 0, 6, 30],
  ["a name that does not exist with dialErrorLimit", "unknownName", { dialErrorLimit: 2 }, 0, 2, 10],
  ["a closed port with perDialTimeout", "closed", { perDialTimeout: 1 }, 0, 10, 60],
])("%s", async (_what, outcome, more, seconds, dials, most) => {
  const given = await giveUp(outcome, more, seconds);
  expect(given.dials).toBe(dials);
  expect(given.seconds).toBeLessThanOrEqual(most);
  expect(given.message).toMatch(
    /^SSH_UNREACHABLE: 192\.0\.2\.5 cannot be reached by SSH: .* set dialErrorLimit in its/,
  );
});

test("after 15 s without a connection the user is notified once; not if there is a connection by then", () => {
  const said: string[] = [];
  const announce = (host: string) => new DialRetries({ host }, SETTINGS).notifyWhenSlow((text) => said.push(text));
  announce("192.0.2.5");
  announce("fd00::5");
  const silence = announce("192.0.2.6");
  vi.advanceTimersByTime(14_000);
  silence();
  expect(said).toEqual([]);
  vi.advanceTimersByTime(60_000);
  expect(said).toEqual([
    expect.stringMatching(/^waiting for SSH on 192\.0\.2\.5:22: not reached after 15 s\. It is given up after 120 s/),
    expect.stringMatching(/^waiting for SSH on \[fd00::5\]:22: /),
  ]);
});
