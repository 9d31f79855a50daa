import { createInterface } from "node:readline";
import { openIpam } from "../../provider/ipam";
import { type Context, release, reserveMany, useAddress } from "../../provider/reservations";

/**
 * A worker process: `token-worker.ts URL NAME`. Each line of its input is `use TOKEN` or `release TOKEN`, which it answers with `won` or a code, or
 * `reserve KEY`, which it answers with lease ids.
 */
const ACTIONS: Record<string, (context: Context, subject: string, name: string) => Promise<string>> = {
  use: (context, token, by) => useAddress(context, { token, by }).then(() => "won"),
  release: (context, token) => release(context, { token }).then(() => "won"),
  reserve: async (context, key) =>
    (await reserveMany(context, { pool: "p", key, count: 3 })).map(({ lease }) => lease.leaseId).join(","),
};

async function main([url, name]: string[]): Promise<void> {
  const pool = await openIpam(url!, { offerTtl: 3600, quarantine: 0 });
  process.stdout.write("ready\n");
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, subject] = line.split(" ") as [string, string];
    const answer = await ACTIONS[verb]!({ pool }, subject, name!).catch(
      (error: { code?: string }) => error.code ?? String(error),
    );
    process.stdout.write(`${answer}\n`);
  }
  await pool.end();
}

void main(process.argv.slice(2));
