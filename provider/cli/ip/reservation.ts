import { randomUUID } from "node:crypto";
import { familyOf, fromLine } from "../../addressing/line";
import { isOverlayError, OverlayError } from "../../errors";
import type { Fact, Lease, Pool, Request } from "../../pool";
import { userName } from "../../resources/addresses";
import { moment } from "../output";
import { anAddress, openAddresses, type Runner } from "./runner";

/** Leases on a runner's addresses that the command line makes, and how they are shown. */

const MADE_HERE = "overlayctl/";
export const TYPE = "IPReservation";

/** The same container asks again: the same owner. Nobody named: an owner for this call alone. */
const ownerFor = ({ network, name }: Runner, by: string = randomUUID()): string =>
  `${MADE_HERE}${network}/${name}/${by}`;

/** The name that the user of this lease holds in its network. */
export const userNameIn = ({ pool }: Lease, by: string): string => userName(pool.split("/")[1]!, by);

export const isOf = (lease: Lease, by: string): boolean =>
  lease.usedBy === by || lease.owner === `${MADE_HERE}${lease.pool.slice("runner/".length)}/${by}`;

/** A stack's leases are given up by the stack: it would ask for them again at its next run. */
export const isOfStack = ({ owner }: Lease): boolean => owner.includes("urn:pulumi:");

/** Its user is no container, and Docker knows nothing of it. */
export const isOfVm = ({ labels }: Lease): boolean => labels?.[VM] === "true";

/** Nobody has said what uses it. */
export const isImported = ({ labels }: Lease): boolean => labels?.[IMPORTED] === "true";

const VM = "vm";
const IMPORTED = "imported";

export const vmLabel = (vm = false): Record<string, string> => (vm ? { [VM]: "true" } : {});

export interface Wish {
  ip?: bigint;
  vm?: boolean;
  ttl?: number;
  by?: string;
  usedBy?: string;
}

/** Durable when it returns. */
export async function reserve(pool: Pool, runner: Runner, { ip, ttl, by, usedBy, vm }: Wish): Promise<Lease> {
  const owner = ownerFor(runner, by);
  await openAddresses(pool, runner);
  const held = by === undefined ? undefined : await pool.find(runner.pool, { owner });
  if (held) refuseSecond(held, by!, ip);
  const request: Request = {
    pool: runner.pool,
    owner,
    type: TYPE,
    ...anAddress(runner, ip),
    ...(ttl !== undefined && { ttl }),
    ...(by !== undefined && { names: [userName(runner.network, by)] }),
    ...(usedBy !== undefined && { usedBy }),
    ...(vm && { labels: vmLabel(vm) }),
  };
  return pool.claim(request).catch(inOurWords);
}

/** Asked again, a reservation is renewed; what is in use, or elsewhere, stays as it is. */
function refuseSecond(held: Lease, by: string, ip?: bigint): void {
  if (held.state !== "used" && (ip === undefined || held.extents[0]!.first === ip)) return;
  throw new OverlayError(
    "RESERVATION_EXISTS",
    `${by} has ${ipOf(held)} already (${held.state}).`,
    `\`overlayctl ip release --by ${by}\` gives it up.`,
  );
}

/** No preview has promised anything here. */
function inOurWords(error: unknown): never {
  if (!isOverlayError(error, "PLAN_STALE")) throw error;
  throw new OverlayError(
    "IP_IN_USE",
    error.what.replace(/ now\.$/, "."),
    "Ask for another one, or release that one first.",
  );
}

/** An address that is in use already; without a name it is held until it is freed. Entered twice, it is one lease. */
export const factFor = (runner: Runner, { ip, by }: { ip: bigint; by?: string }): Fact => ({
  pool: runner.pool,
  owner: ownerFor(runner, by ?? `imported-${fromLine(ip)}`),
  type: TYPE,
  want: [{ first: ip, last: ip }],
  labels: { [IMPORTED]: "true" },
  ...(by !== undefined && { usedBy: by }),
});

export const ipOf = ({ extents }: Lease): string => fromLine(extents[0]!.first);

/** A lease on an address as it is printed. */
export function view(lease: Lease) {
  const [, network, runner] = lease.pool.split("/");
  const second = lease.extents[1]?.first;
  return {
    ip: ipOf(lease),
    ...(second !== undefined && familyOf(second) === 6 && { ip6: fromLine(second) }),
    network,
    runner,
    state: lease.state,
    usedBy: lease.usedBy,
    expiresAt: lease.expiresAt === undefined ? undefined : moment(lease.expiresAt),
    owner: lease.owner,
    leaseId: lease.leaseId,
  };
}

export const COLUMNS = ["ip", "ip6", "network", "runner", "state", "usedBy", "expiresAt", "owner"] as const;
