import { openPool } from "../../provider/pool";
import { casesWith, openCase, SETTINGS } from "./cases";
import type { Answer, Order } from "./team";

/** A process of its own that claims as it is told over IPC: `claimer.ts URL NAME`. */
async function main([url, name]: string[]): Promise<void> {
  await warmUp();
  const pool = await openPool(url!, SETTINGS);
  const held: { pool: string; leaseId: string }[] = [];
  let claims = 0;

  const claim = async (inPool: string): Promise<string> => {
    const lease = await pool.claim({ pool: inPool, owner: `${name} ${claims++}`, type: "IPReservation" });
    held.push(lease);
    return lease.extents[0]!.first.toString(16);
  };

  const obey = async (order: Order): Promise<Answer> => {
    const [from, values] = [now(), [] as string[]];
    if (order.do === "claim") {
      while (values.length < order.limit && now() - from < order.milliseconds) {
        const wave = Math.min(order.together, order.limit - values.length);
        values.push(...(await Promise.all(Array.from({ length: wave }, () => claim(order.pool)))));
      }
    } else await Promise.all(held.splice(0).map(({ pool: from, leaseId }) => pool.release(from, leaseId)));
    return { from, to: now(), values };
  };

  process.on("message", async (order: Order) => process.send!(await obey(order)));
  process.on("disconnect", () => process.exit());
  process.send!("ready");
}

/** What is measured is a process at work, not the first seconds of its compiler. */
async function warmUp(): Promise<void> {
  const pool = await openPool("memory:", SETTINGS);
  const [one] = casesWith(0);
  await openCase(pool, one!);
  for (let i = 0; i < 40; i++) {
    const claim = (_: unknown, j: number) =>
      pool.claim({ pool: one!.spec.name, owner: `${i} ${j}`, type: "IPReservation" });
    const leases = await Promise.all(Array.from({ length: 32 }, claim));
    await Promise.all(leases.map(({ leaseId }) => pool.release(one!.spec.name, leaseId)));
  }
  await pool.end();
}

/** The same in all processes. */
const now = (): number => performance.timeOrigin + performance.now();

main(process.argv.slice(2));
