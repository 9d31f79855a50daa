import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { Semaphore } from "../../../provider/host/ssh/client";

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

test("never lets in more than its limit, and everybody in the end", async () => {
  const { seen, work } = watch(new Semaphore(3));
  await Promise.all(Array.from({ length: 20 }, work));
  expect(seen).toHaveLength(20);
  expect(Math.max(...seen)).toBe(3);
});

test("lets in those who wait in the order in which they came", async () => {
  const gate = new Semaphore(1);
  const order: number[] = [];
  await Promise.all([1, 2, 3, 4].map((number) => gate.run(async () => void order.push(number))));
  expect(order).toEqual([1, 2, 3, 4]);
});

test("work that fails gives its place back", async () => {
  const gate = new Semaphore(1);
  await expect(gate.run(() => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await gate.run(async () => "next")).toBe("next");
});
