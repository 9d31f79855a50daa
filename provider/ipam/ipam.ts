import { isOverlayError, OverlayError } from "../errors";
import { StoreAdmin } from "./admin";
import { change, close, release, touch } from "./decide/change";
import { claim, offer } from "./decide/grant";
import { importLeases } from "./decide/import";
import { DUE } from "./decide/lease";
import { withdraw } from "./decide/offers";
import { specOf } from "./decide/pools";
import * as queries from "./decide/queries";
import { portText, sharingKeyOf } from "./decide/rows";
import type { State } from "./decide/state";
import { epochOf, findSeen, type SeenEpoch } from "./identity";
import type { Store } from "./interface";
import type { IpamSettings, Session } from "./session";
import type { Commit, Query } from "./store/store";
import { keyRing, newSecret, openToken, STORED_KEYS, tokenOf } from "./token";
import type {
  AmendOptions,
  By,
  Changes,
  Condition,
  Event,
  EventPage,
  ExistingLease,
  ExpectedToken,
  Extent,
  Grant,
  ImportOptions,
  ImportResult,
  Lease,
  LeaseFilter,
  OfferRequest,
  PoolPage,
  PoolSpec,
  Request,
  StoreIdentity,
  StoreVersion,
  Usage,
} from "./types";

/** An up needs its offers only from its check to its claim. Seconds. */
const UP_OFFER_TTL = 600;

/** Allocates values to owners, on a store. Errors are OverlayError. */
export class LocalIpam implements Store {
  /** The store itself refuses what a user of it may not write. */
  readonly whyNoClaims = undefined;
  readonly admin: StoreAdmin;
  readonly #session: Session;
  readonly #versions = new WeakMap<Lease, StoreVersion>();

  constructor(session: Session) {
    this.#session = session;
    this.admin = new StoreAdmin(session);
  }

