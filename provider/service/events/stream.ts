import { isOverlayError, type OverlayError } from "../../errors";
import type { LoggedEvent } from "../../pool/types";
import { type Change, describeEvent } from "../../reservations";
import type { EventFeed } from "./feed";
import { formatPosition, type Position, positionOf } from "./position";

/** Events as `text/event-stream` (server-sent events, WHATWG HTML 9.2). */

/** Milliseconds between signs of life, which also tell a client up to which event it has seen all of its own. */
const HEARTBEAT_MS = 15_000;

/** Milliseconds after which a client connects again. */
const RECONNECT_MS = 1000;

export interface StreamOptions {
  after: Position;
  accepts(event: LoggedEvent): boolean;
  /** What the client may read of an event; default: all of it. */
  show?(event: LoggedEvent): LoggedEvent;
  signal: AbortSignal;
  heartbeatMs?: number | undefined;
}

/** An event, for JSON. */
export interface NumberedChange extends Change {
  id: number;
}

export const describeLoggedEvent = ({ id, ...event }: LoggedEvent): NumberedChange => ({ id, ...describeEvent(event) });

/**
 * The text of a stream. A block with an id and without data is no event, but the client sends the id when it connects again: so a client
 * whose filter matches few events does not fall behind.
 */
export async function* renderStream(
  feed: EventFeed,
  { after, accepts, show = (event) => event, signal, heartbeatMs = HEARTBEAT_MS }: StreamOptions,
): AsyncGenerator<string, void, void> {
  yield `retry: ${RECONNECT_MS}\nid: ${formatPosition(after)}\n\n`;
  let [seen, written] = [after, Date.now()];
  try {
    for await (const events of feed.follow(after.id, signal, heartbeatMs)) {
      const newest = events.at(-1);
      if (newest) seen = positionOf(newest);
      const text = events
        .filter(accepts)
        .map((event) => renderEvent(event, show(event)))
        .join("");
      const isForOthers = events.length > 0 && text === "";
      if (isForOthers && Date.now() - written < heartbeatMs) continue;
      yield text === "" ? `: heartbeat\nid: ${formatPosition(seen)}\n\n` : text;
      written = Date.now();
    }
  } catch (error) {
    if (!isOverlayError(error, "EVENTS_LOST")) throw error;
    yield renderLost(error);
  }
}

const renderEvent = (event: LoggedEvent, shown: LoggedEvent): string =>
  `id: ${formatPosition(positionOf(event))}\nevent: ${event.what}\ndata: ${JSON.stringify(describeLoggedEvent(shown))}\n\n`;

const renderLost = ({ code, what, fix }: OverlayError): string =>
  `event: lost\ndata: ${JSON.stringify({ code, what, fix })}\n\n`;
