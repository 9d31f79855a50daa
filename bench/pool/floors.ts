import { closeSync, fdatasyncSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const PAGES = 256;

/** The lower bound of one durable claim at a time: one page is overwritten and synced. Returns how many in a second. */
export function fdatasyncs(folder: string, milliseconds: number): number {
  const path = join(folder, "floor");
  const page = Buffer.alloc(4096, 1);
  writeFileSync(path, Buffer.alloc(PAGES * page.length));
  const file = openSync(path, "r+");
  fdatasyncSync(file);
  const from = performance.now();
  let [i, time] = [0, 0];
  for (; time < milliseconds; time = performance.now() - from) {
    writeSync(file, page, 0, page.length, (i++ % PAGES) * page.length);
    fdatasyncSync(file);
  }
  closeSync(file);
  return (i * 1000) / time;
}
