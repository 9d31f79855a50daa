import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Pace } from "../../../provider/pool/stores/etcd-turn";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Waits in line, from a place to the front; so many milliseconds for each place. Says how long it waited between looks. */
function wait(pace: Pace, from: number, milliseconds: number): number[] {
  const waits: number[] = [];
  for (let place = from; place > 0; place--) {
    waits.push(pace.untilNext(place));
    vi.advanceTimersByTime(milliseconds);
  }
  pace.arrive();
  return waits;
}

test("who is far behind looks seldom, and who is next looks often", () => {
  const pace = new Pace();
  wait(pace, 4, 40);
  const [far, , , next] = wait(pace, 4, 40);
  expect(far).toBeGreaterThan(next! * 5);
});

test("a line that was slow and is quick again is looked at as one that is quick, however long nobody waited", () => {
  const pace = new Pace();
  wait(pace, 1, 200);
  const [slow] = wait(pace, 1, 16);
  vi.advanceTimersByTime(60_000);
  const [quick] = wait(pace, 1, 16);
  expect(slow).toBeGreaterThan(quick!);
  vi.advanceTimersByTime(60_000);
  expect(wait(pace, 3, 16)[0]).toBeLessThan(40);
});
