import { exactNumber } from "../../addressing/line";
import type { Pool, PoolSpec } from "../../pool";
import { listOf } from "../../pool/wording";
import { command, withPool } from "../command";

export const listCommand = () =>
  command("list", "List the pools and how full they are.").action(
    withPool(async ({ pool, out }) => {
      const specs = await pool.pools();
      const rows = [];
      for (const spec of specs) rows.push(await summary(pool, spec));
      out.list(rows, ["pool", "range", "capacity", "allocated", "offered", "resting", "utilization"]);
      if (rows.length === 0) out.note("There is no pool in this store yet.");
    }),
  );

export async function summary(pool: Pool, spec: PoolSpec) {
  const { capacity, held, offered, resting } = (await pool.usage(spec.name))!;
  return {
    pool: spec.name,
    kind: spec.kind,
    range: spec.kind === "space" ? "all addresses" : listOf(spec.kind, spec.extents),
    allocation: spec.allocation,
    capacity: exactNumber(capacity),
    allocated: exactNumber(held),
    offered,
    resting,
    utilization: percent(held, capacity),
  };
}

/** To a hundredth of a percent, and exact for what does not fit into a number. */
const percent = (held: bigint, capacity: bigint): string =>
  capacity === 0n ? "0%" : `${Number((held * 10_000n) / capacity) / 100}%`;
