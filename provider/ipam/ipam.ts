import { isOverlayError, OverlayError } from "../errors";
import { StoreAdmin } from "./admin";
import { change, close, release, touch } from "./decide/change";
import { PAGE } from "./decide/free-space";
import { claim, offer } from "./decide/grant";
import { importLeases } from "./decide/import";
import { DUE, uidOf } from "./decide/lease";
import { withdraw } from "./decide/offers";
import { specOf } from "./decide/pools";
import * as queries from "./decide/queries";
import { portText, sharingKeyOf } from "./decide/rows";
import type { State } from "./decide/state";
import { epochOf, findSeen } from "./identity";
import type { Store } from "./interface";
import type { IpamSettings, Session } from "./session";
import type { Commit, Query } from "./store/store";
import { keyRing, newSecret, openToken, STORED_KEYS, tokenOf } from "./token";
import type {
  ChangeOptions,
  Changes,
  Condition,
  EventPage,
  EventSelector,
  ExistingLease,
  ExpectedToken,
  Extent,
  ImportResult,
  Lease,
  LeaseFilter,
  LeaseSelector,
  OfferRequest,
  PoolInfo,
  PoolSelector,
  PoolSpec,
  Request,
  StoreIdentity,
  StoreInfo,
  TokenClaims,
  Usage,
} from "./types";

/** An up needs its offers only from its check to its claim. Seconds. */
const UP_OFFER_TTL = 600;

/** Allocates values to owners, on a store that this process has opened. Each operation names the locks and rows of a decision in `decide/`. */
export class LocalIpam implements Store {
  readonly admin: StoreAdmin;
  readonly #session: Session;

  constructor(session: Session) {
    this.#session = session;
    this.admin = new StoreAdmin(session);
  }

