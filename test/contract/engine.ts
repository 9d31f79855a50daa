import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { FreeRow, LeaseRow, OfferRow, PoolRow } from "../../provider/ipam/decide/rows";
import {
  type Changes,
  type Commit,
  Conflict,
  type DocumentRow,
  type Engine,
  EPOCH_MS,
  KEPT_EPOCHS,
  KEPT_EVENTS,
  KEPT_MS,
  type Query,
  type Rows,
  type Transaction,
} from "../../provider/ipam/store/store";
import type { Event } from "../../provider/ipam/types";

/** An engine, as the contract opens it. */
export interface EngineUnderTest {
  /** Of a store that is not there yet. */
  newUrl(): string;
  open(url: string, options?: { clock?: () => number }): Promise<Engine>;
  /** Runs SQL on the tables beside the engine; `prefix` is written before their names. */
  sql(url: string, text: (prefix: string) => string): Promise<unknown>;
  /** Two engines can be in transactions at the same time. */
  hasConnections: boolean;
  /** A guard is broken by another process, too; else only by damage. */
  guardsConflict: boolean;
}

const POOL = "pool/p";

export const poolRow = (name = POOL, more: Partial<PoolRow> = {}): PoolRow => ({
  name,
  ...{ reserved: 0, used: 0, resting: 0, held: 0n },
  ...more,
});

export const leaseRow = (uid: string, at: bigint | [bigint, bigint], more: Partial<LeaseRow> = {}): LeaseRow => {
  const [first, last] = Array.isArray(at) ? at : [at, at];
  return {
    ...{ uid, leaseId: `${uid}.1`, pool: POOL, owner: `owner of ${uid}`, type: "IPReservation", state: "reserved" },
    ...{ ranges: [{ first, last }], createdAt: 10, updatedAt: 20, lastSeen: 30 },
    ...more,
  };
};

export const offerRow = (owner: string, more: Partial<OfferRow> = {}): OfferRow => ({
  ...{ owner, program: "main", run: "r1", pool: POOL, type: "StaticIP", ranges: [{ first: 7n, last: 7n }] },
  ...{ byValue: false, afterLease: [], uid: "u-offer", createdAt: 10, updatedAt: 20, expiresAt: 1000 },
  ...more,
});

const free = (first: bigint, last: bigint, zone: "a" | "r" = "a", pool = POOL): FreeRow => ({
  pool,
  zone,
  first,
  last,
});

export const eventOf = ({ pool, owner, uid, leaseId, ranges }: LeaseRow): Event => ({
  ...{ at: 40, what: "claimed", pool, owner, uid, leaseId, ranges },
});

export interface Writes {
  pools?: PoolRow[];
  /** A row, or what it is before and after. */
  leases?: (LeaseRow | [before: LeaseRow, after: LeaseRow | undefined])[];
  offers?: (OfferRow | [before: OfferRow, after: OfferRow | undefined])[];
  documents?: DocumentRow[];
  free?: FreeRow[];
  gone?: { pools?: PoolRow[]; documents?: DocumentRow[]; free?: FreeRow[] };
  cleared?: Changes["free"]["cleared"];
  events?: Event[];
  isVersion?: boolean;
  nextEpoch?: string;
  head?: Changes["head"];
  resetEpochs?: Changes["resetEpochs"];
}

let epochs = 0;

/** What `decide` would hand to an engine. */
export function changesOf({ pools = [], documents = [], gone = {}, cleared = [], ...more }: Writes): Changes {
  const events = more.events ?? [];
  return {
    pools: { put: pools, deleted: gone.pools ?? [] },
    leases: changed(more.leases ?? []),
    offers: changed(more.offers ?? []),
    documents: { put: documents, deleted: gone.documents ?? [] },
    free: { put: more.free ?? [], deleted: gone.free ?? [], cleared },
    events,
    isVersion: more.isVersion ?? events.length > 0,
    nextEpoch: more.nextEpoch ?? `epoch${++epochs}`,
    ...(more.head && { head: more.head }),
    ...(more.resetEpochs && { resetEpochs: more.resetEpochs }),
  };
}

function changed<R extends object>(rows: (R | [before: R, after: R | undefined])[]) {
  const pairs = rows.map((row) => (Array.isArray(row) ? row : ([undefined, row] as const)));
  return {
    put: pairs.flatMap(([, after]) => after ?? []),
    deleted: pairs.flatMap(([before, after]) => (before && !after ? [before] : [])),
    before: (row: R) => pairs.find(([, after]) => after === row)?.[0],
  };
}

/** Begins, writes and commits; again after a conflict, as long as others hold the lock. */
export async function write(engine: Engine, writes: Writes, locks = [POOL]): Promise<Commit> {
  const tx = await engine.begin([], locks);
  try {
    return await tx.commit(changesOf(writes));
  } catch (error) {
    await tx.rollBack();
    throw error;
  }
}

