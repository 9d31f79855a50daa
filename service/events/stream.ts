import type { NumberedChange } from "../../provider/answers";
import { isOverlayError, type OverlayError } from "../../provider/errors";
import type { LoggedEvent } from "../../provider/ipam/types";
import { describeEvent } from "../../provider/reservations";
import type { EventFeed } from "./feed";
import { formatPosition, type Position, positionOf } from "./position";
import { type FollowOptions, followSelected } from "./selection";

/** Events as `text/event-stream` (server-sent events, WHATWG HTML 9.2). */

/** Milliseconds after which a client connects again. */
const RECONNECT_MS = 1000;

export interface StreamOptions extends Omit<FollowOptions, "after"> {
  after: Position;
}

export const describeLoggedEvent = ({ id, ...event }: LoggedEvent): NumberedChange => ({ id, ...describeEvent(event) });

/** The text of a stream. A block with an id and without data is no event, but the client sends the id when it connects again. */
export async function* renderStream(
  feed: EventFeed,
  { after, ...options }: StreamOptions,
): AsyncGenerator<string, void, void> {
  yield `retry: ${RECONNECT_MS}\nid: ${formatPosition(after)}\n\n`;
  try {
    for await (const { events, newest } of followSelected(feed, { after: after.id, ...options }))
      yield events.length > 0 ? events.map(renderEvent).join("") : renderHeartbeat(newest ? positionOf(newest) : after);
  } catch (error) {
    if (!isOverlayError(error, "EVENTS_LOST")) throw error;
    yield renderLost(error);
  }
}

const renderEvent = (event: LoggedEvent): string =>
  `id: ${formatPosition(positionOf(event))}\nevent: ${event.what}\ndata: ${JSON.stringify(describeLoggedEvent(event))}\n\n`;

const renderHeartbeat = (seen: Position): string => `: heartbeat\nid: ${formatPosition(seen)}\n\n`;

const renderLost = ({ code, what, fix }: OverlayError): string =>
  `event: lost\ndata: ${JSON.stringify({ code, what, fix })}\n\n`;
