import { writeSync } from "node:fs";
import { by, createPool, extents, firstOf, openPool } from "../fixture";

/** A worker process: `claim-worker.ts URL NAME COUNT WIDTH`. Claims so many values, so many at once, and prints each. */
async function main([url, name, count, width]: string[]): Promise<void> {
  const pool = await openPool(url!, { offerTtl: 3600, quarantine: 300 });
  await createPool(pool, { extents: extents("10.0.0.0/16") });
  let next = 0;
  const claimOn = async () => {
    while (next < Number(count)) writeSync(1, `claimed ${firstOf(await pool.claim(by(`${name} ${next++}`)))}\n`);
  };
  await Promise.all(Array.from({ length: Number(width) }, claimOn));
  // Neither closed nor ended: an idle store must not keep a process alive.
}

main(process.argv.slice(2));
