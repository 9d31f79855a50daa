import { createInterface } from "node:readline";
import { openPool } from "../../provider/pool";
import { releaseByToken, useByToken } from "../../provider/reservations";

/** A worker process: `token-worker.ts URL NAME`. Each line of its input is `use TOKEN` or `release TOKEN`; it answers `won` or a code. */
async function main([url, name]: string[]): Promise<void> {
  const pool = await openPool(url!, { offerTtl: 3600, quarantine: 0 });
  process.stdout.write("ready\n");
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, token] = line.split(" ") as [string, string];
    const act = () => (verb === "use" ? useByToken({ pool }, { token, by: name! }) : releaseByToken({ pool }, token));
    process.stdout.write(
      await act().then(
        () => "won\n",
        (error: { code?: string }) => `${error.code ?? error}\n`,
      ),
    );
  }
  await pool.end();
}

void main(process.argv.slice(2));
