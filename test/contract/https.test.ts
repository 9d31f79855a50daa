import { afterAll, describe } from "vitest";
import { StoredPool } from "../../provider/pool/pool";
import { openRemotePool } from "../../provider/pool/remote";
import type { Store } from "../../provider/pool/storage/store";
import { contract } from "./contract";
import { memoryEngine } from "./fixture";
import { newAuthority } from "./servers/certificates";
import { type Service, serveInProcess } from "./servers/service";

/** A service as the store: the pool's contract over HTTPS, with the store in the process of the service. */
describe("https", () => {
  const authority = newAuthority();
  const tls = authority.issue("service", "IP:127.0.0.1");
  const services = new Map<Store, Service>();
  afterAll(() => Promise.all([...services.values()].map(({ app }) => app.close())));

  /** The settings of clients count: those of the service only limit them. */
  async function serve(store: Store): Promise<Service> {
    const served = new StoredPool(store, { offerTtl: 1e9, quarantine: 0 });
    const service = await serveInProcess(served, { tls, caller: { name: "ci", scopes: ["deploy"] } });
    services.set(store, service);
    return service;
  }

  contract({
    ...memoryEngine(),
    name: "https",
    actorName: (actor) => `ci (${actor})`,
    operationsOn: async (store, settings) => {
      const { port } = services.get(store) ?? (await serve(store));
      const url = `https://127.0.0.1:${port}?ca=${authority.ca}`;
      return (await openRemotePool(url, { ...settings, storeToken: "unused" })).operations;
    },
  });
});
