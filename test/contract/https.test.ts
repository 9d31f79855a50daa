import { afterAll, describe } from "vitest";
import type { PoolRun } from "../../provider/pool/run";
import { contract } from "./contract";
import { type Engine, memoryEngine, openPool, type Pool } from "./fixture";
import { newAuthority } from "./servers/certificates";
import { type Service, serveInProcess } from "./servers/service";

const ADMINISTRATION = ["fsck", "adoptIdentity", "accessTokens", "findAccessToken", "updateAccessTokens"] as const;

/** A pool of a service. Its administration is done by the operator, on the store itself. */
function administeredBy(operator: Pool, served: Pool): Pool {
  for (const name of ADMINISTRATION) Object.defineProperty(served, name, { value: operator[name].bind(operator) });
  Object.defineProperty(served, "webhooks", { get: () => operator.webhooks });
  const session = served.session.bind(served);
  Object.defineProperty(served, "session", {
    value: (...args: Parameters<Pool["session"]>) => administeredBy(operator, session(...args)),
  });
  return served;
}

/** A service as the store: the pool's contract over HTTPS, with the store in the process of the service. */
describe("https", () => {
  const authority = newAuthority();
  const tls = authority.issue("service", "IP:127.0.0.1");
  const services: Service[] = [];
  afterAll(() => Promise.all(services.map(({ app }) => app.close())));

  /** The settings of clients count: those of the service only limit them. */
  async function serve(engine: Engine, url: string, clock: () => number): Promise<{ operator: Pool; port: number }> {
    const operator = await engine.open(url, { offerTtl: 1e9, quarantine: 0 }, clock);
    const caller = { name: "ci", scopes: ["deploy" as const] };
    const service = await serveInProcess(operator as PoolRun, { tls, caller });
    services.push(service);
    return { operator, port: service.port };
  }

  function servedBy<E extends Engine>(engine: E): E & { isService: true } {
    const served = new Map<string, ReturnType<typeof serve>>();
    const open: Engine["open"] = async (url, terms, clock) => {
      const service = served.get(url) ?? serve(engine, url, clock);
      served.set(url, service);
      const { operator, port } = await service;
      const place = `https://127.0.0.1:${port}?ca=${authority.ca}`;
      return administeredBy(operator, await openPool(place, { ...terms, storeToken: "unused" }));
    };
    return { ...engine, name: "https", open, actorName: (actor) => `ci (${actor})`, isService: true };
  }

  contract(servedBy(memoryEngine()));
});
