import { OverlayError } from "../../errors";
import type { Lease } from "../../pool";
import { command, plainName, type Session, withPool } from "../command";
import { addressLeases } from "./list";
import { COLUMNS, ipOf, isOf, isOfStack, userNameIn, view } from "./reservation";
import { unused } from "./tokens";

interface Options {
  token?: string;
  by?: string;
  network?: string;
}

export const releaseCommand = () =>
  command("release", "Give up an unused reservation, or all addresses of a container; prints what was given up.")
    .option("--token <token>", "the reservation, if it was not used yet")
    .option("--by <name>", "the container", plainName)
    .option("--network <name>", "only its addresses in this network")
    .action(
      withPool<Options>(async (session, { token, by, network }) => {
        if ((token === undefined) === (by === undefined)) {
          throw new OverlayError("INPUT_INVALID", "It is not said what to release.", "Give either --token or --by.");
        }
        const leases = token === undefined ? await allOf(session, by!, network) : [await unused(session, token)];
        const released: Lease[] = [];
        for (const lease of leases) if (await giveUp(session, lease)) released.push(lease);
        session.out.list(released.map(view), [...COLUMNS]);
        if (released.length === 0) session.out.note(`${by ?? "The token"} holds nothing.`);
      }),
    );

const allOf = async ({ pool }: Session, by: string, network?: string): Promise<Lease[]> =>
  (await addressLeases(pool, { ...(network && { network }) })).filter((lease) => isOf(lease, by));

/** What belongs to a stack stays its own: it is only out of use, and whoever has its token may use it again. */
async function giveUp({ pool, out }: Session, lease: Lease): Promise<boolean> {
  if (!isOfStack(lease)) return pool.release(lease.pool, lease.leaseId);
  const user = userNameIn(lease, lease.usedBy ?? "");
  const names = (lease.names ?? []).filter((name) => name !== user);
  await pool.amend(lease.pool, lease.leaseId, { state: "reserved", names });
  out.note(`${ipOf(lease)} is out of use, and stays reserved for ${lease.owner}.`);
  return true;
}
