import type { PoolUsage } from "../provider/answers";
import type { Lease, PoolSpec } from "../provider/ipam";
import { formatRangesOf } from "../provider/ipam/errors";
import { formatTenant } from "../provider/owner";
import { describePool } from "../provider/pool-names";
import {
  addressInput,
  describeEvent,
  formatTime,
  historyOfAddress,
  historyOfPool,
  poolUsages,
  showPool,
} from "../provider/reservations";
import { isVisible } from "../provider/reservations/context";
import { command, parseOptions, percent, withPool } from "./command";

/** Exit code for monitoring: a pool is at least as full as `--warn` says. */
const NEARLY_FULL = 3;

export const poolListCommand = () =>
  command("list", "List the pools and how full they are.")
    .option("--warn <percent>", `exit with ${NEARLY_FULL} if a pool is at least this full`, percent)
    .action(
      withPool<{ warn?: number }>(async ({ context, out }, { warn }) => {
        const usages = await poolUsages(context);
        out.list(usages, [...USAGE_COLUMNS], { utilization: (value) => `${value}%` });
        if (usages.length === 0) out.note("There is no pool in this store yet.");
        const full = warn === undefined ? [] : usages.filter(({ utilization }) => utilization >= warn);
        for (const usage of full) out.note(describeFull(usage, warn!));
        if (full.length > 0) process.exitCode = NEARLY_FULL;
      }),
    );

const USAGE_COLUMNS = ["pool", "range", "capacity", "allocated", "offered", "quarantined", "utilization"] as const;

const describeFull = ({ pool, allocated, capacity, utilization }: PoolUsage, warn: number): string =>
  `warning: ${describePool(pool)} is ${utilization} % full (${allocated} of ${capacity}); --warn is ${warn} %.`;

export const poolShowCommand = () =>
  command("show", "Show a pool and its leases. With --json: the pool, then one lease per line.")
    .argument("<name>", "such as network/training; `pool list` has the names")
    .action(
      withPool(async ({ pool, context, out }, _, name) => {
        const status = await showPool(context, name!);
        out.one(status, { utilization: (value) => `${value}%` });
        out.say("");
        const leases = (await pool.leases(status.pool)).filter((lease) => isVisible(lease, context));
        out.list(
          leases.map((lease) => describePoolLease(status.kind, lease)),
          ["value", "state", "usedBy", "owner", "childPool", "tenant", "labels", "createdAt", "lastSeen", "expiresAt"],
        );
      }),
    );

const describePoolLease = (kind: PoolSpec["kind"], lease: Lease) => ({
  value: formatRangesOf(kind, lease.ranges),
  state: lease.state,
  type: lease.type,
  usedBy: lease.usedBy,
  owner: lease.owner,
  childPool: lease.childPool,
  names: lease.names,
  labels: lease.labels,
  leaseId: lease.leaseId,
  uid: lease.uid,
  tenant: lease.tenant && formatTenant(lease.tenant),
  createdAt: formatTime(lease.createdAt),
  createdBy: lease.by,
  lastSeen: formatTime(lease.lastSeen),
  expiresAt: lease.expiresAt === undefined ? undefined : formatTime(lease.expiresAt),
});

const looksLikeAddress = (text: string): boolean => /^\d+(\.\d+){3}$/.test(text) || text.includes(":");

export const historyCommand = () =>
  command("history", "Show the changes of a pool or an address, oldest first: time, change, user.")
    .argument("[pool|address]", "a pool as `pool list` shows it, or an address; default: all pools")
    .action(
      withPool(async ({ context, out }, _, subject) => {
        const events =
          subject !== undefined && looksLikeAddress(subject)
            ? await historyOfAddress(context, parseOptions(addressInput, { ip: subject }, { ip: "ADDRESS" }))
            : await historyOfPool(context, subject);
        out.list(events.map(describeEvent), ["at", "what", "value", "pool", "usedBy", "by", "owner"]);
        if (events.length === 0) out.note("There is no change on record.");
      }),
    );
