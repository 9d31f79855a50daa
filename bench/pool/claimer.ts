import type { Adapter, Claimed } from "./adapter";
import type { Answer, Command } from "./claimers";

/** A process that executes commands from IPC: `claimer.ts ADAPTER URL NAME`. */
async function main([path, url, name]: string[]): Promise<void> {
  const { openAdapter, POOL } = require(path!) as typeof import("./adapter");
  await warmUp(await openAdapter("memory:"), POOL);
  const adapter = await openAdapter(url!);
  const held: Claimed[] = [];
  let owners = 0;

  const claim = async (pool: string, withOffer?: boolean): Promise<string> => {
    const owner = ownerOf(name!, owners++);
    if (withOffer) await adapter.offer(pool, owner);
    const claimed = await adapter.claim(pool, owner);
    held.push(claimed);
    return claimed.value;
  };

  const execute = async (command: Command): Promise<Answer> => {
    const [from, values] = [now(), [] as string[]];
    if (command.do === "create") await adapter.createPool();
    else if (command.do === "release") await Promise.all(held.splice(0).map((claimed) => claimed.release()));
    else if (command.do === "claim") {
      let begun = 0;
      const client = async () => {
        while (begun < command.limit && now() - from < command.milliseconds) {
          begun++;
          values.push(await claim(command.pool, command.withOffer));
        }
      };
      await Promise.all(Array.from({ length: command.together }, client));
    }
    return { from, to: now(), values };
  };

  process.on("message", async (command: Command) => process.send!(await execute(command)));
  process.on("disconnect", () => process.exit());
  process.send!("ready");
}

/** Runs the code before the measurement, so that it is compiled. */
async function warmUp(adapter: Adapter, pool: string): Promise<void> {
  await adapter.createPool();
  for (let i = 0; i < 40; i++) {
    const claim = (_: unknown, j: number) => adapter.claim(pool, ownerOf("warm-up", 32 * i + j));
    const claimed = await Promise.all(Array.from({ length: 32 }, claim));
    await Promise.all(claimed.map((one) => one.release()));
  }
  await adapter.close();
}

/** Each process is a stack. */
const ownerOf = (stack: string, i: number): string =>
  `bench/urn:pulumi:${stack}::bench::pulumi-nodejs:dynamic/overlay:IPReservation::ip${i}`;

/** Comparable between processes. */
const now = (): number => performance.timeOrigin + performance.now();

main(process.argv.slice(2));
