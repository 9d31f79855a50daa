import { closeSync, fdatasyncSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { type Case, roomIn } from "./cases";

/** The lower bound of one durable claim at a time: one page is overwritten and synced. */
export function fdatasyncs(folder: string, milliseconds: number): number {
  const path = join(folder, "floor");
  const page = Buffer.alloc(4096, 1);
  writeFileSync(path, Buffer.alloc(PAGES * page.length));
  const file = openSync(path, "r+");
  fdatasyncSync(file);
  const rate = perSecond(milliseconds, (i) => {
    writeSync(file, page, 0, page.length, (i % PAGES) * page.length);
    fdatasyncSync(file);
  });
  closeSync(file);
  return rate;
}
const PAGES = 256;

/** KohakuRiver's search: every address from the first one on, as text, until one is not in the set. In memory. */
export function linearSearches(one: Case, milliseconds: number): number {
  const { first, last } = one.spec.ranges[0]!;
  const used = new Set<string>();
  for (let i = 0; i < one.leases; i++) used.add(formatIpv4(first + BigInt(i)));
  const given: string[] = [];
  const search = (): string => {
    for (let value = first; value <= last; value++) if (!used.has(formatIpv4(value))) return formatIpv4(value);
    throw new Error("nothing is free");
  };
  const room = roomIn(one);
  return perSecond(milliseconds, () => {
    if (given.length === room) for (const address of given.splice(0)) used.delete(address);
    const address = search();
    used.add(address);
    given.push(address);
  });
}

function formatIpv4(value: bigint): string {
  const address = Number(value & 0xffff_ffffn);
  return `${address >>> 24}.${(address >>> 16) & 255}.${(address >>> 8) & 255}.${address & 255}`;
}

function perSecond(milliseconds: number, act: (i: number) => void): number {
  const from = performance.now();
  let [i, time] = [0, 0];
  for (; time < milliseconds; time = performance.now() - from) act(i++);
  return (i * 1000) / time;
}
