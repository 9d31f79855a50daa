import { hash } from "node:crypto";
import { sharingKeyOf } from "../storage/rows";
import type { Extent, Lease, Request } from "../types";

/**
 * Which request an offer answers. An owner may ask for different things in different branches of its program; each of them gets
 * an offer of its own, so that a preview of one branch changes nothing for another.
 */
export function requestId(request: Request): string {
  const { want, size = 1n, within, also = [] } = request;
  if (want) return `=${digest(want.map(textOf))}`;
  const shared = sharingKeyOf(request);
  return `*${digest([`${size}`, ...[within, ...also].map(textOf), ...(shared === undefined ? [] : [shared])])}`;
}

/** Whether the offer was made to a request for these very values, rather than for any. */
export const isByValue = ({ request }: Pick<Lease, "request">): boolean => request?.startsWith("=") === true;

const textOf = (extent: Extent | undefined): string => (extent ? `${extent.first}-${extent.last}` : "");

const digest = (parts: string[]): string => hash("sha256", JSON.stringify(parts), "hex").slice(0, 12);
