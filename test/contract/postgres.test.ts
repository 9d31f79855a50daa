import { afterAll, afterEach, beforeAll, describe } from "vitest";
import { postgresStore } from "../../provider/pool/stores/postgres";
import { contract } from "./contract";
import { type PostgresServer, postgresMissing, startPostgres } from "./servers/postgres";
import { OpenStores } from "./servers/stores";

describe.skipIf(postgresMissing)(`postgres${postgresMissing ? `: ${postgresMissing}` : ""}`, () => {
  const stores = new OpenStores();
  let server: PostgresServer;
  let schemas = 0;
  beforeAll(async () => {
    server = await startPostgres("memory");
  }, 60_000);
  afterEach(() => stores.closeAll());
  afterAll(() => server?.stop());

  const open = async (clock?: () => number) =>
    stores.add(await postgresStore(server.url(`?schema=s${schemas++}`), clock && { clock }));
  contract({ name: "postgres", open });
});