  session(options: Partial<IpamSettings>): LocalIpam {
    return new LocalIpam(this.#session.another(options));
  }

  end(): Promise<void> {
    return this.#session.end();
  }

  describe(seen?: StoreIdentity): Promise<StoreInfo> {
    const { engine, settings } = this.#session;
    const found: Query[] = seen ? [epochOf(seen), { of: "documents", kind: "recovered" }] : [];
    const whyNoOffers = engine.readOnly
      ? "the store is read-only"
      : settings.offerTtl === 0
        ? "overlay:offerTtl is 0"
        : undefined;
    return this.#session.read(found, (_state, head, rows) => {
      const { id, version, epoch } = head;
      const recovered = (rows.documents ?? []).map(({ key }) => key);
      return {
        ...{ id, version, epoch },
        ...(whyNoOffers !== undefined && { whyNoOffers }),
        ...(seen && { seen: findSeen(head, recovered, rows, seen, settings.place ?? engine.place) }),
      };
    });
  }

  async offer(request: OfferRequest): Promise<Lease> {
    const { offerTtl } = this.#session.settings;
    const ttl = request.inUp ? Math.max(offerTtl, UP_OFFER_TTL) : offerTtl;
    return (await this.#session.write([request.pool], queriesOf(request), (state) => offer(state, request), ttl))[0];
  }

  async withdraw({ pool, owner, program }: { pool: string; owner: string; program: string }): Promise<void> {
    await this.#session.write([pool], [{ of: "offersOf", owner }], (state) => withdraw(state, owner, program));
  }

  async claim(requests: Request[]): Promise<Lease[]> {
    const locks = requests.flatMap(poolsOf);
    const found = requests.flatMap((request) => queriesOf(request));
    const claims = (state: State) => requests.map((request) => claim(state, request));
    try {
      const [leases, commit] = await this.#session.write(locks, found, claims);
      return leases.map((lease) => withVersion(lease, commit));
    } catch (error) {
      if (isOverlayError(error)) this.#session.settings.observer?.claimFailed?.(requests[0]?.pool ?? "", error);
      throw error;
    }
  }

  async change(
    pool: string,
    leaseId: string,
    changes: Changes,
    { dryRun = false, onlyIf }: ChangeOptions = {},
  ): Promise<Lease> {
    const work = (state: State) => change(state, pool, leaseId, changes, { onlyIf });
    const found = leaseIn(leaseId);
    if (dryRun) return this.#session.read(found, work);
    return withVersion(...(await this.#session.write(poolsOf({ pool, ...changes }), found, work)));
  }

  async close(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<void> {
    await this.#session.write([pool], leaseIn(leaseId), (state) => close(state, pool, leaseId, { onlyIf }));
  }

  async release(
    pool: string,
    leaseId: string,
    { onlyIf, program }: { onlyIf?: Condition; program?: string } = {},
  ): Promise<boolean> {
    const work = (state: State) => release(state, pool, leaseId, { onlyIf }, program);
    return (await this.#session.write([pool], leaseIn(leaseId), work))[0];
  }

  async touch(pool: string, leaseId: string, { ttl }: { ttl?: number } = {}): Promise<void> {
    await this.#session.write([pool], leaseIn(leaseId), (state) => touch(state, pool, leaseId, ttl));
  }

  async importLeases(leases: ExistingLease[], { dryRun = false }: { dryRun?: boolean } = {}): Promise<ImportResult> {
    const work = (state: State) => importLeases(state, leases);
    if (dryRun) return this.#session.read([], work);
    return (await this.#session.write(leases.flatMap(poolsOf), [], work))[0];
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    const ring = keyRing(this.#session.settings.tokenKeys ?? (await this.#storedKeys()));
    return leases.map((lease) => tokenOf(lease, ring));
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<TokenClaims> {
    const keys = this.#session.settings.tokenKeys ?? (await this.admin.findSecret(STORED_KEYS));
    return openToken(token, keys === undefined ? undefined : keyRing(keys), expected);
  }

  /** Made with the first call that needs them. */
  async #storedKeys(): Promise<string> {
    const kept = await this.admin.findSecret(STORED_KEYS);
    return kept ?? this.admin.replaceSecret(STORED_KEYS, (other) => other ?? newSecret());
  }

  find(by: LeaseSelector): Promise<Lease | undefined> {
    const session = this.#session;
    if ("program" in by)
      return session.find([{ of: "offersOf", owner: by.owner }], (state) =>
        queries.findOfferOf(state, by.owner, by.program),
      );
    if (!("pool" in by))
      return session.find([{ of: "name", name: by.name }], (state) => queries.findByName(state, by.name));
    if ("endedUid" in by)
      return session.find([{ of: "lease", uid: by.endedUid }], (state) =>
        queries.findEnded(state, by.pool, by.endedUid),
      );
    return session.find([{ of: "pool", name: by.pool }], (state) => queries.find(state, by.pool, by));
  }

  leases(pool: string, filter: LeaseFilter = {}): Promise<Lease[]> {
    const list = (state: State) => queries.listLeases(state, pool, filter);
    const found: Query[] = [{ of: "pool", name: pool }];
    return filter.owner === undefined ? this.#session.read(found, list) : this.#session.find(found, list);
  }

  pools(selector: PoolSelector = {}): Promise<PoolInfo[]> {
    const session = this.#session;
    if ("endingWith" in selector) {
      const { endingWith: name } = selector;
      return session.read([{ of: "pool", name }], (state) => queries.poolsEndingWith(state, name));
    }
    if ("name" in selector) {
      const { name, withUsage } = selector;
      const found: Query[] = [{ of: "pool", name }];
      const toInfo = (spec: PoolSpec | undefined, usage?: Usage) => (spec ? [{ spec, ...(usage && { usage }) }] : []);
      if (!withUsage) return session.find(found, (state) => toInfo(specOf(state, name)));
      return session.read(found, (state) => toInfo(specOf(state, name), queries.usage(state, name)));
    }
    const { prefix = "", withUsage, ...page } = selector;
    return session.read([], (state) =>
      withUsage
        ? queries.listUsages(state, prefix, page)
        : queries.listPools(state, prefix, page).map((spec) => ({ spec })),
    );
  }

  freeExtents(pool: string, options: { range?: Extent; limit?: number } = {}): Promise<Extent[]> {
    return this.#session.read([{ of: "pool", name: pool }], (state) => queries.listFree(state, pool, options));
  }

  events(selector: EventSelector = {}): Promise<EventPage> {
    const { limit = 1000 } = selector;
    if ("pool" in selector) {
      const { pool, since = 0 } = selector;
      const found: Query = { of: "events", after: 0, limit, pool, since };
      return this.#session.read([found], (_state, { lastEvent: last }, { events = [] }) => ({ events, last }));
    }
    const { after } = selector;
    const found: Query[] = after === undefined ? [] : [{ of: "events", after, limit }];
    return this.#session.read(found, (_state, { lastEvent: last }, { events = [] }) => {
      if (after === undefined || after === last) return { events: [], last };
      const isLost = events[0]?.id !== after + 1 && !(events[0] && this.#session.engine.hasEventGaps);
      if (isLost || after > last) throw eventsLostError(after, last);
      return { events, last };
    });
  }
}

const withVersion = (lease: Lease, commit: Commit | undefined): Lease =>
  commit ? { ...lease, version: { version: commit.version, epoch: commit.epoch } } : lease;

/** The pools that a request locks. */
const poolsOf = ({ pool, childPool }: { pool: string; childPool?: PoolSpec }): string[] =>
  childPool ? [pool, childPool.name] : [pool];

const leaseIn = (leaseId: string): Query[] => [{ of: "lease", uid: uidOf(leaseId) }];

/** What a request concerns, as far as that is known before the decision. */
function queriesOf(request: Request): Query[] {
  const { pool, owner, formerOwner, values, names = [], childPool, ports = [] } = request;
  const key = sharingKeyOf(request);
  const owners = [owner, ...(formerOwner === undefined ? [] : [formerOwner])];
  return [
    { of: "due", pool, limit: DUE },
    { of: "offersIn", pool },
    ...owners.map((each): Query => ({ of: "owner", pool, owner: each })),
    { of: "offersOf", owner },
    ...(values ?? []).map(({ first, last }): Query => ({ of: "values", pool, first, last })),
    ...(values?.map(({ last }) => last) ?? [0n]).map(
      (from): Query => ({ of: "free", pool, zone: "a", from, limit: PAGE }),
    ),
    ...(values && ports.length > 0
      ? values.map(({ last }): Query => ({ of: "ports", pool, value: last, ports: ports.map(portText) }))
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
