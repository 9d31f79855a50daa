import type { z } from "zod";
import { tryParseJson } from "../provider/json";
import { problemSchema } from "../service/problem";
import { type AnswerFacts, invalidAnswerError, OverlayServiceError, timeoutError, unreachableError } from "./errors";
import { type Effect, mayRepeat, parseRetryAfter, pause, retryDelay } from "./retry";

/** Sends requests, repeats those that may be repeated, and parses the answers. */

export interface ClientOptions {
  /** Of the service, such as `https://overlay.example:7447`; with a path if a proxy serves it under one. */
  baseUrl: string;
  /** The access token. A function is called before each attempt, for tokens that change. */
  token?: string | (() => string | Promise<string>);
  /** Default: the global one. */
  fetch?: typeof fetch;
  /** Milliseconds for each attempt, until its answer is complete. Default 30,000. */
  timeout?: number;
  /** How often a request is sent again at most. Default 6, which takes about 5 seconds. */
  retries?: number;
}

/** Of one call. */
export interface CallOptions {
  /** Ends the request and its retries: the call throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** Instead of that of the client. */
  timeout?: number | undefined;
  /** Instead of those of the client. */
  retries?: number | undefined;
}

/** One request. */
export interface Call {
  method: "GET" | "POST" | "DELETE";
  path: string;
  query?: object | undefined;
  body?: object | undefined;
  headers?: Record<string, string>;
  effect: Effect;
  /** The answer is not JSON. */
  isText?: boolean;
}

const DEFAULT_TIMEOUT = 30_000;
const DEFAULT_RETRIES = 6;

export class Transport {
  readonly #baseUrl: string;

  constructor(private readonly options: ClientOptions) {
    this.#baseUrl = options.baseUrl.replace(/\/+$/, "");
  }

  get retries(): number {
    return this.options.retries ?? DEFAULT_RETRIES;
  }

  async send<A>(call: Call, schema: z.ZodType<A>, options: CallOptions = {}): Promise<A> {
    const retries = options.retries ?? this.retries;
    for (let retry = 1; ; retry++) {
      try {
        return await this.#attempt(call, schema, options);
      } catch (error) {
        options.signal?.throwIfAborted();
        if (retry > retries || !mayRepeat(error, call.effect)) throw error;
        await pause(retryDelay(retry, error.retryAfter), options.signal);
      }
    }
  }

  async #attempt<A>(call: Call, schema: z.ZodType<A>, options: CallOptions): Promise<A> {
    const attempt = new Attempt(call, options.signal);
    try {
      return await attempt.run(options.timeout ?? this.options.timeout ?? DEFAULT_TIMEOUT, async (signal) => {
        const response = await this.#open(call, signal);
        return parseAnswer(call, response, await readText(call, response), schema);
      });
    } finally {
      attempt.end();
    }
  }

  /** The text of an answer that has no end, in pieces. Fails with SERVICE_TIMEOUT when none arrives for `idleTimeout` milliseconds. */
  async *stream(call: Call, idleTimeout: number, signal?: AbortSignal): AsyncGenerator<string, void, void> {
    const attempt = new Attempt(call, signal);
    const decoder = new TextDecoder();
    try {
      const { body } = await attempt.run(idleTimeout, (signal) => this.#open(call, signal));
      const reader = body!.getReader();
      for (;;) {
        const { done, value } = await attempt.run(idleTimeout, () => reader.read().catch(throwUnreachable(call)));
        if (done) return;
        yield decoder.decode(value, { stream: true });
      }
    } finally {
      attempt.end();
    }
  }

  /** An answer whose body is not read yet. Any other than success is thrown. */
  async #open(call: Call, signal: AbortSignal): Promise<Response> {
    const { token, fetch: send = fetch } = this.options;
    const bearer = typeof token === "function" ? await token() : token;
    const request: RequestInit = {
      method: call.method,
      headers: {
        accept: call.isText ? "text/plain" : "application/json",
        ...(bearer !== undefined && { authorization: `Bearer ${bearer}` }),
        ...(call.body && { "content-type": "application/json" }),
        ...call.headers,
      },
      ...(call.body && { body: JSON.stringify(call.body) }),
      redirect: "error",
      signal,
    };
    const response = await send(`${this.#baseUrl}${call.path}${formatQuery(call.query)}`, request).catch(
      throwUnreachable(call),
    );
    if (response.ok) return response;
    throw toServiceError(call, response, await readText(call, response));
  }
}

/** One request on its way, which ends at the signal of the caller or when it takes too long. */
class Attempt {
  readonly #controller = new AbortController();

  constructor(
    private readonly call: Call,
    private readonly signal: AbortSignal | undefined,
  ) {
    signal?.throwIfAborted();
    signal?.addEventListener("abort", this.end, { once: true });
  }

  /** Fails with SERVICE_TIMEOUT after these milliseconds. */
  async run<T>(timeout: number, act: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const timer = setTimeout(this.end, timeout);
    try {
      return await act(this.#controller.signal);
    } catch (error) {
      throw this.#controller.signal.aborted ? timeoutError(describeCall(this.call), timeout) : error;
    } finally {
      clearTimeout(timer);
    }
  }

  readonly end = (): void => {
    this.signal?.removeEventListener("abort", this.end);
    this.#controller.abort();
  };
}

function formatQuery(query: object = {}): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(query))
    for (const each of [value].flat()) if (each !== undefined) params.append(key, String(each));
  return params.size === 0 ? "" : `?${params}`;
}

/** Without the query, which may have a token. */
export const describeCall = ({ method, path }: Call): string => `${method} ${path}`;

const throwUnreachable = (call: Call) => (error: unknown) => {
  throw unreachableError(describeCall(call), error);
};

const readText = (call: Call, response: Response): Promise<string> => response.text().catch(throwUnreachable(call));

function parseAnswer<A>(call: Call, response: Response, text: string, schema: z.ZodType<A>): A {
  const parsed = schema.safeParse(call.isText ? text : tryParseJson(text));
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  const how = `is not as documented: ${path.join(".") || "its body"}: ${message}`;
  throw invalidAnswerError(describeCall(call), how, { ...factsOf(response), cause: parsed.error });
}

function toServiceError(call: Call, response: Response, text: string): OverlayServiceError {
  const problem = problemSchema.safeParse(tryParseJson(text));
  const facts = factsOf(response);
  if (problem.success) return new OverlayServiceError({ ...problem.data, status: facts.status }, facts);
  return invalidAnswerError(describeCall(call), `has status ${facts.status} without a problem document`, facts);
}

const factsOf = ({ status, headers }: Response) =>
  ({
    status,
    requestId: headers.get("x-request-id") ?? undefined,
    retryAfter: parseRetryAfter(headers.get("retry-after")),
  }) satisfies AnswerFacts;