export async function find(engine: Engine, ...queries: Query[]): Promise<Rows> {
  const tx = await engine.begin(queries);
  await tx.rollBack();
  return tx.rows;
}

export const headOf = async (engine: Engine) => {
  const tx = await engine.begin([]);
  await tx.rollBack();
  return tx.head;
};

const tenant = { org: "acme", project: "web" };

/** Every field that a row can have. */
const fullLease = leaseRow("full", 0xffff_0a00_0001n, {
  owner: "org/urn:pulumi:prod::web::overlay:index:StaticIP::größe 'x' \"y\" \\",
  state: "used",
  ranges: [
    { first: 1n, last: 1n },
    { first: 1n << 100n, last: (1n << 128n) - 1n },
  ],
  sharingKey: "key",
  ports: [
    { protocol: "tcp", port: 80 },
    { protocol: "udp", port: 0 },
  ],
  names: ["runner/a/b", "it's"],
  tenant,
  labels: { app: "web", "": "" },
  usedBy: "container",
  data: { b: [1, 2.5, null, true, { a: "x" }], a: -1e300, s: "1" },
  by: "me@host",
  ttl: 0.5,
  childPool: "runner/a/b",
  createdAt: 1_795_000_000_000,
  expiresAt: 5,
  deletingSince: 6,
  takenBy: "another",
});

const fullOffer = offerRow("org/urn:pulumi:prod::web::overlay:index:IPPool::p", {
  byValue: true,
  afterLease: ["u1", "u2"],
  sharingKey: "key",
  ports: [{ protocol: "sctp", port: 65535 }],
  names: ["network/x"],
  tenant,
  labels: { a: "b" },
  usedBy: "c",
  data: "text",
  by: "me@host",
  childPool: {
    name: "network/x",
    kind: "id",
    ranges: [{ first: 1n, last: 9n }],
    reserved: [{ first: 1n, last: 1n }],
    staticOnly: [{ first: 2n, last: 2n }],
    allocation: "hashed",
    autoAssign: false,
    avoidBoundaryIps: true,
    quota: { maxIps: 3 },
    tenant,
    warnAtPercent: 80,
    reclaimAfter: 60,
    data: { z: 1, a: 2 },
  },
});

const fullPool = poolRow("pool/full", {
  spec: { ...fullOffer.childPool!, name: "pool/full" },
  opener: "u9",
  isClosing: true,
  isMadeInBounds: true,
  ...{ reserved: 1, used: 2, resting: 3, held: 1n << 128n },
});

export function engineContract(engine: EngineUnderTest): void {
  const opened: Engine[] = [];
  let url: string;
  const open = async (of = url, options = {}): Promise<Engine> => {
    const each = await engine.open(of, options);
    opened.push(each);
    return each;
  };
  beforeEach(() => {
    url = engine.newUrl();
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await Promise.all(opened.splice(0).map((each) => each.close()));
  });

  describe("rows", () => rowContract(open));
  describe("queries", () => queryContract(open));
  describe("guards", () => guardContract(engine, open));
  describe("head", () => headContract(engine, open));
  describe("transactions", () => transactionContract(engine, open));
  describe("corrupt", () => corruptContract(engine, open, () => url));
}

type Open = (url?: string, options?: { clock?: () => number }) => Promise<Engine>;

