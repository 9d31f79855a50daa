import { parseIp, tryParseIp } from "../../provider/addressing/ip";
import { openIpam, type Settings } from "../../provider/ipam";
import { StoreAdmin } from "../../provider/ipam/admin";
import { claimOne } from "../../provider/ipam/interface";
import { RunPlan } from "../../provider/ipam/run-plan";
import type { ExistingLease, Ipam, Lease, PoolSpec, Request, Store, ValueRange } from "../../provider/ipam/types";

/** A run of Pulumi, its store and the administration of that as one object: operations of all, of the run first. */
export type Pool = Omit<RunPlan, "ipam"> & { readonly ipam: Store } & Omit<Store, keyof RunPlan | "session"> &
  Pick<StoreAdmin, keyof StoreAdmin> & { session(options: Parameters<Store["session"]>[0]): Pool };

export const openPool = async (
  url: string,
  { swapWait, ...settings }: Settings & { swapWait?: number },
): Promise<Pool> => poolOf(await openIpam(url, settings), swapWait);

export function poolOf(store: Store, swapWait?: number): Pool {
  const plan = new RunPlan(store, { swapWait });
  const own = { session: (options: Parameters<Store["session"]>[0]) => poolOf(store.session(options), swapWait) };
  const get = (_: unknown, key: string) => {
    const isAdministration = key === "webhooks" || key in StoreAdmin.prototype;
    const from = isAdministration ? store.admin : ([own, plan, store].find((each) => key in each) ?? {});
    const value = Reflect.get(from, key, from);
    return typeof value === "function" ? value.bind(from) : value;
  };
  return new Proxy({}, { get }) as Pool;
}

/** Settings of a process, in seconds. */
export interface Terms {
  offerTtl: number;
  quarantine: number;
  swapWait?: number;
  actor?: string;
}

/** A pool under test. */
export interface Engine {
  name: string;
  /** The URL of a new, empty store. */
  newUrl(): string;
  /** Opens the store as a process of its own. The time of the store is that of the clock. */
  open(url: string, terms: Terms, clock: () => number): Promise<Pool>;
  /** Of an engine that takes the user from elsewhere than requests: the name that the history has for it. */
  actorName?(actor: string): string;
}

let memories = 0;

/** A memory store is within one process: a second open gets the same one. */
export function memoryEngine(): Engine {
  const pools = new Map<string, Pool>();
  return {
    name: "memory",
    newUrl: () => `memory:${memories++}`,
    open: async (url, terms, clock) => {
      const pool = pools.get(url) ?? (await openPool(url, { ...terms, clock }));
      pools.set(url, pool);
      return pool;
    },
  };
}

export interface Fixture {
  pool: Pool;
  /** Another run, in another process on the same store. */
  another(settings?: { actor?: string }): Pool;
  /** Seconds. */
  pass(seconds: number): void;
  clock(): number;
}

export const START = Date.UTC(2030, 0, 1);

export async function createFixture(engine: Engine, settings: Partial<Terms> = {}): Promise<Fixture> {
  let now = START;
  const url = engine.newUrl();
  const terms: Terms = { offerTtl: 3600, quarantine: 300, swapWait: 0.3, ...settings };
  const clock = () => now;
  const [pool, second] = [await engine.open(url, terms, clock), await engine.open(url, terms, clock)];
  return {
    ...{ pool, clock },
    another: ({ actor = "other" } = {}) => second.session({ actor }),
    pass: (seconds) => {
      now += seconds * 1000;
    },
  };
}

/** `10.0.0.0/29`, `10.0.0.2-10.0.0.9`, `10.0.0.1`, `fd00::/64`, or plain numbers `1-63`, `7`. */
export function range(text: string): ValueRange {
  const [first, last = first] = text.split("-") as [string, string?];
  const point = (part: string) => (tryParseIp(part) === undefined && /^\d+$/.test(part) ? BigInt(part) : parseIp(part));
  if (!text.includes("/")) return { first: point(first), last: point(last!) };
  const [base, prefix] = text.split("/") as [string, string];
  const size = 1n << BigInt((base.includes(":") ? 128 : 32) - Number(prefix));
  return { first: parseIp(base), last: parseIp(base) + size - 1n };
}

export const ranges = (...texts: string[]): ValueRange[] => texts.map(range);

type NewPool = Omit<Partial<PoolSpec>, "ranges"> & { ranges: ValueRange[] };

/** Creates a pool as users do: with a lease on an address space. */
export const createPool = (pool: Pick<Pool, "claim">, spec: NewPool): Promise<Lease> => pool.claim(poolRequest(spec));

/** The same on a store, without a run of Pulumi. */
export const createPoolOn = (store: Ipam, spec: NewPool): Promise<Lease> => claimOne(store, poolRequest(spec));

function poolRequest(spec: NewPool): Request {
  const full: PoolSpec = { name: "pool/p", kind: "address", allocation: "lowest", ...spec };
  const values = full.kind === "address" ? full.ranges : ranges(`${full.name.length}`);
  return {
    pool: `space/${full.kind}`,
    owner: `opener of ${full.name}`,
    type: "IPPool",
    program: PROGRAM,
    values,
    childPool: full,
  };
}

/** The program of all requests that name none. */
const PROGRAM = "main";

/** A request in pool/p by this owner. */
export const by = (owner: string, more: Partial<Request> = {}): Request => ({
  pool: "pool/p",
  owner,
  type: "IPReservation",
  program: PROGRAM,
  ...more,
});

/** Requests of one program, which declares the values that they ask for. */
export const inProgram = (program: string, ...requests: Request[]): Request[] => {
  const declared = requests.flatMap(({ values = [] }) => values);
  return requests.map((request) => ({ ...request, program, declared }));
};

/** A request in pool/p for these values. */
export const requestFor = (owner: string, ...values: string[]): Request => by(owner, { values: ranges(...values) });

/** A lease that exists outside the store, for an import. */
export const existingLease = (
  { pool, owner, type, tenant, sharingKey, ports }: Request,
  ...values: string[]
): ExistingLease => ({
  pool,
  owner,
  type,
  values: ranges(...values),
  ...(tenant && { tenant }),
  ...(sharingKey !== undefined && { sharingKey }),
  ...(ports && { ports }),
});

/** A lease as reads return it. */
export const asStored = ({ version: _, ...lease }: Lease): Lease => lease;

export const firstOf = ({ ranges }: Lease): bigint => ranges[0]!.first;

/** A network, with the pool of its runners. */
export const network = (
  name: string,
  cidr: string,
  more: Partial<PoolSpec> = {},
): Request & { childPool: PoolSpec } => ({
  pool: "space/default",
  owner: `network ${name}`,
  type: "OverlayNetwork",
  program: PROGRAM,
  values: ranges(cidr),
  names: [`network/${name}`],
  childPool: { name: `network/${name}`, kind: "id", ranges: ranges("1-63"), allocation: "lowest", ...more },
});

/** A runner, with the pool of its addresses. */
export const runner = (net: string, name: string): Request => ({
  pool: `network/${net}`,
  owner: `runner ${name}`,
  type: "RunnerSubnet",
  program: PROGRAM,
  names: [`runner/${net}/${name}`],
  childPool: {
    name: `runner/${net}/${name}`,
    kind: "address",
    ranges: ranges("10.1.0.2-10.1.0.9"),
    allocation: "lowest",
  },
});

/** An address on a runner. */
export const address = (net: string, name: string, owner: string): Request => ({
  pool: `runner/${net}/${name}`,
  owner,
  type: "IPReservation",
  program: PROGRAM,
});
