import type { InjectOptions, LightMyRequestResponse } from "fastify";
import { createAccessToken } from "../../../provider/access";
import type { AccessTokenInput } from "../../../provider/access/access-tokens";
import { Authenticator } from "../../../provider/access/authenticate";
import type { Pool } from "../../../provider/pool/types";
import type { App, Limits } from "../../../provider/service/app";
import { createLog } from "../../../provider/service/log";
import { buildServer } from "../../../provider/service/server";

const LIMITS: Limits = { bodyLimit: 65_536, pageLimit: 1000, rateLimit: 100_000, requestTimeout: 30 };

/** The server on a pool, without a socket. */
export class TestService {
  readonly lines: string[] = [];
  readonly stop = new AbortController();
  app!: App;

  static async on(
    pool: Pool,
    { limits = {}, noAuth = false }: { limits?: Partial<Limits>; noAuth?: boolean } = {},
  ): Promise<TestService> {
    const service = new TestService(pool);
    const log = createLog("info", (line) => service.lines.push(line));
    const context = {
      pool,
      operator: { name: "root@test", scopes: ["admin" as const] },
      ...(!noAuth && { authenticator: new Authenticator(pool) }),
      limits: { ...LIMITS, ...limits },
      stopping: service.stop.signal,
    };
    service.app = await buildServer(context, { log, version: "1.2.3" });
    return service;
  }

  private constructor(readonly pool: Pool) {}

  /** The text of a new access token. */
  async token(name: string, scopes: AccessTokenInput["scopes"], more: Partial<AccessTokenInput> = {}): Promise<string> {
    const { text } = await createAccessToken({ pool: this.pool, createdBy: "test" }, { name, scopes, ...more });
    return text;
  }

  async send(request: string, token?: string, options: InjectOptions = {}): Promise<LightMyRequestResponse> {
    const [method, url] = request.split(" ") as ["GET" | "POST", string];
    const authorization = token === undefined ? {} : { authorization: `Bearer ${token}` };
    return this.app.inject({ ...options, method, url, headers: { ...authorization, ...options.headers } });
  }

  /** Status and code of the answer, as `409 IP_IN_USE`; `200` for a success. */
  async outcome(request: string, token?: string, options: InjectOptions = {}): Promise<string> {
    const { statusCode, body } = await this.send(request, token, options);
    const code = statusCode < 300 ? undefined : JSON.parse(body).code;
    return [statusCode, ...(code === undefined ? [] : [code])].join(" ");
  }
}
