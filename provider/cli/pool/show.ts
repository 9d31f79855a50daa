import { OverlayError } from "../../errors";
import type { Lease, PoolSpec } from "../../pool";
import { listOf } from "../../pool/wording";
import { timeText, usageOf } from "../../reservations";
import { command, withPool } from "../command";

export const showCommand = () =>
  command("show", "Show a pool and its leases. With --json: the pool, then a lease a line.")
    .argument("<name>", "such as network/training; `pool list` has the names")
    .action(
      withPool(async ({ pool, out }, _, name) => {
        const spec = await pool.spec(name!);
        if (!spec) {
          const known = (await pool.pools()).map((other) => other.name);
          throw new OverlayError(
            "POOL_NOT_FOUND",
            `There is no pool '${name}'; there are ${known.join(", ") || "none"}.`,
            "Check the name and the store.",
          );
        }
        out.one(await usageOf(pool, spec), { utilization: (value) => `${value}%` });
        out.say("");
        const leases = await pool.leases(spec.name);
        out.list(
          leases.map((lease) => view(spec, lease)),
          ["value", "state", "usedBy", "owner", "opens", "tenant", "labels", "createdAt", "lastSeen", "expiresAt"],
        );
      }),
    );

const view = ({ kind }: PoolSpec, lease: Lease) => ({
  value: listOf(kind, lease.extents),
  state: lease.state,
  type: lease.type,
  usedBy: lease.usedBy,
  owner: lease.owner,
  opens: lease.opens,
  names: lease.names,
  labels: lease.labels,
  leaseId: lease.leaseId,
  uid: lease.uid,
  tenant: lease.tenant && `${lease.tenant.org}/${lease.tenant.project}`,
  createdAt: timeText(lease.createdAt),
  createdBy: lease.by,
  lastSeen: timeText(lease.lastSeen),
  expiresAt: lease.expiresAt === undefined ? undefined : timeText(lease.expiresAt),
});