function rowContract(open: Open): void {
  test("come back as they were written, also after a reopen", async () => {
    const store = await open();
    const event: Event = { ...eventOf(fullLease), tenant, usedBy: "c", by: "b", takenBy: "t", formerOwner: "f" };
    const documents: DocumentRow[] = [
      { kind: "secret", key: "ring", value: "s3cret\nline" },
      { kind: "delivery", key: "w/1", value: '{"a":"\u0000"}'.replace("\u0000", "é") },
    ];
    await write(store, { pools: [fullPool], leases: [fullLease], offers: [fullOffer], documents, events: [event] });
    const queries: Query[] = [
      { of: "lease", uid: "full" },
      { of: "offersOf", owner: fullOffer.owner },
      { of: "pool", name: "pool/full" },
      { of: "documents", kind: "secret" },
      { of: "documents", kind: "delivery" },
      { of: "events", after: 0, limit: 9 },
    ];
    for (const each of [store, await open()])
      expect(await find(each, ...queries)).toEqual({
        leases: [fullLease],
        offers: [fullOffer],
        pools: [fullPool],
        documents,
        events: [{ ...event, id: 1 }],
      });
  });

  test("are replaced, and lose fields", async () => {
    const store = await open();
    await write(store, { leases: [fullLease], offers: [fullOffer], pools: [fullPool] });
    const lease = leaseRow("full", 3n);
    const offer = offerRow(fullOffer.owner, { pool: "pool/other" });
    await write(store, {
      leases: [[fullLease, lease]],
      offers: [[fullOffer, offer]],
      pools: [poolRow("pool/full")],
    });
    expect(
      await find(
        store,
        { of: "lease", uid: "full" },
        { of: "offersOf", owner: offer.owner },
        { of: "pool", name: "pool/full" },
      ),
    ).toEqual({ leases: [lease], offers: [offer], pools: [poolRow("pool/full")] });
    for (const query of [
      { of: "name", name: "it's" },
      { of: "values", pool: POOL, first: 1n, last: 2n },
      { of: "ports", pool: POOL, value: 1n, ports: ["tcp/80"] },
      { of: "offersNamed", name: "network/x" },
      { of: "offersOfPool", childName: "network/x" },
    ] satisfies Query[])
      expect(await find(store, query), query.of).toEqual({});
  });

  test("are deleted", async () => {
    const store = await open();
    const document: DocumentRow = { kind: "secret", key: "k", value: "v" };
    const pools = [poolRow("pool/gone")];
    await write(store, {
      pools,
      leases: [fullLease],
      offers: [fullOffer],
      documents: [document],
      free: [free(1n, 2n)],
    });
    await write(store, {
      leases: [[fullLease, undefined]],
      offers: [[fullOffer, undefined]],
      gone: { documents: [document], pools, free: [free(1n, 2n)] },
    });
    const found = await find(
      store,
      { of: "lease", uid: "full" },
      { of: "name", name: "it's" },
      { of: "values", pool: POOL, first: 0n, last: (1n << 128n) - 1n },
      { of: "offersOf", owner: fullOffer.owner },
      { of: "offersNamed", name: "network/x" },
      { of: "documents", kind: "secret" },
      { of: "pool", name: "pool/gone" },
      { of: "free", pool: POOL, zone: "a", from: 0n, limit: 9 },
    );
    expect(found).toEqual({ free: [{ query: expect.anything(), rows: [] }] });
  });

  test("with text that could not be read again are refused, and nothing is written", async () => {
    const store = await open();
    const writing = write(store, { leases: [leaseRow("fine", 1n), leaseRow("bad", 2n, { labels: { a: "\u0007" } })] });
    await expect(writing).rejects.toMatchObject({ code: "INPUT_INVALID", message: expect.stringContaining("labels") });
    expect(await find(store, { of: "lease", uid: "fine" })).toEqual({});
  });

  test("all free ranges of a zone are deleted at once", async () => {
    const store = await open();
    await write(store, { free: [free(1n, 2n), free(5n, 6n), free(1n, 2n, "r"), free(1n, 2n, "a", "pool/q")] });
    await write(store, { cleared: [{ pool: POOL, zone: "a" }], free: [free(9n, 9n)] });
    const rows = (zone: "a" | "r", pool = POOL): Query => ({ of: "free", pool, zone, from: 0n, limit: 9 });
    const found = await find(store, rows("a"), rows("r"), rows("a", "pool/q"));
    expect(found.free!.map(({ rows }) => rows.map(({ last }) => last))).toEqual([[9n], [2n], [2n]]);
  });
}

/** 20 leases and some offers, of which each query finds a few. */
const LEASES: LeaseRow[] = [
  leaseRow("a", 10n, { names: ["na"], lastSeen: 3, childPool: "runner/a" }),
  leaseRow("b", [16n, 31n], { expiresAt: 100, lastSeen: 1 }),
  leaseRow("c", [32n, 63n], { expiresAt: 50, lastSeen: 2, childPool: "runner/c" }),
  ...["s1", "s2"].map((uid, i) =>
    leaseRow(uid, 80n, { sharingKey: "k", ports: [{ protocol: "tcp", port: 80 + i }], lastSeen: 10 }),
  ),
  leaseRow("t1", 81n, { sharingKey: "k", tenant, ports: [{ protocol: "tcp", port: 80 }], lastSeen: 11 }),
  leaseRow("r1", 90n, { endedAt: 70, endReason: "released", resting: [{ first: 90n, last: 90n }], freeAt: 500 }),
  leaseRow("r2", 91n, { endedAt: 60, endReason: "released", resting: [{ first: 91n, last: 91n }], freeAt: 300 }),
  leaseRow("e1", 10n, { owner: "owner of a", endedAt: 5, endReason: "expired", names: ["na"], childPool: "runner/e" }),
  leaseRow("e2", 11n, { endedAt: 6, endReason: "released", freeAt: 8 }),
  leaseRow("o1", 10n, { pool: "pool/other", expiresAt: 10 }),
  leaseRow("high", (1n << 127n) + 5n, { lastSeen: 12 }),
  leaseRow("e3", 12n, { owner: "owner of a", endedAt: 7, endReason: "released", freeAt: 8 }),
];
const OFFERS: OfferRow[] = [
  offerRow("x", { expiresAt: 100, names: ["shown"] }),
  offerRow("x", { program: "other", pool: "pool/other", expiresAt: 200, names: ["shown"] }),
  offerRow("y", { expiresAt: 300, childPool: { ...fullOffer.childPool!, name: "network/y" } }),
  offerRow("z", { expiresAt: 200, childPool: { ...fullOffer.childPool!, name: "other/z" } }),
];

