import type { Lease, Pool } from "../../pool";
import { isFirm } from "../../pool/types";
import { addressPool } from "../../resources/addresses";
import { command, withPool } from "../command";
import { COLUMNS, view } from "./reservation";
import { networkSpec } from "./runner";

interface Where {
  network?: string;
  runner?: string;
}

export const listCommand = () =>
  command("list", "List the addresses that are held.")
    .option("--network <name>", "only in this network")
    .option("--runner <name>", "only on this runner")
    .action(
      withPool<Where>(async ({ pool, out }, where) => {
        if (where.network !== undefined) await networkSpec(pool, where.network);
        const held = await addressLeases(pool, where);
        out.list(held.map(view), [...COLUMNS]);
        if (held.length === 0) out.note("No address is held there.");
      }),
    );

/** Held ones only; what rests is held by nobody. */
export async function addressLeases(pool: Pool, { network, runner }: Where): Promise<Lease[]> {
  const pools = await pool.pools(network === undefined ? "runner/" : addressPool(network, ""));
  const wanted = pools.filter(({ name }) => runner === undefined || name.split("/")[2] === runner);
  const leases: Lease[] = [];
  for (const { name } of wanted) leases.push(...(await pool.leases(name)));
  return leases.filter(isFirm);
}
