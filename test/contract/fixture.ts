import { parseIp, tryParseIp } from "../../provider/addressing/ip";
import { createMemoryStore } from "../../provider/pool/engines/memory/store";
import type { Operations } from "../../provider/pool/operations";
import { type Settings, StoredPool } from "../../provider/pool/pool";
import { PoolRun } from "../../provider/pool/run";
import type { Store } from "../../provider/pool/storage/store";
import type { ExistingLease, Extent, Lease, Pool, PoolSpec, Request } from "../../provider/pool/types";

/** An engine under test. */
export interface Engine {
  name: string;
  /** The URL of a new, empty store. */
  newUrl(): string;
  /** Opens the store, with the time of the given clock. A second open of the same URL is another process on the same store. */
  open(url: string, clock: () => number): Promise<Store>;
  /** Of an engine that does not open stores itself: the operations that it does on an opened one. */
  operationsOn?(store: Store, settings: Settings): Promise<Operations>;
  /** Of an engine that takes the user from elsewhere than requests: the name that the history has for it. */
  actorName?(actor: string): string;
}

/** A memory store is within one process: a second open gets the same one. */
export function memoryEngine(): Engine {
  const stores = new Map<string, Store>();
  return {
    name: "memory",
    newUrl: () => `memory:${stores.size}`,
    open: async (url, clock) => {
      const store = stores.get(url) ?? createMemoryStore(clock);
      stores.set(url, store);
      return store;
    },
  };
}

export interface Fixture {
  pool: Pool;
  store: Store;
  /** Another process on the same store. */
  another(settings?: { actor?: string }): Pool;
  /** Seconds. */
  pass(seconds: number): void;
}

export const START = Date.UTC(2030, 0, 1);

export async function createFixture(engine: Engine, settings: Partial<Settings> = {}): Promise<Fixture> {
  let now = START;
  const url = engine.newUrl();
  const [store, second] = [await engine.open(url, () => now), await engine.open(url, () => now)];
  const terms: Settings = { offerTtl: 3600, quarantine: 300, swapWait: 0.3, ...settings };
  const pass = (seconds: number) => {
    now += seconds * 1000;
  };
  if (!engine.operationsOn) {
    const another = (changes = {}) => new StoredPool(second, { ...terms, ...changes });
    return { store, pool: new StoredPool(store, terms), another, pass };
  }
  const [operations, others] = [await engine.operationsOn(store, terms), await engine.operationsOn(second, terms)];
  const poolOn = (on: Operations) => new ServedPool(on, terms, new StoredPool(store, terms));
  const another = ({ actor = "other" } = {}) => poolOn(others.session({ actor }));
  return { store, pool: poolOn(operations), another, pass };
}

/** A pool whose store has another operator: its administration is done there. */
class ServedPool extends PoolRun {
  constructor(
    operations: Operations,
    settings: Settings,
    private readonly operator: Pool,
  ) {
    super(operations, settings);
  }

  override get webhooks() {
    return this.operator.webhooks;
  }

  override fsck = (options?: { repair?: boolean }) => this.operator.fsck(options);
  override adoptIdentity = (...given: Parameters<Pool["adoptIdentity"]>) => this.operator.adoptIdentity(...given);
  override accessTokens = () => this.operator.accessTokens();
  override findAccessToken = (id: string) => this.operator.findAccessToken(id);
  override updateAccessTokens = (...given: Parameters<Pool["updateAccessTokens"]>) =>
    this.operator.updateAccessTokens(...given);
}

/** `10.0.0.0/29`, `10.0.0.2-10.0.0.9`, `10.0.0.1`, `fd00::/64`, or plain numbers `1-63`, `7`. */
export function extent(text: string): Extent {
  const [first, last = first] = text.split("-") as [string, string?];
  const point = (part: string) => (tryParseIp(part) === undefined && /^\d+$/.test(part) ? BigInt(part) : parseIp(part));
  if (!text.includes("/")) return { first: point(first), last: point(last!) };
  const [base, prefix] = text.split("/") as [string, string];
  const size = 1n << BigInt((base.includes(":") ? 128 : 32) - Number(prefix));
  return { first: parseIp(base), last: parseIp(base) + size - 1n };
}

export const extents = (...texts: string[]): Extent[] => texts.map(extent);

/** Creates a pool as users do: with a lease on an address space. */
export async function createPool(
  pool: Pool,
  spec: Omit<Partial<PoolSpec>, "extents"> & { extents: Extent[] },
): Promise<Lease> {
  const full: PoolSpec = { name: "pool/p", kind: "address", allocation: "lowest", ...spec };
  const want = full.kind === "address" ? full.extents : extents(`${full.name.length}`);
  return pool.claim({
    pool: `space/${full.kind}`,
    owner: `opener of ${full.name}`,
    type: "IPPool",
    want,
    childPool: full,
  });
}

/** A request in pool/p by this owner. */
export const by = (owner: string, more: Partial<Request> = {}): Request => ({
  pool: "pool/p",
  owner,
  type: "IPReservation",
  ...more,
});

/** A request in pool/p for these values. */
export const requestFor = (owner: string, ...values: string[]): Request => by(owner, { want: extents(...values) });

/** A lease that exists outside the store, for an import. */
export const existingLease = (
  { pool, owner, type, tenant, sharingKey, ports }: Request,
  ...values: string[]
): ExistingLease => ({
  pool,
  owner,
  type,
  want: extents(...values),
  ...(tenant && { tenant }),
  ...(sharingKey !== undefined && { sharingKey }),
  ...(ports && { ports }),
});

export const firstOf = ({ extents }: Lease): bigint => extents[0]!.first;

/** A network, with the pool of its runners. */
export const network = (
  name: string,
  cidr: string,
  more: Partial<PoolSpec> = {},
): Request & { childPool: PoolSpec } => ({
  pool: "space/default",
  owner: `network ${name}`,
  type: "OverlayNetwork",
  want: extents(cidr),
  names: [`network/${name}`],
  childPool: { name: `network/${name}`, kind: "id", extents: extents("1-63"), allocation: "lowest", ...more },
});

/** A runner, with the pool of its addresses. */
export const runner = (net: string, name: string): Request => ({
  pool: `network/${net}`,
  owner: `runner ${name}`,
  type: "RunnerSubnet",
  names: [`runner/${net}/${name}`],
  childPool: {
    name: `runner/${net}/${name}`,
    kind: "address",
    extents: extents("10.1.0.2-10.1.0.9"),
    allocation: "lowest",
  },
});

/** An address on a runner. */
export const address = (net: string, name: string, owner: string): Request => ({
  pool: `runner/${net}/${name}`,
  owner,
  type: "IPReservation",
});