function queryContract(open: Open): void {
  const spec = (name: string) => ({ ...fullOffer.childPool!, name });
  let now = 0;
  const setUp = async (): Promise<Engine> => {
    now = 0;
    const store = await open(undefined, { clock: () => now });
    await write(
      store,
      {
        leases: LEASES,
        offers: OFFERS,
        pools: [
          poolRow(POOL, { spec: spec(POOL), resting: 2 }),
          poolRow("pool/other", { spec: spec("pool/other") }),
          poolRow("pool/quiet", { spec: spec("pool/quiet") }),
          poolRow("pool/stub"),
          poolRow("network/n", { spec: spec("network/n") }),
        ],
        free: [free(0n, 9n), free(11n, 15n), free(64n, 79n), free(100n, 200n, "r"), free(1n, 3n, "a", "pool/other")],
        documents: [
          { kind: "delivery", key: "2", value: "b" },
          { kind: "delivery", key: "1", value: "a" },
          { kind: "accessToken", key: "1", value: "c" },
          { kind: "secret", key: "1", value: "d" },
        ],
        events: LEASES.slice(0, 4).map((lease, i) => ({ ...eventOf(lease), at: 100 + i })),
      },
      [POOL, "pool/other"],
    );
    await write(store, { events: [{ ...eventOf(LEASES[10]!), at: 110 }] });
    return store;
  };

  const p = { pool: POOL };
  const LAST = (1n << 128n) - 1n;
  /** What is found, by uid, name or key: in this order if it is a list, else in any. */
  const cases: [query: Query, found: string[] | Set<string>, at?: number][] = [
    [{ of: "pool", name: POOL }, [POOL]],
    [{ of: "pool", name: "pool/none" }, []],
    [{ of: "pools", prefix: "", after: "", limit: 9 }, ["network/n", "pool/other", POOL, "pool/quiet"]],
    [{ of: "pools", prefix: "pool/", after: "pool/other", limit: 1 }, [POOL]],
    [{ of: "activePools", prefix: "pool/" }, new Set([POOL, "pool/other"])],
    [{ of: "lease", uid: "e1" }, ["e1"]],
    [{ of: "owner", ...p, owner: "owner of a" }, ["a"]],
    [{ of: "owner", ...p, owner: "owner of r1" }, ["r1"]],
    [{ of: "ended", ...p, owner: "owner of a", limit: 9 }, ["e3", "e1"]],
    [{ of: "ended", ...p, owner: "owner of a", limit: 1 }, ["e3"]],
    [{ of: "ended", ...p, owner: "owner of r1", limit: 9 }, ["r1"]],
    [{ of: "ended", pool: "pool/other", owner: "owner of a", limit: 9 }, []],
    [{ of: "owner", pool: "pool/other", owner: "owner of a" }, []],
    [{ of: "name", name: "na" }, ["a"]],
    [{ of: "name", name: "nb" }, []],
    [{ of: "values", ...p, first: 10n, last: 10n }, ["a"]],
    [{ of: "values", ...p, first: 11n, last: 15n }, []],
    [{ of: "values", ...p, first: 11n, last: 16n }, ["b"]],
    [{ of: "values", ...p, first: 20n, last: 21n }, ["b"]],
    [{ of: "values", ...p, first: 31n, last: 32n }, new Set(["b", "c"])],
    [{ of: "values", ...p, first: 0n, last: 79n }, new Set(["a", "b", "c"])],
    [{ of: "values", ...p, first: 80n, last: 80n }, new Set(["s1", "s2"])],
    [{ of: "values", ...p, first: 70n, last: 90n }, new Set(["s1", "s2", "t1", "r1"])],
    [{ of: "values", ...p, first: 92n, last: LAST }, ["high"]],
    [{ of: "values", pool: "pool/other", first: 0n, last: LAST }, ["o1"]],
    [{ of: "ports", ...p, value: 80n, ports: ["tcp/81", "udp/80"] }, ["s2"]],
    [{ of: "ports", ...p, value: 80n, ports: ["tcp/80", "tcp/81"] }, new Set(["s1", "s2"])],
    [{ of: "ports", ...p, value: 82n, ports: ["tcp/80"] }, []],
    [{ of: "ports", ...p, value: 82n, ports: [] }, []],
    [{ of: "sharers", ...p, sharedAs: "/k" }, new Set(["s1", "s2"])],
    [{ of: "sharers", ...p, sharedAs: "acme/web/k" }, ["t1"]],
    [{ of: "due", ...p, limit: 9 }, new Set(["c"]), 100],
    [{ of: "due", ...p, limit: 9 }, new Set(["c", "b", "r2"]), 300],
    [{ of: "resting", ...p, limit: 9 }, ["r2", "r1"]],
    [{ of: "resting", ...p, limit: 1 }, ["r2"]],
    [{ of: "idle", ...p, limit: 3 }, ["b", "c", "a"]],
    [{ of: "page", ...p, after: -1n, limit: 99 }, ["a", "b", "c", "s1", "s2", "t1", "r1", "r2", "high"]],
    [{ of: "page", ...p, after: 10n, limit: 2 }, ["b", "c"]],
    [{ of: "page", ...p, after: 31n, limit: 2 }, ["c", "s1", "s2"]],
    [{ of: "page", ...p, after: LAST, limit: 2 }, []],
    [{ of: "parents", ...p }, new Set(["a", "c"])],
    [{ of: "offersOf", owner: "x" }, new Set(["x main", "x other"])],
    [{ of: "offersIn", ...p }, new Set(["y main", "z main"]), 200],
    [{ of: "offersNamed", name: "shown" }, ["x other"], 150],
    [{ of: "offersOfPool", childName: "network/y" }, ["y main"], 300],
    [{ of: "offersOfPool", childName: "network/y" }, [], 301],
    [{ of: "offersWithPool", prefix: "network/" }, ["y main"], 0],
    [{ of: "pastLeases", before: 70, limit: 2 }, ["e1", "e2"]],
    [{ of: "pastLeases", before: 201, limit: 9 }, ["e1", "e2", "e3"]],
    [{ of: "pastOffers", before: 201, limit: 9 }, new Set(["x main", "x other", "z main"])],
    [{ of: "documents", kind: "delivery" }, ["delivery 1", "delivery 2"]],
    [{ of: "documents", kind: "secret" }, ["secret 1"]],
    [{ of: "documents", kind: "recovered" }, []],
    [{ of: "events", after: 2, limit: 2 }, ["3", "4"]],
    [{ of: "events", after: 0, limit: 9, pool: POOL, since: 102 }, ["3", "4"]],
    [{ of: "events", after: 0, limit: 9, pool: "pool/other" }, ["5"]],
  ];
  const keysOf = ({
    pools = [],
    leases = [],
    offers = [],
    documents = [],
    events = [],
    active = [],
  }: Rows): string[] => [
    ...[...active, ...pools.map(({ name }) => name), ...leases.map(({ uid }) => uid)],
    ...[
      ...offers.map(({ owner, program }) => `${owner} ${program}`),
      ...documents.map(({ kind, key }) => `${kind} ${key}`),
    ],
    ...events.map(({ id }) => String(id)),
  ];

  test("each finds its rows, alone", async () => {
    const store = await setUp();
    for (const [query, expected, at = 150] of cases) {
      now = at;
      const found = keysOf(await find(store, query));
      expect(Array.isArray(expected) ? found : new Set(found), JSON.stringify(query, text)).toEqual(expected);
      expect(found.length, `repeated rows of ${query.of}`).toBe(new Set(found).size);
    }
  });

  test("the oldest of those that are due come first", async () => {
    const store = await setUp();
    now = 900;
    const found = keysOf(await find(store, { of: "due", pool: POOL, limit: 1 }));
    expect(found).toContain("c");
    expect(found).not.toContain("b");
  });

  test("all of them together find the same rows; also when they are asked later", async () => {
    const store = await setUp();
    const timeless = cases.filter(([, , at]) => at === undefined);
    const expected = new Set(timeless.flatMap(([, keys]) => [...keys]));
    const queries = timeless.map(([query]) => query);
    now = 150;
    const tx = await store.begin(queries);
    for (const rows of [tx.rows, await tx.load(queries)]) {
      expect(new Set(keysOf(rows))).toEqual(expected);
    }
    await tx.rollBack();
  });

  test("free ranges come by query", async () => {
    const store = await setUp();
    const ask = (from: bigint, limit: number, zone: "a" | "r" = "a", pool = POOL): Query => ({
      ...{ of: "free", pool, zone, from, limit },
    });
    const asked = [
      ask(0n, 2),
      ask(10n, 9),
      ask(15n, 1),
      ask(16n, 1),
      ask(80n, 9),
      ask(0n, 9, "r"),
      ask(0n, 9, "a", "pool/other"),
    ];
    const { free: answers } = await find(store, ...asked);
    expect(answers!.map(({ query }) => query)).toEqual(asked);
    expect(answers!.map(({ rows }) => rows.map(({ first, last }) => `${first}-${last}`))).toEqual([
      ["0-9", "11-15"],
      ["11-15", "64-79"],
      ["11-15"],
      ["64-79"],
      [],
      ["100-200"],
      ["1-3"],
    ]);
  });
}

