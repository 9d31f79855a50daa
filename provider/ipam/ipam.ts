import { isOverlayError, OverlayError } from "../errors";
import { isStackOwner } from "../owner";
import { StoreAdmin } from "./admin";
import { withdraw } from "./decide/access";
import { change, close, release, touch } from "./decide/change";
import { REMEMBERED } from "./decide/choose";
import { PAGE } from "./decide/free-space";
import { claim, offer } from "./decide/grant";
import { importLeases } from "./decide/import";
import { DUE, uidOf } from "./decide/lease";
import { specOf } from "./decide/pools";
import * as queries from "./decide/queries";
import { portText, sharingKeyOf } from "./decide/rows";
import type { State } from "./decide/state";
import { epochOf, findSeen } from "./identity";
import type { Store } from "./interface";
import type { Session } from "./session";
import type { Commit, Query } from "./store/store";
import { keyRing, newSecret, openToken, STORED_KEYS, tokenOf } from "./token";
import type { Lease, LeaseSelector, PoolSpec, Request, Usage } from "./types";

/** An up needs its offers only from its check to its claim. Seconds. */
const UP_OFFER_TTL = 600;

/** Allocates values to owners, on a store that this process has opened. Each operation names the locks and rows of a decision in `decide/`. */
export class LocalIpam implements Store {
  readonly admin: StoreAdmin;

  constructor(private readonly base: Session) {
    this.admin = new StoreAdmin(base);
  }

  readonly session: Store["session"] = (options) => new LocalIpam(this.base.another(options));
  readonly end: Store["end"] = () => this.base.end();

  readonly describe: Store["describe"] = (seen) => {
    const found: Query[] = seen ? [epochOf(seen), { of: "documents", kind: "recovered" }] : [];
    const whyNoOffers = this.base.engine.readOnly
      ? "the store is read-only"
      : this.base.settings.offerTtl === 0
        ? "overlay:offerTtl is 0"
        : undefined;
    return this.base.read(found, (_state, head, rows) => {
      const { id, version, epoch } = head;
      const recovered = (rows.documents ?? []).map(({ key }) => key);
      return {
        ...{ id, version, epoch },
        ...(whyNoOffers !== undefined && { whyNoOffers }),
        ...(seen && {
          seen: findSeen(head, recovered, rows, seen, this.base.settings.place ?? this.base.engine.place),
        }),
      };
    });
  };

  readonly offer: Store["offer"] = async (request) => {
    const given = this.base.settings.offerTtl;
    const offerTtl = request.inUp ? Math.max(given, UP_OFFER_TTL) : given;
    return (
      await this.base.write([request.pool], queriesOf(request), (state) => offer(state, request), { offerTtl })
    )[0];
  };

  readonly withdraw: Store["withdraw"] = async ({ pool, owner, program }) => {
    await this.base.write([pool], [{ of: "offersOf", owner }], (state) => withdraw(state, owner, program));
  };

  readonly claim: Store["claim"] = async (requests) => {
    const claims = (state: State) => requests.map((request) => claim(state, request));
    try {
      const [locks, found] = [requests.flatMap(poolsOf), requests.flatMap(queriesOf)];
      const [leases, commit] = await this.base.write(locks, found, claims, { size: requests.length });
      return leases.map((lease) => withVersion(lease, commit));
    } catch (error) {
      if (isOverlayError(error)) this.base.settings.observer?.claimFailed?.(requests[0]?.pool ?? "", error);
      throw error;
    }
  };

  readonly change: Store["change"] = async (pool, leaseId, changes, { dryRun = false, onlyIf } = {}) => {
    const work = (state: State) => change(state, pool, leaseId, changes, { onlyIf });
    if (dryRun) return this.base.read(leaseIn(leaseId), work);
    return withVersion(...(await this.base.write(poolsOf({ pool, ...changes }), leaseIn(leaseId), work)));
  };

  readonly close: Store["close"] = async (pool, leaseId, { onlyIf } = {}) => {
    await this.base.write([pool], leaseIn(leaseId), (state) => close(state, pool, leaseId, { onlyIf }));
  };

  readonly release: Store["release"] = async (pool, leaseId, { onlyIf, program } = {}) => {
    const work = (state: State) => release(state, pool, leaseId, { onlyIf }, program);
    return (await this.base.write([pool], leaseIn(leaseId), work))[0];
  };

