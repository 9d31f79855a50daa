import { z } from "zod";
import { OverlayError } from "../errors";
import { tryParseJson } from "../json";
import type { Lease } from "../pool/types";

/** Pages of leases, ordered by pool and value. A cursor names the last entry of a page, which may have gone by the next request. */

const position = z.tuple([z.string(), z.string().regex(/^\d{1,40}$/), z.string()]);
type Position = [pool: string, value: bigint, leaseId: string];

const positionOf = ({ pool, extents, leaseId }: Lease): Position => [pool, extents[0]!.first, leaseId];

export function pageOf(
  leases: Lease[],
  { limit, cursor }: { limit: number; cursor?: string | undefined },
): { entries: Lease[]; next?: string } {
  const sorted = leases.map((lease) => ({ lease, at: positionOf(lease) })).sort((a, b) => compare(a.at, b.at));
  const after = cursor === undefined ? undefined : parseCursor(cursor);
  const rest = after === undefined ? sorted : sorted.filter(({ at }) => compare(at, after) > 0);
  const entries = rest.slice(0, limit);
  return {
    entries: entries.map(({ lease }) => lease),
    ...(rest.length > limit && { next: formatCursor(entries.at(-1)!.at) }),
  };
}

function compare(a: Position, b: Position): number {
  const i = a.findIndex((part, at) => part !== b[at]);
  return i < 0 ? 0 : a[i]! < b[i]! ? -1 : 1;
}

const formatCursor = ([pool, value, leaseId]: Position): string =>
  Buffer.from(JSON.stringify([pool, String(value), leaseId])).toString("base64url");

function parseCursor(cursor: string): Position {
  const parsed = position.safeParse(tryParseJson(Buffer.from(cursor, "base64url").toString()));
  if (parsed.success) return [parsed.data[0], BigInt(parsed.data[1]), parsed.data[2]];
  const fix = "Pass `next` of the page before exactly as it was answered.";
  throw new OverlayError("INPUT_INVALID", "The cursor is malformed.", fix).about("cursor");
}