const text = (_key: string, value: unknown): unknown => (typeof value === "bigint" ? String(value) : value);

function guardContract({ guardsConflict }: EngineUnderTest, open: Open): void {
  const http = [{ protocol: "tcp" as const, port: 80 }];
  const held = leaseRow("held", 1n, { names: ["n"] });
  const shared = leaseRow("shared", 2n, { sharingKey: "k", ports: http });
  const seconds: [what: string, writes: Writes][] = [
    ["a value", { leases: [leaseRow("x", 1n)] }],
    ["a value, in a block that ends with it", { leases: [leaseRow("x", [0n, 1n])] }],
    ["a name", { leases: [leaseRow("x", 5n, { names: ["m", "n"] })] }],
    ["a name, in another pool", { leases: [leaseRow("x", 5n, { pool: "pool/other", names: ["n"] })] }],
    ["a port of a shared value", { leases: [leaseRow("x", 2n, { sharingKey: "k", ports: http })] }],
    ["a free range that is cut", { gone: { free: [free(3n, 3n)] } }],
  ];
  test.each(seconds)("%s cannot be given twice, and nothing is written", async (_what, writes) => {
    const store = await open();
    await write(store, { leases: [held, shared], events: [eventOf(held)] });
    const fine = leaseRow("fine", 9n);
    const error = await write(store, {
      ...writes,
      leases: [fine, ...(writes.leases ?? [])],
      events: [eventOf(fine)],
    }).catch((error: unknown) => error);
    if (guardsConflict) expect(error).toBeInstanceOf(Conflict);
    else expect(error).toMatchObject({ code: "STORE_CORRUPT" });
    expect(await find(store, { of: "lease", uid: "fine" })).toEqual({});
    expect(await headOf(store)).toMatchObject({ version: 1, lastEvent: 1 });
  });

  const again: [what: string, leases: [LeaseRow, LeaseRow | undefined][], next: LeaseRow][] = [
    [
      "after its lease ended",
      [[held, { ...held, endedAt: 5, endReason: "released" }]],
      leaseRow("x", 1n, { names: ["n"] }),
    ],
    ["after its lease was deleted", [[held, undefined]], leaseRow("x", 1n, { names: ["n"] })],
    ["after its lease moved away", [[held, leaseRow("held", 7n)]], leaseRow("x", 1n, { names: ["n"] })],
    ["if it is shared under the same key", [], leaseRow("x", 2n, { sharingKey: "k" })],
    ["in another pool", [], leaseRow("x", 1n, { pool: "pool/other" })],
  ];
  test.each(again)("a value can be given again %s", async (_what, before, next) => {
    const store = await open();
    await write(store, { leases: [held, shared] });
    await write(store, { leases: [...before, next] });
    expect(await find(store, { of: "lease", uid: "x" })).toEqual({ leases: [next] });
  });

  test("two leases swap values and names in one commit", async () => {
    const store = await open();
    const other = leaseRow("other", 3n, { names: ["m"] });
    await write(store, { leases: [held, other] });
    await write(store, {
      leases: [
        [held, { ...held, ranges: other.ranges, names: ["m"] }],
        [other, { ...other, ranges: held.ranges, names: ["n"] }],
      ],
    });
    const found = await find(store, { of: "name", name: "n" }, { of: "values", pool: POOL, first: 1n, last: 1n });
    expect(new Set(found.leases!.map(({ uid }) => uid))).toEqual(new Set(["other"]));
  });
}

