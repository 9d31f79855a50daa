import { Client } from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { openPostgres } from "../../../provider/ipam/store/postgres";
import { PLANS } from "../../../provider/ipam/store/postgres-connection";
import { Statements } from "../../../provider/ipam/store/postgres-queries";
import { indexOf, SEARCHES, type Search } from "../../../provider/ipam/store/queries";
import { type Ask, statements } from "../../../provider/ipam/store/sql";
import { Conflict, type Engine } from "../../../provider/ipam/store/store";
import { changesOf, engineContract, eventOf, find, headOf, leaseRow, remember, write } from "../engine";
import { FaultyProxy } from "../servers/faulty-proxy";
import { type PostgresServer, postgresMissing, startPostgres } from "../servers/postgres";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

describe.skipIf(postgresMissing)(`postgres${postgresMissing ? `: ${postgresMissing}` : ""}`, () => {
  let server: PostgresServer;
  let schemas = 0;
  const opened: Engine[] = [];
  beforeAll(async () => {
    server = await startPostgres("memory");
  });
  afterEach(async () => {
    await Promise.all(opened.splice(0).map((engine) => engine.close()));
  });
  afterAll(() => server?.stop());

  const newUrl = (fields = {}) => server.url({ schema: `s${schemas++}`, ...fields });
  const schemaOf = (url: string) => new URL(url).searchParams.get("schema")!;
  const open = async (url: string, options: Parameters<typeof openPostgres>[1] = {}) =>
    remember(await openPostgres(url, options), url);
  const openHere = async (...args: Parameters<typeof open>) => {
    const engine = await open(...args);
    opened.push(engine);
    return engine;
  };

  engineContract({
    newUrl,
    open,
    sql: (url, text) => server.sql(text(`${schemaOf(url)}.`)),
    hasConnections: true,
    guardsConflict: true,
  });

  test("every query seeks in indexes, however few rows there are", async () => {
    const url = newUrl();
    await openHere(url);
    const client = new Client({ host: "127.0.0.1", port: server.port, user: "overlay", database: "overlay" });
    await client.connect();
    try {
      await client.query(PLANS);
      for (const [name, statement] of Object.entries(statements)) {
        const ask = { name, statement, values: [] } as unknown as Ask;
        const { text, values } = new Statements(`${schemaOf(url)}.`).find([ask]);
        await client.query(`PREPARE "${name}" AS ${text}`);
        const nulls = values.length === 0 ? "" : `(${values.map(() => "NULL").join(", ")})`;
        const { rows } = await client.query(`EXPLAIN EXECUTE "${name}"${nulls}`);
        const plan = rows.map((row) => row["QUERY PLAN"]).join("\n");
        expect(plan, name).not.toMatch(/Seq Scan/);
        const scans = plan.split("\n").filter((line) => /Index (Only )?Scan/.test(line)).length;
        expect(scans, plan).toBeGreaterThan(0);
        const search: Search | undefined = SEARCHES[name as keyof typeof SEARCHES];
        const index = search && indexOf(search);
        if (index)
          expect(plan, name).toContain(`${(search.through ?? search.table).name}_${index.columns.join("_")} on `);
        if (name !== "secrets") expect(plan.match(/Index Cond/g)?.length, plan).toBe(scans);
      }
    } finally {
      await client.end();
    }
  });

  describe("a commit that is not answered", () => {
    let proxy: FaultyProxy;
    const lease = leaseRow("a", 1n);
    /** Calls `fail` when the commit is on its way. */
    const commitAnd = async (state: FaultyProxy["state"], fail: () => void, options = {}) => {
      proxy = await FaultyProxy.to([server.port]);
      const url = newUrl();
      const engine = await openHere(server.url({ schema: schemaOf(url), port: proxy.ports[0]! }), options);
      await write(engine, { events: [eventOf(lease)] });
      const tx = await engine.begin([], ["pool/p"]);
      proxy.changeAt = { bytes: "COMMIT", state };
      const commit = tx.commit(changesOf({ leases: [lease], events: [eventOf(lease)] }));
      setTimeout(fail, 300);
      return { engine, url, commit };
    };
    const reconnect = () => {
      proxy.state = "forward";
      return proxy.disconnect();
    };
    afterEach(() => proxy.end());

    test("was made: it returns what it wrote", async () => {
      const { engine, commit } = await commitAnd("dropAnswers", reconnect);
      expect(await commit).toMatchObject({ version: 2, events: [{ ...eventOf(lease), id: 2 }] });
      expect(await find(engine, { of: "lease", uid: "a" })).toEqual({ leases: [lease] });
    });

    test("was made, and others committed since: the ids of its events are its own", async () => {
      const { url, commit } = await commitAnd("dropAnswers", () => {
        proxy.state = "down";
        proxy.disconnect();
      });
      await vi.waitFor(() => expect(proxy.state).toBe("down"));
      const other = await openHere(server.url({ schema: schemaOf(url) }));
      await vi.waitFor(async () => expect(await find(other, { of: "lease", uid: "a" })).toHaveProperty("leases"));
      for (let i = 0; i < 3; i++) await write(other, { events: [eventOf(lease)] });
      proxy.state = "forward";
      const { version, events } = await commit;
      expect([version, events.map(({ id }) => id)]).toEqual([5, [2]]);
    });

    test("arrives late: it waits for it", async () => {
      const { engine, commit } = await commitAnd("holdRequests", () => {
        const deliver = reconnect();
        setTimeout(deliver, 500);
      });
      expect(await commit).toMatchObject({ version: 2, events: [{ id: 2 }] });
      expect(await find(engine, { of: "lease", uid: "a" })).toEqual({ leases: [lease] });
    });

    test("never arrives: it is a conflict once the server has ended the transaction", async () => {
      const { engine, commit } = await commitAnd("holdRequests", reconnect);
      await expect(commit).rejects.toBeInstanceOf(Conflict);
      expect(await find(engine, { of: "lease", uid: "a" })).toEqual({});
      await write(engine, { leases: [lease] });
    });

    test("of a server that is gone: nobody knows", async () => {
      const gone = () => {
        proxy.state = "down";
        proxy.disconnect();
      };
      const { commit } = await commitAnd("dropAnswers", gone, { serverTimeout: 1 });
      await expect(commit).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        message: expect.stringContaining("may have been made or not"),
      });
    });
  });

  test("a COMMIT that is answered with ROLLBACK is a conflict", async () => {
    const engine = await openHere(newUrl());
    const tx = await engine.begin([], ["pool/p"]);
    await expect(tx.load([{ of: "lease", uid: "\0" }])).rejects.toThrow();
    await expect(tx.commit(changesOf({}))).rejects.toBeInstanceOf(Conflict);
    await tx.rollBack();
    expect(await find(engine, { of: "pool", name: "pool/p" })).toEqual({});
  });

  test("a process that sleeps in a transaction holds up others for some seconds only", async () => {
    const url = newUrl();
    const [sleeper, other] = [await openHere(url), await openHere(url)];
    const asleep = await sleeper.begin([], ["pool/p"]);
    await expect(other.begin([], ["pool/p"])).rejects.toBeInstanceOf(Conflict);
    await write(other, { isVersion: true }, ["pool/q"]);
    await vi.waitFor(() => write(other, { isVersion: true }), { timeout: 20_000, interval: 100 });
    await expect(asleep.commit(changesOf({ isVersion: true }))).rejects.toBeInstanceOf(Conflict);
  });

  test("a commit is on disk, whatever the server is configured to", async () => {
    const url = newUrl();
    await openHere(url);
    await server.sql("CREATE ROLE careless LOGIN SUPERUSER; ALTER ROLE careless SET synchronous_commit = off");
    const engine = await openHere(server.url({ schema: schemaOf(url), login: "careless" }));
    await server.sql(`CREATE TABLE ${schemaOf(url)}.seen (was text);
      CREATE FUNCTION ${schemaOf(url)}.look() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO ${schemaOf(url)}.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
      CREATE TRIGGER look BEFORE UPDATE ON ${schemaOf(url)}.store FOR EACH ROW EXECUTE FUNCTION ${schemaOf(url)}.look()`);
    await write(engine, { isVersion: true });
    expect(await server.sql(`SELECT was FROM ${schemaOf(url)}.seen`)).toEqual([{ was: "on" }]);
  });

  test("a user who may only read sees the pool, but no secrets, and writes nothing", async () => {
    const url = newUrl();
    const schema = schemaOf(url);
    const lease = leaseRow("a", 1n);
    await write(await openHere(url), { leases: [lease], documents: [{ kind: "secret", key: "k", value: "v" }] });
    await server.sql(`CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA ${schema} TO reader;
      GRANT SELECT ON ALL TABLES IN SCHEMA ${schema} TO reader; REVOKE ALL ON ${schema}.secret FROM reader`);
    const reader = await openHere(server.url({ schema, login: "reader" }));
    expect(reader.readOnly).toBe(true);
    expect(await find(reader, { of: "lease", uid: "a" })).toEqual({ leases: [lease] });
    const refused = { code: "STORE_READ_ONLY" };
    await expect(find(reader, { of: "documents", kind: "secret" })).rejects.toMatchObject(refused);
    await expect(write(reader, { leases: [leaseRow("b", 2n)] })).rejects.toMatchObject(refused);
    await expect(openPostgres(server.url({ schema: "missing", login: "reader" }))).rejects.toMatchObject(refused);
  });

  const layouts: [what: string, sql: string, text: string][] = [
    ["a newer release", "UPDATE store SET layout = 99", "layout 99"],
    ["an older release", "CREATE TABLE kv (key text)", "older release"],
  ];
  test.each(layouts)("tables of %s are left alone", async (_what, sql, text) => {
    const url = newUrl();
    await openHere(url);
    await server.sql(`SET search_path = ${schemaOf(url)}; ${sql}`);
    await expect(openPostgres(url)).rejects.toMatchObject({
      code: "STORE_VERSION",
      message: expect.stringContaining(text),
    });
  });

  test("many processes may open a new store at once", async () => {
    const url = newUrl();
    const engines = await Promise.all(Array.from({ length: 5 }, () => openHere(url)));
    const ids = engines.map(async (engine) => (await headOf(engine)).id);
    expect(new Set(await Promise.all(ids)).size).toBe(1);
  });

  test("a clock that leapt is noticed, and one that was ahead is repaired", async () => {
    const url = newUrl();
    const day = 24 * 3600 * 1000;
    const now = Date.now();
    const ahead = await openHere(url, { clock: () => now + day });
    await write(ahead, { isVersion: true });
    const leapt = await openHere(url, { clock: () => now + 3 * day, machineTime: () => now });
    const timeOf = async (engine: Engine) => {
      const tx = await engine.begin([]);
      await tx.rollBack();
      return tx.now;
    };
    await expect(leapt.begin([])).rejects.toMatchObject({ code: "STORE_CLOCK" });
    expect(await leapt.checkClock!(true)).toMatchObject({ repairable: false });
    const right = await openHere(url, { clock: () => now });
    expect(await timeOf(right)).toBe(now + day);
    expect(await right.checkClock!(false)).toMatchObject({ repairable: true });
    expect(await right.checkClock!(true)).toMatchObject({ repairable: true });
    expect(await right.checkClock!(true)).toBeUndefined();
    expect(await timeOf(right)).toBe(now);
  });
});
