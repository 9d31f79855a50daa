import { afterAll, afterEach, beforeAll, describe, vi } from "vitest";
import { postgresStore } from "../../provider/pool/stores/postgres";
import { contract } from "./contract";
import { Cables } from "./servers/cables";
import { type PostgresServer, postgresMissing, startPostgres } from "./servers/postgres";
import { serverContract } from "./servers/shared";
import { OpenStores } from "./servers/stores";

vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

describe.skipIf(postgresMissing)(`postgres${postgresMissing ? `: ${postgresMissing}` : ""}`, () => {
  const stores = new OpenStores();
  let server: PostgresServer;
  let schemas = 0;
  beforeAll(async () => {
    server = await startPostgres("memory");
  });
  afterEach(() => stores.closeAll());
  afterAll(() => server?.stop());

  const newUrl = (cables?: Cables) => server.url({ schema: `s${schemas++}`, ...(cables && { port: cables.ports[0]! }) });
  const open = async (url: string, options = {}) => stores.add(await postgresStore(url, options));

  contract({ name: "postgres", open: (clock) => open(newUrl(), { clock }) });
  serverContract({ newUrl, open, cables: () => Cables.to([server.port]) });
});