function headContract({ sql }: EngineUnderTest, open: Open): void {
  test("of a new store", async () => {
    const [store, other] = [await open(), await open()];
    const head = await headOf(store);
    expect(head).toEqual({
      ...{ id: expect.stringMatching(/^[0-9a-f]{32}$/), layout: 1, version: 0 },
      ...{ epoch: "", epochSince: 0, lastEvent: 0, at: 0 },
    });
    expect(await headOf(other)).toEqual(head);
  });

  test("versions and event ids have no gaps, whichever connection commits", async () => {
    const [one, two] = [await open(), await open()];
    const lease = leaseRow("a", 1n);
    const commits = [
      await write(one, { events: [eventOf(lease), eventOf(lease)] }),
      await write(two, { events: [eventOf(lease)] }, ["pool/q"]),
      await write(one, { offers: [offerRow("x")] }),
      await write(two, { isVersion: true, documents: [{ kind: "delivery", key: "1", value: "" }] }, []),
      await write(one, { events: [eventOf(lease)] }),
    ];
    expect(commits.map(({ version }) => version)).toEqual([1, 2, 2, 3, 4]);
    expect(commits.map(({ events }) => events.map(({ id }) => id))).toEqual([[1, 2], [3], [], [], [4]]);
    expect(await headOf(two)).toMatchObject({ version: 4, lastEvent: 4, epoch: commits[4]!.epoch });
    const { events } = await find(two, { of: "events", after: 0, limit: 9 });
    expect(events).toEqual(commits.flatMap(({ events }) => events));
  });

  test("a second with commits begins an epoch, with the first version in it", async () => {
    let now = 1_000_000;
    const clock = () => now;
    const [one, two] = [await open(undefined, { clock }), await open(undefined, { clock })];
    const made: Commit[] = [];
    for (const [after, store] of [0, EPOCH_MS - 1, 1, 0, 5 * EPOCH_MS, 10].map(
      (ms, i) => [ms, i % 2 ? one : two] as const,
    )) {
      now += after;
      made.push(await write(store, { isVersion: true, nextEpoch: `e${made.length}` }));
    }
    expect(made.map(({ epoch }) => epoch)).toEqual(["e0", "e0", "e2", "e2", "e4", "e4"]);
    const epochAt = async (version: number) => (await find(one, { of: "epoch", version })).epochs;
    expect(await epochAt(0)).toBeUndefined();
    expect(await epochAt(2)).toEqual([{ first: 1, tag: "e0" }]);
    expect(await epochAt(4)).toEqual([{ first: 3, tag: "e2" }]);
    expect(await epochAt(99)).toEqual([{ first: 5, tag: "e4" }]);
  });

  test("fields are replaced, and epochs begin anew", async () => {
    const store = await open();
    await write(store, { isVersion: true });
    const changes: Writes = {
      head: { id: "b".repeat(32), version: 70, epoch: "", epochSince: 0, move: '{"to":"there"}' },
      resetEpochs: { first: 0, tag: "" },
    };
    expect(await write(store, changes)).toMatchObject({ version: 70, epoch: "" });
    expect(await headOf(store)).toMatchObject({ ...changes.head, lastEvent: 0 });
    expect(await find(store, { of: "epoch", version: 99 })).toEqual({ epochs: [{ first: 0, tag: "" }] });
    await write(store, { head: { move: undefined } as never });
    expect(await headOf(store)).not.toHaveProperty("move");
    expect(await write(store, { isVersion: true, nextEpoch: "after" })).toMatchObject({ version: 71, epoch: "after" });
  });

  test("now and then, old events and epochs are deleted", async () => {
    const now = Date.now();
    const store = await open(undefined, { clock: () => now });
    await write(store, {});
    const count = (n: number) => `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${n})`;
    const columns = "(id, at, what, pool, owner, uid, lease_id, ranges)";
    const url = urlOf(store);
    await sql(
      url,
      (prefix) => `INSERT INTO ${prefix}event ${columns} ${count(KEPT_EVENTS + 30)}
      SELECT i, CASE WHEN i <= 40 THEN ${now - KEPT_MS - 1} ELSE ${now} END, 'claimed', 'p', 'o', 'u', 'u.1', '[]' FROM n`,
    );
    await sql(
      url,
      (prefix) => `INSERT INTO ${prefix}epoch (first, tag) ${count(KEPT_EPOCHS + 3)} SELECT i, 'e' FROM n`,
    );
    await sql(url, (prefix) => `UPDATE ${prefix}store SET last_event = ${KEPT_EVENTS + 30}`);
    const oldest = async (): Promise<unknown> => {
      const { events, epochs } = await find(store, { of: "events", after: 0, limit: 1 }, { of: "epoch", version: 5 });
      return [events![0]!.id, epochs?.[0]?.first];
    };
    vi.spyOn(Math, "random").mockReturnValue(0.9);
    await write(store, { events: [{ ...eventOf(leaseRow("a", 1n)), at: now }], isVersion: false });
    expect(await oldest()).toEqual([1, 5]);
    vi.spyOn(Math, "random").mockReturnValue(0);
    await write(store, { events: [{ ...eventOf(leaseRow("a", 1n)), at: now }], isVersion: false });
    expect(await oldest()).toEqual([41, 5]);
    expect((await find(store, { of: "epoch", version: 3 })).epochs).toBeUndefined();
  });
}

