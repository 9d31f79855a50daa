import { afterAll, beforeAll, describe, vi } from "vitest";
import { openPostgres } from "../../../provider/ipam/store/postgres";
import { engineContract, remember } from "../engine";
import { type PostgresServer, postgresMissing, startPostgres } from "../servers/postgres";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

describe.skipIf(postgresMissing)(`postgres${postgresMissing ? `: ${postgresMissing}` : ""}`, () => {
  let server: PostgresServer;
  let schemas = 0;
  beforeAll(async () => {
    server = await startPostgres("memory");
  });
  afterAll(() => server?.stop());

  const newUrl = () => server.url({ schema: `s${schemas++}` });
  const open = async (url: string, options: Parameters<typeof openPostgres>[1] = {}) =>
    remember(await openPostgres(url, options), url);
  engineContract({
    newUrl,
    open,
    sql: (url, text) => server.sql(text(`${new URL(url).searchParams.get("schema")}.`)),
    hasConnections: true,
    guardsConflict: true,
  });
});
