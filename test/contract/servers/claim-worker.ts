import { by, createPool, extents, firstOf, openPool } from "../fixture";

/** A worker process: opens the pool at a URL, claims so many values, and prints them. */
async function main([url, name, count, width]: string[]): Promise<void> {
  const pool = await openPool(url!, { offerTtl: 3600, quarantine: 300 });
  await createPool(pool, { extents: extents("10.0.0.0/16") });
  let next = 0;
  const values: string[] = [];
  const claimOn = async () => {
    while (next < Number(count)) values.push(String(firstOf(await pool.claim(by(`${name} ${next++}`)))));
  };
  await Promise.all(Array.from({ length: Number(width) }, claimOn));
  console.log(JSON.stringify(values));
  // Neither closed nor ended: an idle store must not keep a process alive.
}

main(process.argv.slice(2));