const urls = new WeakMap<Engine, string>();
/** The address that an engine was opened with. */
export const urlOf = (engine: Engine): string => urls.get(engine)!;
export const remember = (engine: Engine, url: string): Engine => {
  urls.set(engine, url);
  return engine;
};

function transactionContract({ hasConnections }: EngineUnderTest, open: Open): void {
  test("pools that are locked have a row from then on, and only if something was written", async () => {
    const store = await open();
    const tx = await store.begin([], [POOL, "pool/q"]);
    expect(tx.rows.pools).toEqual([poolRow(POOL), poolRow("pool/q")]);
    await tx.rollBack();
    expect(await find(store, { of: "pool", name: POOL })).toEqual({});
    await write(store, { offers: [offerRow("x")] }, [POOL, "pool/q"]);
    expect(await find(store, { of: "pool", name: POOL }, { of: "pool", name: "pool/q" })).toEqual({
      pools: [poolRow(POOL), poolRow("pool/q")],
    });
  });

  test("a rolled back transaction leaves nothing; to end one twice does nothing", async () => {
    const store = await open();
    const tx = await store.begin([], [POOL]);
    await tx.rollBack();
    await tx.rollBack();
    const committed = await store.begin([], [POOL]);
    await committed.commit(changesOf({ leases: [leaseRow("a", 1n)] }));
    await committed.rollBack();
    expect(await find(store, { of: "lease", uid: "a" })).toEqual({ leases: [leaseRow("a", 1n)] });
  });

  test.runIf(hasConnections)("of two that lock a pool, the second sees what the first wrote", async () => {
    const [one, two] = [await open(), await open()];
    const lookup: Query[] = [{ of: "values", pool: POOL, first: 0n, last: 9n }];
    const first = await one.begin(lookup, [POOL]);
    const second = beginSoon(two, lookup, [POOL, "pool/q"]);
    await first.commit(
      changesOf({ leases: [leaseRow("a", 1n)], pools: [poolRow(POOL, { used: 1 })], isVersion: true }),
    );
    const tx = await second;
    expect(tx.rows).toEqual({ leases: [leaseRow("a", 1n)], pools: [poolRow(POOL, { used: 1 }), poolRow("pool/q")] });
    expect(tx.head.version).toBe(1);
    await tx.rollBack();
  });

  test.runIf(hasConnections)("a read is of one moment, and waits for nothing", async () => {
    const [one, two] = [await open(), await open()];
    const lookup: Query[] = [{ of: "values", pool: POOL, first: 0n, last: 9n }];
    const writing = await one.begin([], [POOL]);
    const reading = await two.begin(lookup);
    await writing.commit(changesOf({ leases: [leaseRow("a", 1n)] }));
    expect(reading.rows).toEqual({});
    expect(await reading.load(lookup)).toEqual({});
    await reading.rollBack();
    expect(await find(two, ...lookup)).toEqual({ leases: [leaseRow("a", 1n)] });
  });

  test.runIf(hasConnections)("many at once count without a loss", async () => {
    const crowd = await Promise.all([1, 2, 3, 4].map(() => open()));
    await write(crowd[0]!, { pools: [poolRow()] });
    const count = async (store: Engine): Promise<void> => {
      const tx = await beginSoon(store, [{ of: "pool", name: POOL }], [POOL]);
      const [row] = tx.rows.pools!;
      await tx.commit(changesOf({ pools: [{ ...row!, used: row!.used + 1 }], isVersion: true }));
    };
    await Promise.all(
      crowd.map(async (store) => {
        for (let i = 0; i < 10; i++) await count(store);
      }),
    );
    expect((await find(crowd[0]!, { of: "pool", name: POOL })).pools).toEqual([poolRow(POOL, { used: 40 })]);
    expect((await headOf(crowd[1]!)).version).toBe(40);
  });
}

