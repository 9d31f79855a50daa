import * as http from "node:http";
import * as https from "node:https";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError, OverlayError } from "../../errors";
import { tryParseJson } from "../../json";
import { overlayError } from "./api";
import type { ServiceAddress } from "./url";

/** The answer to a request. */
export interface Reply {
  json: unknown;
  /** The request was sent more than once, because an answer was lost: the service may have done it before. */
  wasRepeated: boolean;
}

/** An answer as it came. */
interface Answer {
  status: number;
  text: string;
}

export interface TransportOptions {
  address: ServiceAddress;
  token: string;
}

/** Bytes of an answer. */
const MOST_BYTES = 64 * 1024 * 1024;
/** Milliseconds until the service must answer: it waits for its store, too. */
const ANSWER_TIMEOUT = 30_000;
/** Connections at the same time. */
const CONNECTIONS = 16;
/** Milliseconds before the first and the longest pause between two attempts. */
const [FIRST_PAUSE, LONGEST_PAUSE] = [50, 1000];

/** Sends requests to a service. Those that fail on the way are sent again, for some time. */
export class Transport {
  readonly #agent: http.Agent;
  /** Errors of requests that were sent more than once. */
  readonly #repeated = new WeakSet<OverlayError>();

  constructor(private readonly options: TransportOptions) {
    const { base, tls } = options.address;
    const settings = { keepAlive: true, maxSockets: CONNECTIONS };
    this.#agent = base.startsWith("https:") ? new https.Agent({ ...settings, ...tls }) : new http.Agent(settings);
  }

  /** Rejects with the service's own error, or with `STORE_UNAVAILABLE`. */
  async post(path: string, body: unknown): Promise<Reply> {
    const text = JSON.stringify(body);
    let deadline: number | undefined;
    let wasRepeated = false;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      const outcome = await this.#attempt(path, text).catch((error: unknown) => this.#toFailure(error));
      if (!(outcome instanceof Failure)) return { json: outcome, wasRepeated };
      deadline ??= Date.now() + this.options.address.timeout;
      if (wasRepeated) this.#repeated.add(outcome.error);
      if (!outcome.mayComeBack || Date.now() + pause > deadline) throw outcome.error;
      wasRepeated ||= outcome.wasSent;
      await sleep(pause * (0.5 + Math.random() / 2));
    }
  }

  /** Whether this error is the answer to a request that the service may have done before. */
  wasRepeated(error: unknown): boolean {
    return isOverlayError(error) && this.#repeated.has(error);
  }

  close(): void {
    this.#agent.destroy();
  }

  async #attempt(path: string, body: string): Promise<unknown> {
    const { status, text } = await this.#send(path, body);
    const json = tryParseJson(text);
    if (status === 200 && json !== undefined) return json;
    const error = overlayError.safeParse(json);
    throw error.success && status >= 400
      ? new Failure(error.data, isPassing(status, error.data), status !== 429)
      : this.#notAService(status, json !== undefined);
  }

  #send(path: string, body: string): Promise<Answer> {
    const { token, address } = this.options;
    const headers = {
      authorization: `Bearer ${token}`,
      "content-type": "application/json",
      "content-length": Buffer.byteLength(body),
      accept: "application/json, application/problem+json",
    };
    const { request } = address.base.startsWith("https:") ? https : http;
    return new Promise((resolve, reject) => {
      const sent = request(`${address.base}${path}`, { method: "POST", agent: this.#agent, headers }, (response) => {
        readText(response).then((text) => resolve({ status: response.statusCode ?? 0, text }), reject);
      });
      sent.setTimeout(ANSWER_TIMEOUT, () => sent.destroy(new Error(`no answer within ${ANSWER_TIMEOUT / 1000} s`)));
      sent.on("error", reject);
      sent.end(body);
    });
  }

  #toFailure(error: unknown): Failure {
    if (error instanceof Failure) return error;
    const { code = "", message } = error as NodeJS.ErrnoException;
    const isRefused = /CERT|TLS|SSL|ALTNAME|EPROTO/.test(code);
    const fix = isRefused
      ? "If its certificate is from a private authority, add `?ca=FILE` to overlay:store."
      : "Check that `overlayctl serve` runs there, and the network between.";
    const what = `The service at ${this.options.address.place} cannot be used: ${message || code}.`;
    const unavailable = isOverlayError(error) ? error : new OverlayError("STORE_UNAVAILABLE", what, fix, error);
    return new Failure(unavailable, !isRefused && !isOverlayError(error), !NEVER_SENT.includes(code));
  }

  #notAService(status: number, isJson: boolean): Failure {
    const what = `${this.options.address.place} answered ${status} with ${isJson ? "JSON that is not an answer of this service" : "something that is not JSON"}.`;
    const fix = "Set overlay:store to the URL of `overlayctl serve`, of this release or a newer one.";
    const isPassing = [502, 503, 504].includes(status); // of a proxy in front of it
    return new Failure(new OverlayError("STORE_UNAVAILABLE", what, fix), isPassing, isPassing);
  }
}

/** Errors of connections that were not made. */
const NEVER_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH"];

/** Whether the service may do the same request later. */
const isPassing = (status: number, error: OverlayError): boolean =>
  status === 429 ||
  ([502, 503, 504].includes(status) && isOverlayError(error, "STORE_UNAVAILABLE", "SERVICE_STOPPING"));

/** An attempt that failed. */
class Failure extends Error {
  constructor(
    readonly error: OverlayError,
    readonly mayComeBack: boolean,
    /** The service may have got the request. */
    readonly wasSent: boolean,
  ) {
    super(error.message);
  }
}

async function readText(response: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MOST_BYTES) {
      const what = `The service answered with more than ${MOST_BYTES / 1024 / 1024} MiB.`;
      throw new OverlayError("STORE_UNAVAILABLE", what, "Set overlay:store to the URL of `overlayctl serve`.");
    }
    chunks.push(chunk);
  }
  if (!response.complete) throw Object.assign(new Error("the answer was cut off"), { code: "ECONNRESET" });
  return Buffer.concat(chunks).toString("utf8");
}
