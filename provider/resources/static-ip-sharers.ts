import { z } from "zod";
import { parseIp } from "../addressing/ip";
import { OverlayError } from "../errors";
import { sameStack } from "../owner";
import type { Lease, Pool } from "../pool/types";
import type { Inputs, StaticProps } from "./static-ip-inputs";

/** Those who share an address, and the one machine that they must agree on. */

/** Who else has a part in the address. */
export async function fellowsOf(pool: Pool, name: string, ip: string, owner: string): Promise<Lease[]> {
  const [value, leases] = [parseIp(ip), await pool.leases(name, { after: parseIp(ip) - 1n, limit: 1 })];
  return leases.filter(
    (lease) => lease.owner !== owner && lease.state !== "resting" && lease.extents.some(({ first }) => first === value),
  );
}

export const carrierName = ({ networkName, runnerName }: Inputs["attach"]): string =>
  runnerName ? `${networkName}/${runnerName}` : networkName;

/**
 * One address cannot be on two machines. A neighbour in the same stack may be about to move, too: Pulumi tells each of
 * them by itself. One without our key shares nothing; it is about to leave.
 */
export function isElsewhere(fellow: Lease, { attach, sharingKey }: Inputs, owner: string): boolean {
  if (fellow.sharingKey === undefined || fellow.sharingKey !== sharingKey) return false;
  const moves = fellow.state !== "offered" && sameStack(fellow.owner, owner);
  return !moves && (carrierOf(fellow) ?? carrierName(attach)) !== carrierName(attach);
}

const carrierOf = ({ data }: Lease): string | undefined => carrierNote.safeParse(data).data?.attach;

const carrierNote = z.object({ attach: z.string().regex(/^[A-Za-z0-9._/-]{1,130}$/) });

export const elsewhere = ({ ip, attach }: StaticProps, fellow: Lease): OverlayError =>
  new OverlayError(
    "SHARING_CONFLICT",
    `${ip} is shared with ${fellow.owner}, which has it on ${carrierOf(fellow)}; this one would have it on ${carrierName(attach)}.`,
    "Attach both to the same machine, or use another sharing key.",
  ).about("attach");
