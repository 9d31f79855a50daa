import { z } from "zod";
import { type Bounds, expandPoolName, isEventInBounds, showEvent } from "../../access";
import type { LoggedEvent } from "../../pool/types";
import { createPoolInput, reserveInput } from "../../reservations";
import type { EventFeed } from "../events/feed";
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

/** Messages `WatchResponse`, of the changes that are asked for and that the caller may see. */
export async function* watch(
  { caller, service: { feed, metrics } }: CallContext,
  request: z.output<typeof watchRequest>,
  signal: AbortSignal,
): AsyncGenerator<object> {
  const filter = filterOf(request);
  const isSent = (event: LoggedEvent): boolean => isEventInBounds(caller, event) && isEventInBounds(filter, event);
  const position = request.after ?? (await feed.newest());
  await feed.mustHave({ id: position });
  const close = metrics.openStream();
  try {
    const show = (event: LoggedEvent) => showEvent(caller, event);
    yield* followFrom(feed, { position, isSent, show, signal });
  } finally {
    close();
  }
}

const filterOf = ({ pool, network, tenant }: z.output<typeof watchRequest>): Bounds => ({
  ...(pool !== undefined && { pool: expandPoolName(pool) }),
  ...(network !== undefined && { network }),
  ...(tenant && { tenant }),
});

interface FollowOptions {
  position: number;
  isSent(event: LoggedEvent): boolean;
  show(event: LoggedEvent): LoggedEvent;
  signal: AbortSignal;
}

async function* followFrom(feed: EventFeed, { position, isSent, show, signal }: FollowOptions): AsyncGenerator<object> {
  yield { position };
  let [seen, sentAt] = [position, Date.now()];
  for await (const events of feed.follow(position, signal, HEARTBEAT_MS)) {
    for (const event of events.filter(isSent)) {
      yield { position: event.id, event: toEventMessage(show(event)) };
      sentAt = Date.now();
    }
    seen = events.at(-1)?.id ?? seen;
    if (Date.now() - sentAt < HEARTBEAT_MS) continue;
    yield { position: seen };
    sentAt = Date.now();
  }
}
