import type { z } from "zod";
import { tryParseJson } from "../provider/json";
import { problemSchema } from "../service/problem";
import { invalidAnswerError, OverlayServiceError } from "./errors";
import { mayRepeat, pause, retryDelay } from "./retry";
import { type Block, BlockParser } from "./sse";
import { type Call, describeCall, type Transport } from "./transport";

/** Follows a stream of events over any number of connections. */

/** The service sends a sign of life every 15 seconds. Milliseconds. */
const IDLE_TIMEOUT = 45_000;

/** Milliseconds before the next connection, unless the stream names another time. */
const RECONNECT_DELAY = 1000;

/** Characters. A server that never ends an event must not fill the memory. */
const LONGEST_BLOCK = 2 ** 20;

export interface FollowOptions<E> {
  event: z.ZodType<E>;
  /** In a row, without an answer. Default: those of the client. */
  retries?: number | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * All events, in order, each once. A connection that ends is replaced by one that goes on after the last event. Throws EVENTS_LOST when the service no longer
 * has the next event, and the reason of the signal when that is aborted.
 */
export async function* followEvents<E>(
  transport: Transport,
  call: Call,
  { event, retries = transport.retries, signal }: FollowOptions<E>,
): AsyncGenerator<E, void, void> {
  let [lastId, delay, failures] = ["", RECONNECT_DELAY, 0];
  for (;;) {
    const resumed = lastId === "" ? call : { ...call, headers: { ...call.headers, "last-event-id": lastId } };
    try {
      for await (const block of readBlocks(transport, resumed, signal)) {
        failures = 0;
        delay = block.retry ?? delay;
        if (block.data !== "") yield parseEvent(call, block, event);
        lastId = block.id;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!mayRepeat(error, "repeatable") || ++failures > retries) throw error;
    }
    await pause(failures === 0 ? delay : retryDelay(failures), signal);
  }
}

async function* readBlocks(transport: Transport, call: Call, signal?: AbortSignal): AsyncGenerator<Block, void, void> {
  const parser = new BlockParser(call.headers?.["last-event-id"]);
  for await (const piece of transport.stream(call, IDLE_TIMEOUT, signal)) {
    yield* parser.push(piece);
    if (parser.pending > LONGEST_BLOCK) throw invalidAnswerError(describeCall(call), "has an event without an end", {});
  }
}

function parseEvent<E>(call: Call, { event: name, data }: Block, schema: z.ZodType<E>): E {
  const given = tryParseJson(data);
  const lost = name === "lost" ? lostNotice.safeParse(given).data : undefined;
  if (lost) throw new OverlayServiceError(lost);
  const parsed = schema.safeParse(given);
  if (parsed.success) return parsed.data;
  throw invalidAnswerError(describeCall(call), "has an event that is not as documented", { cause: parsed.error });
}

/** The last event of a stream that cannot go on. */
const lostNotice = problemSchema.pick({ code: true, what: true, fix: true });
