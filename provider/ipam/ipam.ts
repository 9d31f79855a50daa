import { randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../errors";
import { change, close, release, touch } from "./decide/change";
import { fsck } from "./decide/fsck";
import { claim, offer } from "./decide/grant";
import { importLeases } from "./decide/import";
import { DUE } from "./decide/lease";
import { withdraw } from "./decide/offers";
import { specOf } from "./decide/pools";
import * as queries from "./decide/queries";
import { portText, sharingKeyOf } from "./decide/rows";
import type { State, Terms } from "./decide/state";
import { ANY, COMPLETE, epochOf, findSeen, type SeenEpoch } from "./identity";
import type { Ipam } from "./interface";
import { mustBeOpen } from "./move";
import type { Observer } from "./observer";
import { Queue } from "./queue";
import type { Commit, DocumentKind, Engine, Head, Query, Rows } from "./store/store";
import { type Check, type Guard, view, type Work } from "./store/transact";
import { keyRing, newSecret, openToken, STORED_KEYS, tokenOf } from "./token";
import type {
  AccessToken,
  AmendOptions,
  By,
  Changes,
  Condition,
  Event,
  EventPage,
  ExistingLease,
  ExpectedToken,
  Extent,
  Finding,
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
import { StoredWebhooks } from "./webhooks";

export interface IpamSettings {
  /** Lifetime of an offer, in seconds. */
  offerTtl: number;
  /** Seconds. */
  quarantine: number;
  /** The user, as `USER@HOST`. */
  actor?: string | undefined;
  access?: Terms["access"];
  /** Decides random choices: an operation that is repeated with it chooses the same. */
  seed?: string | undefined;
  /** Where the store is, for messages. */
  place?: string | undefined;
  /** The keys of tokens; default: the store has one. */
  tokenKeys?: string | undefined;
  observer?: Observer | undefined;
  /** A store that was moved away can be read. */
  allowMoved?: boolean | undefined;
}

/** An up needs its offers only from its check to its claim. Seconds. */
const UP_OFFER_TTL = 600;

/** What all sessions on one engine share. */
class Core implements Guard {
  readonly queue: Queue;
  /** The version of the newest commit of this process: a store without it has lost commits. */
  #seen: StoreIdentity | undefined;

  constructor(
    readonly engine: Engine,
    private readonly settings: IpamSettings,
  ) {
    this.queue = new Queue(engine, this, ({ commit }, milliseconds) => {
      settings.observer?.transaction?.("write", milliseconds / 1000);
      if (commit && commit.events.length > 0) settings.observer?.committed?.(commit.events);
    });
  }

  newCheck(): Check {
    const { settings, engine } = this;
    const seen = this.#seen;
    return {
      queries: seen ? [epochOf(seen)] : [],
      run: ({ head, rows }, isWrite) => {
        mustBeOpen(head, { isWrite, allowMoved: settings.allowMoved === true });
        if (seen) findSeen(head, [seen.id], rows, seen, engine.place);
      },
      onCommit: ({ id }, { version, epoch }) => {
        this.#seen = { id, version, epoch };
      },
    };
  }

  onConflict(): void {
    this.settings.observer?.conflict?.();
  }

  /** The identity of the store changes on purpose. */
  forget(): void {
    this.#seen = undefined;
  }
}

/** Allocates values to owners, on a store. Errors are OverlayError. */
export class LocalIpam implements Ipam {
  /** The store itself refuses what a user of it may not write. */
  readonly whyNoClaims = undefined;
  readonly webhooks = new StoredWebhooks(this);
  readonly #versions = new WeakMap<Lease, StoreVersion>();

  constructor(
    engine: Engine | LocalIpam,
    private readonly settings: IpamSettings,
  ) {
    this.core = engine instanceof LocalIpam ? engine.core : new Core(engine, settings);
    this.isSession = engine instanceof LocalIpam;
  }

  protected readonly core: Core;
  private readonly isSession: boolean;

  /** The same store for another user, whose name is in the history of its changes. Its `end` does not close the store. */
  session(options: Partial<IpamSettings>): LocalIpam {
    const { offerTtl, quarantine } = this.settings;
    const limits = {
      offerTtl: Math.min(options.offerTtl ?? offerTtl, offerTtl),
      quarantine: Math.max(options.quarantine ?? quarantine, quarantine),
    };
    return new LocalIpam(this, { ...this.settings, ...options, ...limits });
  }

  /** Why a preview can show no new values; undefined when it can. */
  get whyNoOffers(): string | undefined {
    if (this.core.engine.readOnly) return "the store is read-only";
    return this.settings.offerTtl === 0 ? "overlay:offerTtl is 0" : undefined;
  }

  /**
   * What the owner holds, or else what its next claim gets: written as shown to the program of the request. What was shown earlier and cannot be
   * given: a preview gets another value and a warning, an up gets `PLAN_STALE`.
   */
  async offer(request: OfferRequest): Promise<Lease> {
    const terms = this.#terms(request.inUp ? Math.max(this.settings.offerTtl, UP_OFFER_TTL) : this.settings.offerTtl);
    return (await this.#write([request.pool], queriesOf(request), (state) => offer(state, request), terms))[0];
  }

  /** After a preview that can show no value for this owner: the program was promised nothing. */
  async withdraw(owner: string, program: string, pool: string): Promise<void> {
    await this.#write([pool], [{ of: "offersOf", owner }], (state) => withdraw(state, owner, program));
  }

  /** Commits a lease durably, with a new lease id. With `want`: exactly these values, or `PLAN_STALE`. */
  async claim(request: Request): Promise<Lease> {
    return (await this.claimAll([request]))[0]!;
  }

  /** Commits all of these claims, or none. */
  async claimAll(requests: Request[]): Promise<Lease[]> {
    const locks = requests.flatMap(({ pool, childPool }) => [pool, ...(childPool ? [childPool.name] : [])]);
    const terms = this.#terms();
    const found = requests.flatMap((request) => queriesOf(request));
    const claims = (state: State) => requests.map((request) => claim(state, request));
    try {
      const [leases, commit] = await this.#write(locks, found, claims, terms);
      for (const lease of leases) if (commit) this.#versions.set(lease, versionIn(commit));
      return leases;
    } catch (error) {
      if (isOverlayError(error)) this.settings.observer?.claimFailed?.(requests[0]?.pool ?? "", error);
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
    if (dryRun) return this.#read(found, work);
    const locks = [pool, ...(changes.childPool ? [changes.childPool.name] : [])];
    const [lease, commit] = await this.#write(locks, found, work);
    if (commit) this.#versions.set(lease, versionIn(commit));
    return lease;
  }

  async close(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<void> {
    await this.#write([pool], [], (state) => close(state, pool, leaseId, { onlyIf }));
  }

  /** `program`: that of the run, whose own offers stay. */
  async release(
    pool: string,
    leaseId: string,
    { onlyIf, program }: { onlyIf?: Condition; program?: string } = {},
  ): Promise<boolean> {
    return (await this.#write([pool], [], (state) => release(state, pool, leaseId, { onlyIf }, program)))[0];
  }

  async touch(pool: string, leaseId: string, { ttl }: { ttl?: number } = {}): Promise<void> {
    await this.#write([pool], [], (state) => touch(state, pool, leaseId, ttl));
  }

  async importLeases(
    leases: ExistingLease[],
    { missing = [], dryRun = false }: ImportOptions = {},
  ): Promise<ImportResult> {
    const work = (state: State) => importLeases(state, leases, missing);
    if (dryRun) return this.#read([], work);
    const locks = [
      ...leases.flatMap(({ pool, childPool }) => [pool, ...(childPool ? [childPool.name] : [])]),
      ...missing.flatMap(({ pool, childPool }) => [pool, childPool.name]),
    ];
    return (await this.#write(locks, [], work))[0];
  }

  // Reads

  find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#read([{ of: "pool", name: pool }], (state) => queries.find(state, pool, by));
  }

  endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#read([{ of: "lease", uid }], (state) => queries.findEnded(state, pool, uid));
  }

  holder(name: string): Promise<Lease | undefined> {
    return this.#read([{ of: "name", name }], (state) => queries.findByName(state, name));
  }

  /** What this program was shown for the owner, in any pool; also if that has expired. */
  findOffer(owner: string, program: string): Promise<Lease | undefined> {
    return this.#read([{ of: "offersOf", owner }], (state) => queries.findOfferOf(state, owner, program));
  }

  spec(pool: string): Promise<PoolSpec | undefined> {
    return this.#read([{ of: "pool", name: pool }], (state) => specOf(state, pool));
  }

  leases(pool: string, filter: LeaseFilter = {}): Promise<Lease[]> {
    return this.#read([{ of: "pool", name: pool }], (state) => queries.listLeases(state, pool, filter));
  }

  pools(prefix = "", page: PoolPage = {}): Promise<PoolSpec[]> {
    return this.#read([], (state) => queries.listPools(state, prefix, page));
  }

  freeExtents(pool: string, options: { within?: Extent; limit?: number } = {}): Promise<Extent[]> {
    return this.#read([{ of: "pool", name: pool }], (state) => queries.listFree(state, pool, options));
  }

  usage(pool: string): Promise<Usage | undefined> {
    return this.#read([{ of: "pool", name: pool }], (state) => queries.usage(state, pool));
  }

  usages(prefix: string): Promise<Map<string, Usage>> {
    return this.#read([], (state) => queries.usages(state, prefix));
  }

  poolsEndingWith(pool: string): Promise<{ spec: PoolSpec; held: Lease[] }[]> {
    return this.#read([{ of: "pool", name: pool }], (state) => queries.poolsEndingWith(state, pool));
  }

  async history(pool: string, { after = -1, limit = 1000 }: { after?: number; limit?: number } = {}): Promise<Event[]> {
    const query: Query = { of: "events", after: 0, limit, pool, since: after + 1 };
    const { events = [] } = await this.#rows([query]);
    return events.map(({ id: _, ...event }) => event);
  }

  events({ after, limit = 1000 }: { after?: number; limit?: number }): Promise<EventPage> {
    const found: Query[] = after === undefined ? [] : [{ of: "events", after, limit }];
    return this.#view(found, (_state, { lastEvent: last }, { events = [] }) => {
      if (after === undefined || after === last) return { events: [], last };
      const isLost = events[0]?.id !== after + 1 && !(events[0] && this.core.engine.hasEventGaps);
      if (isLost || after > last) throw eventsLostError(after, last);
      return { events, last };
    });
  }

  // Tokens

  async signTokens(leases: Lease[]): Promise<string[]> {
    const ring = keyRing(this.settings.tokenKeys ?? (await this.#secret(STORED_KEYS, newSecret())));
    return leases.map((lease) => tokenOf(lease, ring));
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<Grant> {
    const keys = this.settings.tokenKeys ?? (await this.findSecret(STORED_KEYS));
    return openToken(token, keys === undefined ? undefined : keyRing(keys), expected);
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
    return findSeen(rows.head, recovered, rows, seen, this.settings.place ?? this.core.engine.place);
  }

  /** After a recovery: stacks that were deployed with the stores `from`, and have seen `version`, accept this one. */
  async adoptIdentity(from: string[], version: number, { complete = false } = {}): Promise<void> {
    this.core.forget();
    await this.#write([STORE], [], (state, head) => {
      const id = head.version === 0 && from[0] !== undefined ? from[0] : head.id;
      for (const each of from) if (each !== id) state.documents.put({ kind: "recovered", key: each, value: "" });
      const tag = complete ? COMPLETE : ANY;
      const last = Math.max(version, head.version);
      state.head = { head: { id, version: last, epoch: tag, epochSince: 0 }, resetEpochs: { first: 0, tag } };
    });
    this.core.forget();
  }

  async findSecret(name: string): Promise<string | undefined> {
    return this.document("secret", name);
  }

  replaceSecret(name: string, replace: (kept: string | undefined) => string): Promise<string> {
    return this.changeDocument("secret", name, replace);
  }

  async accessTokens(): Promise<AccessToken[]> {
    return this.documents("accessToken").then((all) => all.map(({ value }) => JSON.parse(value)));
  }

  async findAccessToken(id: string): Promise<AccessToken | undefined> {
    const text = await this.document("accessToken", id);
    return text === undefined ? undefined : JSON.parse(text);
  }

  /** Writes the token that `replace` returns for the present ones, in one transaction. `replace` may run several times, and may throw. */
  async updateAccessTokens(replace: (tokens: AccessToken[]) => AccessToken): Promise<AccessToken> {
    const work = (state: State) => {
      const token = replace(state.documentsOf("accessToken").map(({ value }) => JSON.parse(value)));
      state.documents.put({ kind: "accessToken", key: token.id, value: JSON.stringify(token) });
      return token;
    };
    return (await this.#write([STORE], [{ of: "documents", kind: "accessToken" }], work))[0];
  }

  documents(kind: DocumentKind): Promise<{ key: string; value: string }[]> {
    return this.#read([{ of: "documents", kind }], (state) => state.documentsOf(kind));
  }

  document(kind: DocumentKind, key: string): Promise<string | undefined> {
    return this.#read([{ of: "documents", kind }], (state) => state.document(kind, key));
  }

  /** Replaces a text; undefined removes it. Returns what is there afterwards. */
  async changeDocument<T extends string | undefined>(
    kind: DocumentKind,
    key: string,
    replace: (kept: string | undefined, now: number, head: Head) => T,
  ): Promise<T> {
    const work = (state: State, head: Head): T => {
      const value = replace(state.document(kind, key), state.now, head);
      if (value === undefined) state.documents.delete(`${kind}/${key}`);
      else if (value !== state.document(kind, key)) state.documents.put({ kind, key, value });
      return value;
    };
    return (await this.#write([STORE], [{ of: "documents", kind }], work))[0];
  }

  fsck({ repair = false }: { repair?: boolean } = {}): Promise<Finding[]> {
    const check = (state: State) => fsck(state, repair);
    return repair ? this.#write([STORE], [], check).then(([found]) => found) : this.#read([], check);
  }

  async end(): Promise<void> {
    if (this.isSession) return;
    await this.core.queue.idle();
    await this.core.engine.close();
  }

  #terms(offerTtl = this.settings.offerTtl): Terms {
    const { quarantine, actor, access, seed = randomUUID() } = this.settings;
    return { offerTtl, quarantine, seed, ...(actor !== undefined && { actor }), ...(access && { access }) };
  }

  #write<T>(
    locks: string[],
    found: Query[],
    decide: (state: State, head: Head) => T,
    terms = this.#terms(),
  ): Promise<[T, Commit | undefined]> {
    const work: Work<T> = { locks: [...new Set(locks)], queries: found, terms, decide };
    return this.#observed(this.core.queue.add(work));
  }

  #read<T>(found: Query[], answer: (state: State) => T): Promise<T> {
    return this.#view(found, answer);
  }

  /** Rows that no decision reads. */
  #rows(found: Query[]) {
    return this.#view(found, (_state, head, rows) => ({ ...rows, head }));
  }

  #view<T>(found: Query[], answer: (state: State, head: Head, rows: Rows) => T): Promise<T> {
    const started = performance.now();
    const read = view(this.core.engine, found, this.#terms(), this.core, answer).finally(() =>
      this.settings.observer?.transaction?.("read", (performance.now() - started) / 1000),
    );
    return this.#observed(read);
  }

  #observed<T>(operation: Promise<T>): Promise<T> {
    return operation.catch((error: unknown) => {
      this.settings.observer?.operationFailed?.(error);
      throw error;
    });
  }

  /** Stored with the first call that needs it. */
  async #secret(name: string, initial: string): Promise<string> {
    return (await this.findSecret(name)) ?? this.replaceSecret(name, (kept) => kept ?? initial);
  }
}

const versionIn = ({ version, epoch }: Commit): StoreVersion => ({ version, epoch });

/** The lock of what belongs to no pool. */
const STORE = "store";

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