  session(options: Partial<IpamSettings>): LocalIpam {
    return new LocalIpam(this.#session.another(options));
  }

  /** Why a preview can show no new values; undefined when it can. */
  get whyNoOffers(): string | undefined {
    if (this.#session.engine.readOnly) return "the store is read-only";
    return this.#session.settings.offerTtl === 0 ? "overlay:offerTtl is 0" : undefined;
  }

  /**
   * What the owner holds, or else what its next claim gets: written as shown to the program of the request. What was shown earlier and cannot be
   * given: a preview gets another value and a warning, an up gets `PLAN_STALE`.
   */
  async offer(request: OfferRequest): Promise<Lease> {
    const { offerTtl } = this.#session.settings;
    const ttl = request.inUp ? Math.max(offerTtl, UP_OFFER_TTL) : offerTtl;
    return (await this.#session.write([request.pool], queriesOf(request), (state) => offer(state, request), ttl))[0];
  }

  /** After a preview that can show no value for this owner: the program was promised nothing. */
  async withdraw(owner: string, program: string, pool: string): Promise<void> {
    await this.#session.write([pool], [{ of: "offersOf", owner }], (state) => withdraw(state, owner, program));
  }

  /** Commits a lease durably, with a new lease id. With `want`: exactly these values, or `PLAN_STALE`. */
  async claim(request: Request): Promise<Lease> {
    return (await this.claimAll([request]))[0]!;
  }

  /** Commits all of these claims, or none. */
  async claimAll(requests: Request[]): Promise<Lease[]> {
    const locks = requests.flatMap(({ pool, childPool }) => [pool, ...(childPool ? [childPool.name] : [])]);
    const found = requests.flatMap((request) => queriesOf(request));
    const claims = (state: State) => requests.map((request) => claim(state, request));
    try {
      const [leases, commit] = await this.#session.write(locks, found, claims);
      for (const lease of leases) if (commit) this.#versions.set(lease, versionIn(commit));
      return leases;
    } catch (error) {
      if (isOverlayError(error)) this.#session.settings.observer?.claimFailed?.(requests[0]?.pool ?? "", error);
      throw error;
    }
  }

  /** Of a lease that `claim` or `amend` has returned: the version that its commit made. */
  versionOf(lease: Lease): StoreVersion | undefined {
    return this.#versions.get(lease);
  }

  /** Changes exactly this lease; `LEASE_FENCED` when it is no longer current. `dryRun`: only checks it. */
  async amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    { dryRun = false, onlyIf }: AmendOptions = {},
  ): Promise<Lease> {
    const work = (state: State) => change(state, pool, leaseId, changes, { onlyIf });
    const found: Query[] = [{ of: "lease", uid: leaseId.split(".")[0]! }];
    if (dryRun) return this.#session.read(found, work);
    const locks = [pool, ...(changes.childPool ? [changes.childPool.name] : [])];
    const [lease, commit] = await this.#session.write(locks, found, work);
    if (commit) this.#versions.set(lease, versionIn(commit));
    return lease;
  }

  async close(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<void> {
    await this.#session.write([pool], [], (state) => close(state, pool, leaseId, { onlyIf }));
  }

  /** `program`: that of the run, whose own offers stay. */
  async release(
    pool: string,
    leaseId: string,
    { onlyIf, program }: { onlyIf?: Condition; program?: string } = {},
  ): Promise<boolean> {
    return (await this.#session.write([pool], [], (state) => release(state, pool, leaseId, { onlyIf }, program)))[0];
  }

  async touch(pool: string, leaseId: string, { ttl }: { ttl?: number } = {}): Promise<void> {
    await this.#session.write([pool], [], (state) => touch(state, pool, leaseId, ttl));
  }

  async importLeases(
    leases: ExistingLease[],
    { missing = [], dryRun = false }: ImportOptions = {},
  ): Promise<ImportResult> {
    const work = (state: State) => importLeases(state, leases, missing);
    if (dryRun) return this.#session.read([], work);
    const locks = [
      ...leases.flatMap(({ pool, childPool }) => [pool, ...(childPool ? [childPool.name] : [])]),
      ...missing.flatMap(({ pool, childPool }) => [pool, childPool.name]),
    ];
    return (await this.#session.write(locks, [], work))[0];
  }

  // Reads

  find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => queries.find(state, pool, by));
  }

  endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#session.read([{ of: "lease", uid }], (state) => queries.findEnded(state, pool, uid));
  }

  holder(name: string): Promise<Lease | undefined> {
    return this.#session.read([{ of: "name", name }], (state) => queries.findByName(state, name));
  }

  /** What this program was shown for the owner, in any pool; also if that has expired. */
  findOffer(owner: string, program: string): Promise<Lease | undefined> {
    return this.#session.read([{ of: "offersOf", owner }], (state) => queries.findOfferOf(state, owner, program));
  }

  spec(pool: string): Promise<PoolSpec | undefined> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => specOf(state, pool));
  }