/** Begins as soon as the lock is free. */
export async function beginSoon(engine: Engine, queries: Query[], locks: string[]): Promise<Transaction> {
  for (;;) {
    try {
      return await engine.begin(queries, locks);
    } catch (error) {
      if (!(error instanceof Conflict)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1 + Math.random() * 10));
    }
  }
}

function corruptContract({ sql }: EngineUnderTest, open: Open, url: () => string): void {
  const uid: Query = { of: "lease", uid: "full" };
  const pool: Query = { of: "pool", name: "pool/full" };
  const damages: [set: string, query: Query, column: string][] = [
    ["lease SET owner = 'a' || chr(7)", uid, "owner"],
    ["lease SET ranges = '[\"1-2\"]'", uid, "ranges"],
    [`lease SET ranges = '["${"f".repeat(32)}-${"0".repeat(32)}"]'`, uid, "ranges"],
    ["lease SET ranges = '{}'", uid, "ranges"],
    ["lease SET state = 'lost'", uid, "state"],
    ["lease SET ports = '[\"tcp/65536\"]'", uid, "ports"],
    ['lease SET tenant = \'{"org":"a"}\'', uid, "tenant"],
    ["lease SET labels = '[1]'", uid, "labels"],
    ["lease SET created_at = 9223372036854775807", uid, "created_at"],
    ["lease SET pool = 'a b'", uid, "pool"],
    ["pool SET spec = '{}'", pool, "spec"],
    ["pool SET opener = '$(id)'", pool, "opener"],
    ["offer SET after_lease = '[\"; rm\"]'", { of: "offersOf", owner: fullOffer.owner }, "after_lease"],
    ["free_range SET first = '12'", { of: "free", pool: POOL, zone: "a", from: 0n, limit: 1 }, "first"],
    ["event SET what = 'lost'", { of: "events", after: 0, limit: 1 }, "what"],
    ["store SET epoch = ' '", { of: "pools", prefix: "", after: "", limit: 1 }, "epoch"],
  ];
  test.each(damages)("UPDATE %s: the row is refused", async (set, query, column) => {
    const store = await open();
    await write(store, {
      ...{ leases: [fullLease], pools: [fullPool], offers: [fullOffer], events: [eventOf(fullLease)] },
      free: [free(1n, 2n)],
    });
    await find(store, query);
    await sql(url(), (prefix) => `UPDATE ${prefix}${set.replace("chr(7)", "'\u0007'")}`);
    const table = set.split(" ")[0]!;
    await expect(find(store, query)).rejects.toMatchObject({
      code: "STORE_CORRUPT",
      message: expect.stringMatching(
        new RegExp(`of the table ${table} is not valid \\(column ${column}\\)|out of range`),
      ),
    });
    await expect((async () => store.begin([query], []))()).rejects.toMatchObject({ code: "STORE_CORRUPT" });
  });
}
