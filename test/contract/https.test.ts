import { afterAll, describe } from "vitest";
import { openIpam } from "../../provider/ipam";
import type { Store } from "../../provider/ipam/types";
import { contract } from "./contract";
import { poolOf } from "./fixture";
import { newAuthority } from "./servers/certificates";
import { type Service, serveInProcess } from "./servers/service";

/** A store behind a service. It is administered by its operator, on the store itself. */
const administeredBy = (operator: Store, served: Store): Store =>
  new Proxy(served, {
    get: (_, key) => {
      if (key === "session")
        return (options: Parameters<Store["session"]>[0]) => administeredBy(operator, served.session(options));
      if (key === "admin") return operator.admin;
      const value = Reflect.get(served, key, served);
      return typeof value === "function" ? value.bind(served) : value;
    },
  });

/** A service as the store: the pool's contract over HTTPS, with the store in the process of the service. */
describe("https", () => {
  const authority = newAuthority();
  const tls = authority.issue("service", "IP:127.0.0.1");
  const services = new Map<string, Promise<{ operator: Store; service: Service }>>();
  afterAll(async () => {
    for (const { service } of await Promise.all(services.values())) await service.app.close();
  });

  /** The settings of clients count: those of the service only limit them. */
  async function serve(clock: () => number): Promise<{ operator: Store; service: Service }> {
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