  readonly touch: Store["touch"] = async (pool, leaseId, { ttl } = {}) => {
    await this.base.write([pool], leaseIn(leaseId), (state) => touch(state, pool, leaseId, ttl));
  };

  readonly importLeases: Store["importLeases"] = async (leases, { dryRun = false } = {}) => {
    const work = (state: State) => importLeases(state, leases);
    if (dryRun) return this.base.read([], work);
    return (await this.base.write(leases.flatMap(poolsOf), [], work, { size: leases.length }))[0];
  };

  readonly signTokens: Store["signTokens"] = async (leases) => {
    const ring = keyRing(this.base.settings.tokenKeys ?? (await this.#storedKeys()));
    return leases.map((lease) => tokenOf(lease, ring));
  };

  readonly openToken: Store["openToken"] = async (token, expected) => {
    const keys = this.base.settings.tokenKeys ?? (await this.admin.findSecret(STORED_KEYS));
    return openToken(token, keys === undefined ? undefined : keyRing(keys), expected);
  };

  readonly find: Store["find"] = (by) => {
    const [query, read] = readerOf(by);
    return this.base.find([query], read);
  };

  readonly leases: Store["leases"] = (pool, filter = {}) => {
    const list = (state: State) => queries.listLeases(state, pool, filter);
    const found: Query[] = [{ of: "pool", name: pool }];
    return filter.owner === undefined ? this.base.read(found, list) : this.base.find(found, list);
  };

  readonly pools: Store["pools"] = (selector = {}) => {
    if ("name" in selector) {
      const { name, withUsage } = selector;
      const found: Query[] = [{ of: "pool", name }];
      const toInfo = (spec: PoolSpec | undefined, usage?: Usage) => (spec ? [{ spec, ...(usage && { usage }) }] : []);
      if (!withUsage) return this.base.find(found, (state) => toInfo(specOf(state, name)));
      return this.base.read(found, (state) => toInfo(specOf(state, name), queries.usage(state, name)));
    }
    const { prefix = "", withUsage, ...page } = selector;
    return this.base.read([], (state) =>
      withUsage
        ? queries.listUsages(state, prefix, page)
        : queries.listPools(state, prefix, page).map((spec) => ({ spec })),
    );
  };

  readonly freeRanges: Store["freeRanges"] = (pool, options = {}) =>
    this.base.read([{ of: "pool", name: pool }], (state) => queries.listFree(state, pool, options));

  readonly events: Store["events"] = (selector = {}) => {
    const { limit = 1000 } = selector;
    if ("pool" in selector) {
      const { pool, since = 0, after = 0 } = selector;
      const found: Query = { of: "events", after, limit, pool, since };
      return this.base.read([found], (_state, { lastEvent: last }, { events = [] }) => ({ events, last }));
    }
    const { after } = selector;
    const found: Query[] = after === undefined ? [] : [{ of: "events", after, limit }];
    return this.base.read(found, (_state, { lastEvent: last }, { events = [] }) => {
      if (after === undefined || after === last) return { events: [], last };
      const isLost = events[0]?.id !== after + 1;
      if (isLost || after > last) throw eventsLostError(after, last);
      return { events, last };
    });
  };

  /** Made with the first call that needs them. */
  async #storedKeys(): Promise<string> {
    const kept = await this.admin.findSecret(STORED_KEYS);
    return kept ?? this.admin.replaceSecret(STORED_KEYS, (other) => other ?? newSecret());
  }
}

/** The rows that a selector concerns, and the lease in them. */
function readerOf(by: LeaseSelector): [Query, (state: State) => Lease | undefined] {
  if ("program" in by)
    return [{ of: "offersOf", owner: by.owner }, (state) => queries.findOfferOf(state, by.owner, by.program)];
  if (!("pool" in by)) return [{ of: "name", name: by.name }, (state) => queries.findByName(state, by.name)];
  if ("endedUid" in by)
    return [{ of: "lease", uid: by.endedUid }, (state) => queries.findEnded(state, by.pool, by.endedUid)];
  return [{ of: "pool", name: by.pool }, (state) => queries.find(state, by.pool, by)];
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
    ...(values ? [] : owners.filter(isStackOwner)).map(
      (each): Query => ({ of: "ended", pool, owner: each, limit: REMEMBERED }),
    ),
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
    ...(key === undefined ? [] : [{ of: "sharers", pool, sharedAs: key } as const]),
    ...(childPool ? [{ of: "offersOfPool", childName: childPool.name } as const] : []),
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
