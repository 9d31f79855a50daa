import { positionOf } from "../ipam/ranges";
import type { IpamSettings } from "../ipam/session";
import type { Ipam, LeaseFilter, LoggedEvent, PoolInfo, PoolPage, Store } from "../ipam/types";
import { describePool } from "../pool-names";
import type { TenantDefaults } from "../resource";
import { sharedRangeLeases } from "../resources/tenants";
import type { Caller } from "./caller";
import { isEventInBounds, isPoolInBounds, showEvents } from "./caller";
import { CallerAccess } from "./caller-access";

interface SessionSettings extends Partial<IpamSettings> {
  /** The ranges from which blocks of all tenants are given, by type of pool: the setting of this name. */
  tenantDefaults?: TenantDefaults | undefined;
}

/** The store as one caller may see and change it. */
export function openSession(
  store: Store,
  caller: Caller,
  { tenantDefaults = {}, ...settings }: SessionSettings = {},
): Ipam {
  const session = { actor: caller.name, ...settings };
  if (!isBounded(caller)) return store.session(session);
  const access = new CallerAccess(caller, sharedRangeLeases(tenantDefaults));
  return limitTo(access, store.session({ ...session, access }));
}

/** The store for its operator: `what` concerns all of it. */
export function openAsOperator(store: Store, caller: Caller, what: string): Store {
  if (!isBounded(caller)) return store.session({ actor: caller.name });
  throw new CallerAccess(caller, []).denied(what);
}

export const isBounded = ({ tenant, network, pool }: Caller): boolean =>
  tenant !== undefined || network !== undefined || pool !== undefined;

/**
 * Changes are checked in their transaction: see `Access`. Here requests get the tenant of the caller. What the caller may not see is not there for it: an
 * answer does not tell it from what does not exist.
 */
function limitTo(access: CallerAccess, ipam: Ipam): Ipam {
  const { describe, withdraw, close, release, touch } = ipam;
  const { caller } = access;
  const show = access.show.bind(access);
  const isVisible = ({ spec }: PoolInfo): boolean => access.maySeePool(spec);
  const hasPool = async (name: string): Promise<boolean> => (await ipam.pools({ name })).some(isVisible);
  return {
    ...{ describe, withdraw, close, release, touch },
    offer: async (request) => show(await ipam.offer(access.bind(request))),
    claim: async (requests) => (await ipam.claim(requests.map((request) => access.bind(request)))).map(show),
    change: async (pool, leaseId, changes, options) =>
      show(await ipam.change(pool, leaseId, access.withTenant(changes), options)),
    async importLeases(leases, options) {
      const given = new Map(leases.map((lease) => [access.bind(lease), lease]));
      const { added, unchanged, conflicts } = await ipam.importLeases([...given.keys()], options);
      return {
        added: added.map(show),
        unchanged: unchanged.map(show),
        conflicts: conflicts.map(({ lease, error }) => ({ lease: given.get(lease)!, error })),
      };
    },
    async signTokens(leases) {
      const other = leases.find((lease) => !access.mayChange(lease));
      if (other) throw access.denied(`a lease in ${describePool(other.pool)} that is not its own`);
      return ipam.signTokens(leases);
    },
    async openToken(token, expected) {
      const claims = await ipam.openToken(token, expected);
      if (!isPoolInBounds(caller, claims.pool)) throw access.denied(describePool(claims.pool));
      return claims;
    },
    /** Names are unique in the store: a name that another caller holds is not shown, and a claim of it fails. So are offers of others. */
    async find(selector) {
      const lease = await ipam.find(
        "name" in selector ? { ...selector, name: access.scopeName(selector.name) } : selector,
      );
      if (!lease) return undefined;
      if (access.maySee(lease)) return show(lease);
      // Ids are not guessed: the caller has a token of the lease.
      if (!("leaseId" in selector || "uid" in selector)) return undefined;
      throw access.denied(`a lease in ${describePool(lease.pool)}`);
    },
    async leases(pool, { owner, ...page } = {}) {
      if (!(await hasPool(pool))) return [];
      const read = (next: LeaseFilter) => ipam.leases(pool, { ...(owner !== undefined && { owner }), ...next });
      const leases = await fillPage(owner === undefined ? page : {}, read, (lease) => access.maySee(lease), positionOf);
      return leases.map(show);
    },
    async pools(selector = {}) {
      if ("name" in selector) return (await ipam.pools(selector)).filter(isVisible);
      const read = (page: PoolPage) => ipam.pools({ ...selector, ...page });
      return fillPage(selector, read, isVisible, ({ spec }) => spec.name);
    },
    freeRanges: async (pool, options) => ((await hasPool(pool)) ? ipam.freeRanges(pool, options) : []),
    /** Ids of other callers' events are missing in it. */
    async events(selector = {}) {
      if (!("pool" in selector)) {
        const { events, last } = await ipam.events(selector);
        return { events: showEvents(caller, events), last };
      }
      let last = 0;
      const read = async (page: Page<number>) => {
        const found = await ipam.events({ ...selector, ...page });
        last = found.last;
        return found.events;
      };
      const isShown = (each: LoggedEvent) => isEventInBounds(caller, each);
      const events = await fillPage({ limit: PAGE, ...selector }, read, isShown, ({ id }) => id);
      return { events: showEvents(caller, events), last };
    },
  };
}

interface Page<Position> {
  after?: Position;
  limit?: number;
}

/** Entries that are read at once, after a first page of as many as are asked for. */
const PAGE = 250;

/** Reads page after page until at least `limit` entries are left, so that a page with fewer is the last one. */
async function fillPage<T, Position>(
  { after, limit }: Page<Position>,
  read: (page: Page<Position>) => Promise<T[]>,
  isShown: (entry: T) => boolean,
  positionOf: (entry: T) => Position,
): Promise<T[]> {
  const shown: T[] = [];
  for (let [at, size] = [after, limit]; ; size = PAGE) {
    const page = await read({ ...(at !== undefined && { after: at }), ...(size !== undefined && { limit: size }) });
    for (const entry of page) if (isShown(entry)) shown.push(entry);
    if (size === undefined || page.length < size || shown.length >= limit!) return shown;
    at = positionOf(page.at(-1)!);
  }
}
