import type { InjectOptions, LightMyRequestResponse } from "fastify";
import type { AccessTokenInput } from "../../../provider/access/access-tokens";
import { createAccessToken } from "../../../provider/access/access-tokens";
import { Authenticator } from "../../../provider/access/authenticate";
import type { Store } from "../../../provider/ipam/types";
import type { App, Limits, ServiceContext } from "../../../service/app";
import type { EventFeed } from "../../../service/events/feed";
import { openInstance } from "../../../service/instance";
import { createLog } from "../../../service/log";
import { buildServer } from "../../../service/server";

const LIMITS: Limits = { bodyLimit: 65_536, pageLimit: 1000, rateLimit: 100_000, requestTimeout: 30 };

/** Milliseconds for which a stream of events is read. */
const STREAM_MS = 300;

/** The part of the OpenAPI document that says which statuses an operation answers. */
interface Described {
  paths: Record<string, Record<string, { responses: object }>>;
}

export type Answer = Pick<LightMyRequestResponse, "statusCode" | "headers" | "body" | "json">;

/** The server on a pool, without a socket. */
export class TestService {
  readonly lines: string[] = [];
  readonly stop = new AbortController();
  app!: App;
  context!: ServiceContext;

  static async on(
    pool: Store,
    {
      limits = {},
      noAuth = false,
      feed,
      tenantDefaults,
    }: {
      limits?: Partial<Limits>;
      noAuth?: boolean;
      feed?: EventFeed;
      tenantDefaults?: ServiceContext["tenantDefaults"];
    } = {},
  ): Promise<TestService> {
    const service = new TestService(pool);
    const log = createLog("info", (line) => service.lines.push(line));
    const context = {
      ...(await openInstance(async () => pool, { version: "1.2.3", node: "v0", mostPools: 1000 }, log)),
      ...(feed && { feed }),
      ...(tenantDefaults && { tenantDefaults }),
      operator: { name: "root@test", scopes: ["admin" as const] },
      ...(!noAuth && { authenticator: new Authenticator(pool.admin) }),
      limits: { ...LIMITS, ...limits },
      metricsPublic: false,
      stopping: service.stop.signal,
    };
    service.context = context;
    service.app = await buildServer(context, { log, version: "1.2.3" });
    return service;
  }

  private constructor(readonly pool: Store) {}

  /** The text of a new access token. */
  async token(name: string, scopes: AccessTokenInput["scopes"], more: Partial<AccessTokenInput> = {}): Promise<string> {
    const { text } = await createAccessToken({ pool: this.pool, createdBy: "test" }, { name, scopes, ...more });
    return text;
  }

  async send(request: string, token?: string, options: InjectOptions = {}): Promise<Answer> {
    const [method, url] = request.split(" ") as ["GET" | "POST" | "DELETE", string];
    const authorization = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const all = { ...options, method, url, headers: { ...authorization, ...options.headers } };
    return url.includes("/events") ? this.#readStream(all) : this.app.inject(all);
  }

  /** Of a stream of events: what arrives within a moment. */
  async #readStream(options: InjectOptions): Promise<Answer> {
    const { statusCode, headers, stream } = await this.app.inject({ ...options, payloadAsStream: true });
    const source = stream();
    const timer = setTimeout(() => source.destroy(), STREAM_MS);
    let body = "";
    source.on("data", (chunk) => (body += chunk));
    await new Promise((resolve) => source.once("close", resolve));
    clearTimeout(timer);
    return { statusCode, headers, body, json: () => JSON.parse(body) };
  }

  /** Ends the service. Fails if a route has answered with a status that the OpenAPI document does not describe. */
  async close(): Promise<void> {
    const undescribed = await this.undescribedAnswers();
    await this.app.close();
    if (undescribed.length > 0) throw new Error(`Not in /openapi.json: ${undescribed.join(", ")}.`);
  }

  /** Answers so far with a status that the route is not described with, as `GET /api/overlay/pools/{pool} 409`. They are found in the log. */
  async undescribedAnswers(): Promise<string[]> {
    const { paths }: Described = (await this.app.inject("/openapi.json")).json();
    const answers = this.lines.flatMap((line) => {
      const { method, route, status } = JSON.parse(line);
      const path = String(route).replace(/:(\w+)/g, "{$1}");
      const described = paths[path]?.[String(method).toLowerCase()]?.responses;
      return described && !(status in described) ? [`${method} ${path} ${status}`] : [];
    });
    return [...new Set(answers)];
  }

  /** Status and code of the answer, as `409 IP_IN_USE`; `200` for a success. */
  async outcome(request: string, token?: string, options: InjectOptions = {}): Promise<string> {
    const { statusCode, body } = await this.send(request, token, options);
    const code = statusCode < 300 ? undefined : JSON.parse(body).code;
    return [statusCode, ...(code === undefined ? [] : [code])].join(" ");
  }
}