  leases(pool: string, filter: LeaseFilter = {}): Promise<Lease[]> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => queries.listLeases(state, pool, filter));
  }

  pools(prefix = "", page: PoolPage = {}): Promise<PoolSpec[]> {
    return this.#session.read([], (state) => queries.listPools(state, prefix, page));
  }

  freeExtents(pool: string, options: { within?: Extent; limit?: number } = {}): Promise<Extent[]> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => queries.listFree(state, pool, options));
  }

  usage(pool: string): Promise<Usage | undefined> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => queries.usage(state, pool));
  }

  usages(prefix: string): Promise<Map<string, Usage>> {
    return this.#session.read([], (state) => queries.usages(state, prefix));
  }

  poolsEndingWith(pool: string): Promise<{ spec: PoolSpec; held: Lease[] }[]> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => queries.poolsEndingWith(state, pool));
  }

  async history(pool: string, { after = -1, limit = 1000 }: { after?: number; limit?: number } = {}): Promise<Event[]> {
    const query: Query = { of: "events", after: 0, limit, pool, since: after + 1 };
    const { events = [] } = await this.#rows([query]);
    return events.map(({ id: _, ...event }) => event);
  }

  events({ after, limit = 1000 }: { after?: number; limit?: number }): Promise<EventPage> {
    const found: Query[] = after === undefined ? [] : [{ of: "events", after, limit }];
    return this.#session.read(found, (_state, { lastEvent: last }, { events = [] }) => {
      if (after === undefined || after === last) return { events: [], last };
      const isLost = events[0]?.id !== after + 1 && !(events[0] && this.#session.engine.hasEventGaps);
      if (isLost || after > last) throw eventsLostError(after, last);
      return { events, last };
    });
  }

  // Tokens

  async signTokens(leases: Lease[]): Promise<string[]> {
    const ring = keyRing(this.#session.settings.tokenKeys ?? (await this.#storedKeys()));
    return leases.map((lease) => tokenOf(lease, ring));
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<Grant> {
    const keys = this.#session.settings.tokenKeys ?? (await this.admin.findSecret(STORED_KEYS));
    return openToken(token, keys === undefined ? undefined : keyRing(keys), expected);
  }

  /** Made with the first call that needs them. */
  async #storedKeys(): Promise<string> {
    const kept = await this.admin.findSecret(STORED_KEYS);
    return kept ?? this.admin.replaceSecret(STORED_KEYS, (other) => other ?? newSecret());
  }

  // The store

  async identity(): Promise<StoreIdentity> {
    const { head } = await this.#rows([]);
    return { id: head.id, version: head.version, epoch: head.epoch };
  }

  /** Rejects with `STORE_LOST` unless the store is the one that was `seen`, with all commits up to then. */
  async findSeen(seen: StoreIdentity): Promise<SeenEpoch> {
    const rows = await this.#rows([epochOf(seen), { of: "documents", kind: "recovered" }]);
    const recovered = (rows.documents ?? []).map(({ key }) => key);
    return findSeen(rows.head, recovered, rows, seen, this.#session.settings.place ?? this.#session.engine.place);
  }

  end(): Promise<void> {
    return this.#session.end();
  }

  /** Rows that no decision reads. */
  #rows(found: Query[]) {
    return this.#session.read(found, (_state, head, rows) => ({ ...rows, head }));
  }
}

const versionIn = ({ version, epoch }: Commit): StoreVersion => ({ version, epoch });

/** What a request concerns, as far as that is known before the decision. */
function queriesOf(request: Request): Query[] {
  const { pool, owner, formerOwner, want, names = [], childPool, ports = [] } = request;
  const key = sharingKeyOf(request);
  const owners = [owner, ...(formerOwner === undefined ? [] : [formerOwner])];
  return [
    { of: "due", pool, limit: DUE },
    { of: "offersIn", pool },
    ...owners.map((each): Query => ({ of: "owner", pool, owner: each })),
    { of: "offersOf", owner },
    ...(want ?? []).map(({ first, last }): Query => ({ of: "values", pool, first, last })),
    ...(want && ports.length > 0
      ? want.map(({ last }): Query => ({ of: "ports", pool, value: last, ports: ports.map(portText) }))
      : []),
    ...names.flatMap((name): Query[] => [
      { of: "name", name },
      { of: "offersNamed", name },
    ]),
    ...(key === undefined ? [] : [{ of: "sharers", pool, key } as const]),
    ...(childPool ? [{ of: "offersOfPool", name: childPool.name } as const] : []),
  ];
}

const eventsLostError = (after: number, last: number): OverlayError =>
  new OverlayError(
    "EVENTS_LOST",
    after > last
      ? `There is no event ${after} in the store, whose newest one is ${last}: an older backup of it was restored.`
      : `Events after ${after} are no longer kept; the newest one is ${last}.`,
    `List all leases again, and follow the events after ${last}.`,
  );
