import type { StoreAdmin } from "./admin";
import type { IpamSettings } from "./session";
import type {
  ChangeOptions,
  Changes,
  Condition,
  Event,
  EventPage,
  EventSelector,
  ExistingLease,
  ExpectedToken,
  ImportResult,
  Lease,
  LeaseFilter,
  LeaseSelector,
  LoggedEvent,
  OfferRequest,
  PoolInfo,
  PoolList,
  PoolSelector,
  PoolSpec,
  Request,
  StoreIdentity,
  StoreInfo,
  TokenClaims,
  Usage,
  ValueRange,
} from "./types";

/** Allocates values to owners, on a store: in this process, or by a service. Errors are OverlayError. */
export interface Ipam {
  /** Which store it is, and what this user may not do there. `STORE_LOST` unless it is the one that was `seen`, with all commits up to then. */
  describe(seen?: StoreIdentity): Promise<StoreInfo>;

  /**
   * What the owner holds, or else what its next claim gets: written as shown to the program of the request. If what was shown earlier cannot be
   * given, a preview gets another value and a warning, an up gets `PLAN_STALE`.
   */
  offer(request: OfferRequest): Promise<Lease>;
  /** After a preview that can show no value for this owner: the program was promised nothing. */
  withdraw(offer: { pool: string; owner: string; program: string }): Promise<void>;
  /** Commits all of these leases durably, with new lease ids, or none. With `values`: exactly these values, or `PLAN_STALE`. */
  claim(requests: Request[]): Promise<Lease[]>;
  /** Changes exactly this lease; `LEASE_FENCED` when it is no longer current. `dryRun`: only checks it. `onlyIf`: `LEASE_CHANGED` otherwise. */
  change(pool: string, leaseId: string, changes: Changes, options?: ChangeOptions): Promise<Lease>;
  /** Before a delete: refuses claims in the child pool from now on; `POOL_IN_USE` with its leases if it has any. */
  close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void>;
  /** false: not the current lease, or it does not meet `onlyIf`; nothing was changed. `program`: of the run, whose own offers stay. */
  release(pool: string, leaseId: string, options?: { onlyIf?: Condition; program?: string }): Promise<boolean>;
  /** A heartbeat: sets `lastSeen`; a lease that expires ends `ttl` seconds from now. Not in the history. */
  touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void>;
  /** Adds leases that exist in Pulumi's state or on hosts; with a conflict, none of them. */
  importLeases(leases: ExistingLease[], options?: { dryRun?: boolean }): Promise<ImportResult>;

  /** For each of these leases on addresses, the token that lets its bearer use it. */
  signTokens(leases: Lease[]): Promise<string[]>;
  /** What a token permits. `TOKEN_FORMAT`, `TOKEN_SIGNATURE`, `TOKEN_RUNNER`, `TOKEN_EXPIRED`; whether the lease is held is not checked. */
  openToken(token: string, expected?: ExpectedToken): Promise<TokenClaims>;

  // Reads. They do not return leases that have expired.

  find(selector: LeaseSelector): Promise<Lease | undefined>;
  /** Offers included, in the order of their values. */
  leases(pool: string, filter?: LeaseFilter): Promise<Lease[]>;
  /** By name. */
  pools(selector?: PoolSelector): Promise<PoolInfo[]>;
  /** What the pool can give to a request without values, in order, up to `limit` ranges; not what is quarantined. */
  freeRanges(pool: string, options?: { range?: ValueRange; limit?: number }): Promise<ValueRange[]>;
  /** In the order of their commits. `EVENTS_LOST` if some events after the id `after` are no longer kept. */
  events(selector?: EventSelector): Promise<EventPage>;
}

/** An open store. */
export interface Store extends Ipam {
  /** `ACCESS_DENIED` if the store is a service: it is administered where it runs. */
  readonly admin: StoreAdmin;
  /** The same store for another user, whose name is in the history of its changes. Its `end` does not close the store. */
  session(options: Partial<IpamSettings>): Store;
  end(): Promise<void>;
}

// Shorthands for what is asked of a store most often.

export const claimOne = async (ipam: Pick<Ipam, "claim">, request: Request): Promise<Lease> =>
  (await ipam.claim([request]))[0]!;

export const findSpec = async (ipam: Pick<Ipam, "pools">, name: string): Promise<PoolSpec | undefined> =>
  (await ipam.pools({ name }))[0]?.spec;

export const listSpecs = async (ipam: Pick<Ipam, "pools">, list: PoolList = {}): Promise<PoolSpec[]> =>
  (await ipam.pools(list)).map(({ spec }) => spec);

export const findUsage = async (ipam: Pick<Ipam, "pools">, name: string): Promise<Usage | undefined> =>
  (await ipam.pools({ name, withUsage: true }))[0]?.usage;

/** Of all pools whose name begins so, by name. */
export const listUsages = async (ipam: Pick<Ipam, "pools">, prefix: string): Promise<Map<string, Usage>> =>
  new Map((await ipam.pools({ prefix, withUsage: true })).map(({ spec, usage }) => [spec.name, usage!]));

/** Entries of a list that a service answers at most: one takes it less than 50 ms. */
export const PAGE = 300;

/** Oldest first, from `since` on, read in pages. */
export async function historyOf(ipam: Pick<Ipam, "events">, pool: string, since = 0): Promise<Event[]> {
  const found: LoggedEvent[] = [];
  for (let page = PAGE; page >= PAGE; ) {
    const { events } = await ipam.events({ pool, since, after: found.at(-1)?.id ?? 0, limit: PAGE });
    found.push(...events);
    page = events.length;
  }
  return found;
}
