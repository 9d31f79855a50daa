import { describePool } from "../../pool-names";
import { type PoolUsage, poolUsages } from "../../reservations";
import { command, percent, withPool } from "../command";

/** For monitors: some pool is at least as full as `--warn` says. */
const NEARLY_FULL = 3;

export const listCommand = () =>
  command("list", "List the pools and how full they are.")
    .option("--warn <percent>", `end with exit code ${NEARLY_FULL} if a pool is filled so far`, percent)
    .action(
      withPool<{ warn?: number }>(async ({ pool, out }, { warn }) => {
        const usages = await poolUsages(pool);
        out.list(usages, [...COLUMNS], { utilization: (value) => `${value}%` });
        if (usages.length === 0) out.note("There is no pool in this store yet.");
        const full = warn === undefined ? [] : usages.filter(({ utilization }) => utilization >= warn);
        for (const usage of full) out.note(fullText(usage, warn!));
        if (full.length > 0) process.exitCode = NEARLY_FULL;
      }),
    );

const COLUMNS = ["pool", "range", "capacity", "allocated", "offered", "resting", "utilization"] as const;

const fullText = ({ pool, allocated, capacity, utilization }: PoolUsage, warn: number): string =>
  `warning: ${describePool(pool)} is filled to ${utilization} % (${allocated} of ${capacity}), which is ${warn} % or more.`;
