import { z } from "zod";
import { createPoolInput, reserveInput } from "../../provider/reservations";
import { followSelected, selectEvents } from "../events/selection";
import { toEventMessage } from "./messages";
import type { CallContext } from "./methods";

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
  { caller, service: { feed, streams } }: CallContext,
  request: z.output<typeof watchRequest>,
  signal: AbortSignal,
): AsyncGenerator<object> {
  const position = request.after ?? (await feed.newest());
  await feed.mustHave({ id: position });
  const close = streams.open(caller.name);
  try {
    yield { position };
    const select = selectEvents(caller, request);
    for await (const { events, newest } of followSelected(feed, { after: position, select, signal })) {
      for (const event of events) yield { position: event.id, event: toEventMessage(event) };
      if (events.length === 0) yield { position: newest?.id ?? position };
    }
  } finally {
    close();
  }
}
