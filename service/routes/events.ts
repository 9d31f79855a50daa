import { Readable } from "node:stream";
import type { FastifyReply } from "fastify";
import type { Authenticator } from "../../provider/access/authenticate";
import { isOverlayError } from "../../provider/errors";
import { readBearerToken } from "../admission";
import { textAnswer } from "../answers";
import type { RouteGroup } from "../app";
import { selectEvents } from "../events/selection";
import { renderStream } from "../events/stream";
import { eventFields, eventHeaders } from "../inputs";

/** A client that takes nothing for so long is disconnected; it can go on by id. Milliseconds. */
const SLOW_CLIENT_MS = 30_000;

/** A token that was revoked or has expired ends its streams after so long. Milliseconds. */
const RECHECK_MS = 10_000;

/** Changes as they are made, by all instances, stacks and commands on the store. */
export const eventRoutes: RouteGroup = (app, { feed, streams, authenticator, stopping }) => {
  app.route({
    method: "GET",
    url: "/events",
    exposeHeadRoute: false, // it would read the stream to its end
    config: { scope: "read", failures: [410] },
    schema: {
      operationId: "followEvents",
      summary: "Follow the changes of all pools, or of one, as server-sent events.",
      querystring: eventFields,
      headers: eventHeaders,
      response: {
        200: textAnswer("text/event-stream", "Events, each with `id`, the kind as `event`, and JSON as `data`."),
      },
    },
    handler: async ({ query, headers, caller, raw }, reply) => {
      const closed = whenClosed(reply); // before the store is read: the client may go meanwhile
      // A browser that connects again sends the URL of its first request, and the id of the last event.
      const after = headers["last-event-id"] ?? query.after ?? (await feed.newestPosition());
      await feed.mustHave(after);
      whenAborted(closed, streams.open(caller.name));
      disconnectSlow(reply);
      const ended = AbortSignal.any([closed, stopping]);
      const denied = authenticator ? whenDenied(authenticator, raw.headers.authorization, ended) : ended;
      const signal = AbortSignal.any([ended, denied]);
      const select = selectEvents(caller, query);
      return reply
        .type("text/event-stream; charset=utf-8")
        .headers({ "cache-control": "no-cache, no-transform", "x-accel-buffering": "no" })
        .send(asText(Readable.from(renderStream(feed, { after, select, signal }), { objectMode: false })));
    },
  });
};

/** Aborted when the client has gone, or the answer is complete. */
function whenClosed({ raw }: FastifyReply): AbortSignal {
  const closed = new AbortController();
  raw.once("close", () => closed.abort());
  if (raw.closed) closed.abort();
  return closed.signal;
}

function whenAborted(signal: AbortSignal, act: () => void): void {
  if (signal.aborted) act();
  else signal.addEventListener("abort", act, { once: true });
}

/** Aborted when the token is no longer valid. Stops looking when the stream has ended. */
function whenDenied(authenticator: Authenticator, authorization: string | undefined, ended: AbortSignal): AbortSignal {
  const denied = new AbortController();
  const check = async (): Promise<void> => {
    await authenticator.authenticate(readBearerToken(authorization)).catch((error: unknown) => {
      if (isOverlayError(error, "ACCESS_TOKEN_INVALID")) denied.abort(); // not while the store does not answer
    });
  };
  const timer = setInterval(() => void check(), RECHECK_MS).unref();
  whenAborted(ended, () => clearInterval(timer));
  return denied.signal;
}

/** Heartbeats are written more often than that: without any progress of the connection its client does not read. */
function disconnectSlow({ raw }: FastifyReply): void {
  raw.setTimeout(SLOW_CLIENT_MS, () => raw.destroy());
}

/** fastify sends a stream as it is; its types know only the schema of the answer. */
const asText = (stream: Readable): string => stream as unknown as string;
