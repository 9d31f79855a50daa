import { isDeepStrictEqual } from "node:util";
import { z } from "zod";
import { OverlayError } from "../errors";
import { dataEntries, type Lease } from "../ipam/types";
import { COMMAND_LINE } from "../owner";
import { describePool, requestLeaseName } from "../pool-names";
import { type Context, refuseLeaseOfOther } from "./context";
import type { ReserveInput } from "./inputs";
import { formatValue, ipOf } from "./leases";

/**
 * Requests that may be repeated, because their answer was lost: those with an idempotency key, or with an owner. Their leases have a name that is
 * unique in the store, by which they are found in any pool, and the request, which a repeated one is compared with. The name ends with the lease,
 * so a key can be used again after a release.
 */

/** What a repeated request must have in common with the first. Other inputs do not decide which addresses it gets. */
const storedRequest = z.object({
  /** The pool, or the network for any runner. */
  place: z.string(),
  count: z.number(),
  value: z.string().optional(),
  by: z.string().optional(),
});
export type StoredRequest = z.output<typeof storedRequest>;

export const describeRequest = (
  place: string,
  { ip, port, by, count = 1 }: Pick<ReserveInput, "ip" | "port" | "by" | "count">,
): StoredRequest => {
  const value = ip ?? (port === undefined ? undefined : BigInt(port));
  return {
    place,
    count,
    ...(value !== undefined && { value: formatValue(value) }),
    ...(by !== undefined && { by }),
  };
};

export interface Repeatable {
  /** `key 'K'` or `owner 'O'`, for messages. */
  label: string;
  request: StoredRequest;
  /** The name of each of its leases. */
  names: string[];
}

/** undefined: the request has neither a key nor an owner, and gets other addresses when it is repeated. */
export function toRepeatable(
  { caller = COMMAND_LINE }: Context,
  { key, owner }: Pick<ReserveInput, "key" | "owner">,
  request: StoredRequest,
): Repeatable | undefined {
  const [kind, text] = key !== undefined ? ["key", key] : ["owner", owner];
  if (text === undefined) return undefined;
  const names = Array.from({ length: request.count }, (_, i) => requestLeaseName(caller, `${kind}/${text}/${i}`));
  return { label: `${kind} '${text}'`, request, names };
}

/** Claims the leases of a request, or finds those that it got before, also if they are in use by now. */
export async function claimOnce(
  context: Context,
  repeatable: Repeatable,
  claim: () => Promise<Lease[]>,
): Promise<Lease[]> {
  const known = await findAnswer(context, repeatable);
  if (known) return known;
  try {
    return await claim();
  } catch (error) {
    const other = await findAnswer(context, repeatable); // the same request in another process was first
    if (other) return other;
    throw error;
  }
}

/** These reads are not one transaction: if only some of the leases are found, another process may have committed all of them meanwhile. */
async function findHolders({ pool }: Context, names: string[]): Promise<Lease[]> {
  const read = async () =>
    (await Promise.all(names.map((name) => pool.find({ name })))).filter((lease) => lease !== undefined);
  const found = await read();
  return found.length > 0 && found.length < names.length ? read() : found;
}

async function findAnswer(context: Context, { label, request, names }: Repeatable): Promise<Lease[] | undefined> {
  const leases = await findHolders(context, names);
  const [first] = leases;
  if (!first) return undefined;
  refuseLeaseOfOther(first, context);
  const before = storedRequest.safeParse(dataEntries(first).request).data;
  if (!before || !isDeepStrictEqual(before, request)) throw otherRequestError(label, before, first);
  if (leases.length < names.length) throw partlyReleasedError(label, names.length, leases);
  return leases;
}

const otherRequestError = (label: string, before: StoredRequest | undefined, lease: Lease): OverlayError =>
  new OverlayError(
    "RESERVATION_EXISTS",
    `The ${label} was used for another request${before ? ` (${describeStored(before)})` : ""}, which holds ${ipOf(lease)} in ${describePool(lease.pool)}.`,
    "Use another one, or release that reservation first.",
  );

const describeStored = ({ place, count, value, by }: StoredRequest): string =>
  [
    value ?? (count === 1 ? "one address" : `${count} addresses`),
    `in ${describePool(place)}`,
    ...(by === undefined ? [] : [`for ${by}`]),
  ].join(" ");

const partlyReleasedError = (label: string, count: number, left: Lease[]): OverlayError =>
  new OverlayError(
    "RESERVATION_EXISTS",
    `Of the ${count} addresses of ${label}, only ${left.map(ipOf).join(", ")} ${left.length === 1 ? "is" : "are"} still held.`,
    "Release the rest first, or use another one.",
  );
