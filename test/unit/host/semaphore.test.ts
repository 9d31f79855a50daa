import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { Semaphore } from "../../../provider/host/semaphore";

/** Work that counts how many calls run at a time. */
function watch(gate: Semaphore) {
  let running = 0;
  const seen: number[] = [];
  const work = () =>
    gate.run(async () => {
      seen.push(++running);
      await sleep(1);
      running--;
    });
  return { seen, work };
}

test("at most `limit` calls run at a time, and all run in the end", async () => {
  const { seen, work } = watch(new Semaphore(3));
  await Promise.all(Array.from({ length: 20 }, work));
  expect(seen).toHaveLength(20);
  expect(Math.max(...seen)).toBe(3);
});

test("waiting calls run in the order of their arrival", async () => {
  const gate = new Semaphore(1);
  const order: number[] = [];
  await Promise.all([1, 2, 3, 4].map((number) => gate.run(async () => void order.push(number))));
  expect(order).toEqual([1, 2, 3, 4]);
});

test("work that fails gives its slot back", async () => {
  const gate = new Semaphore(1);
  await expect(gate.run(() => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await gate.run(async () => "next")).toBe("next");
});

test("a reduced limit grows with successes, but not above the first limit", async () => {
  const gate = new Semaphore(3);
  const { seen, work } = watch(gate);
  await Promise.all([1, 2, 3].map(() => gate.run(async () => gate.shrink())));
  await Promise.all(Array.from({ length: 6 }, work));
  expect(Math.max(...seen)).toBeLessThan(3);
  for (let successes = 0; successes < 100; successes++) gate.recover();
  seen.length = 0;
  await Promise.all(Array.from({ length: 6 }, work));
  expect(Math.max(...seen)).toBe(3);
});

test("work that waits starts when the limit grows", async () => {
  const gate = new Semaphore(2);
  let end = (): void => {};
  const first = gate.run(
    () =>
      new Promise<void>((resolve) => {
        end = resolve;
      }),
  );
  await gate.run(async () => void gate.shrink());
  const second = gate.run(async () => "done");
  for (let successes = 0; successes < 100; successes++) gate.recover();
  expect(await second).toBe("done");
  end();
  await first;
});
