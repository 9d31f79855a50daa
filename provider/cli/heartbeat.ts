import { findRunner, timeText } from "../reservations";
import { command, withPool } from "./command";

/** `overlayctl heartbeat`: renews `lastSeen` of a runner. */

export const heartbeatCommand = () =>
  command("heartbeat", "Record that a runner is alive, so that its id is not reclaimed as inactive.")
    .requiredOption("--network <name>", "the network")
    .requiredOption("--runner <name>", "the runner")
    .action(
      withPool<{ network: string; runner: string }>(async ({ pool, out }, { network, runner: name }) => {
        const { lease } = await findRunner(pool, network, name);
        await pool.touch(lease.pool, lease.leaseId);
        const now = await pool.find(lease.pool, { leaseId: lease.leaseId });
        out.one({
          network,
          runner: name,
          runnerId: Number(lease.extents[0]!.first),
          lastSeen: timeText(now!.lastSeen),
        });
      }),
    );
