import { afterAll, describe } from "vitest";
import { openIpam } from "../../provider/ipam";
import type { Ipam } from "../../provider/ipam/types";
import { contract } from "./contract";
import { poolOf } from "./fixture";
import { newAuthority } from "./servers/certificates";
import { type Service, serveInProcess } from "./servers/service";

const ADMINISTRATION = ["fsck", "adoptIdentity", "accessTokens", "findAccessToken", "updateAccessTokens", "webhooks"];

/** A store behind a service. Its administration is done by the operator, on the store itself. */
const administeredBy = (operator: Ipam, served: Ipam): Ipam =>
  new Proxy(served, {
    get: (_, key) => {
      if (key === "session")
        return (options: Parameters<Ipam["session"]>[0]) => administeredBy(operator, served.session(options));
      const from = ADMINISTRATION.includes(String(key)) ? operator : served;
      const value = Reflect.get(from, key, from);
      return typeof value === "function" ? value.bind(from) : value;
    },
  });

/** A service as the store: the pool's contract over HTTPS, with the store in the process of the service. */
describe("https", () => {
  const authority = newAuthority();
  const tls = authority.issue("service", "IP:127.0.0.1");
  const services = new Map<string, Promise<{ operator: Ipam; service: Service }>>();
  afterAll(async () => {
    for (const { service } of await Promise.all(services.values())) await service.app.close();
  });

  /** The settings of clients count: those of the service only limit them. */
  async function serve(clock: () => number): Promise<{ operator: Ipam; service: Service }> {
    const operator = await openIpam("memory:", { offerTtl: 1e9, quarantine: 0, clock });
    const caller = { name: "ci", scopes: ["deploy" as const] };
    return { operator, service: await serveInProcess(operator, { tls, caller }) };
  }

  let urls = 0;
  contract({
    name: "https",
    newUrl: () => `service ${urls++}`,
    open: async (url, { swapWait, ...terms }, clock) => {
      const served = services.get(url) ?? serve(clock);
      services.set(url, served);
      const { operator, service } = await served;
      const place = `https://127.0.0.1:${service.port}?ca=${authority.ca}`;
      const remote = await openIpam(place, { ...terms, storeToken: "unused" });
      return poolOf(administeredBy(operator, remote), swapWait);
    },
    actorName: (actor) => `ci (${actor})`,
  });
});
