import { writeSync } from "node:fs";
import { by, createPool, firstOf, openPool, ranges } from "../fixture";

/** A worker process: `claim-worker.ts URL NAME COUNT WIDTH`. Claims so many values, so many at once, releases each fifth, and prints both. */
async function main([url, name, count, width]: string[]): Promise<void> {
  const pool = await openPool(url!, { offerTtl: 3600, quarantine: 300 });
  await createPool(pool, { ranges: ranges("10.0.0.0/16") });
  let next = 0;
  const claimOn = async () => {
    while (next < Number(count)) {
      const i = next++;
      const lease = await pool.claim(by(`${name} ${i}`));
      const line = `${firstOf(lease)} ${lease.leaseId}\n`;
      writeSync(1, `claimed ${line}`);
      if (i % 5 === 0 && (await pool.release("pool/p", lease.leaseId))) writeSync(1, `released ${line}`);
    }
  };
  await Promise.all(Array.from({ length: Number(width) }, claimOn));
  // Neither closed nor ended: an idle store must not keep a process alive.
}

main(process.argv.slice(2));
