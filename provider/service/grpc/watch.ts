import { z } from "zod";
import { isEventInBounds } from "../../access/bounds";
import type { LoggedEvent } from "../../pool/types";
import { createPoolInput, reserveInput } from "../../reservations";
import { toEventMessage } from "./messages";
import type { CallContext } from "./methods";

/** Milliseconds after which a client without changes of its own gets its position: so it does not fall behind. */
const HEARTBEAT_MS = 15_000;

export const watchRequest = z.object({
  after: z
    .string()
    .regex(/^\d{1,15}$/, "must be a position that Watch has sent, or 0")
    .transform(Number)
    .optional(),
  pool: reserveInput.shape.pool,
  network: reserveInput.shape.network,
  tenant: createPoolInput.shape.tenant,
});

/** Messages `WatchResponse`. */
export async function* watch(
  { caller, feed }: CallContext,
  { after, pool, network, tenant }: z.output<typeof watchRequest>,
  signal: AbortSignal,
): AsyncGenerator<object> {
  const filters = [caller, { ...(pool && { pool }), ...(network && { network }), ...(tenant && { tenant }) }];
  const isAsked = (event: LoggedEvent): boolean => filters.every((filter) => isEventInBounds(filter, event));
  let position = after ?? (await feed.newest());
  yield { position };
  let sentAt = Date.now();
  for await (const events of feed.follow(position, signal, HEARTBEAT_MS)) {
    for (const event of events.filter(isAsked)) {
      ({ id: position } = event);
      sentAt = Date.now();
      yield { position, event: toEventMessage(event) };
    }
    const last = events.at(-1)?.id ?? position;
    if (Date.now() - sentAt < HEARTBEAT_MS) continue;
    [position, sentAt] = [last, Date.now()];
    yield { position };
  }
}
