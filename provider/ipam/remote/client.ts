import { isOverlayError, OverlayError } from "../../errors";
import type { SeenEpoch } from "../identity";
import type { IpamSettings } from "../session";
import { isTokenExpired, tokenExpiredError } from "../token";
import {
  type AmendOptions,
  type By,
  type Changes,
  type Condition,
  dataEntries,
  type ExistingLease,
  type ExpectedToken,
  type Extent,
  type Grant,
  type ImportOptions,
  type ImportResult,
  type Lease,
  type LeaseFilter,
  type OfferRequest,
  type PoolPage,
  type PoolSpec,
  type Request,
  type Store,
  type StoreIdentity,
  type StoreVersion,
  type Usage,
} from "../types";
import {
  type ClientSession,
  decodeAnswer,
  encodeCall,
  type InputOf,
  MOST_EVENTS,
  MOST_EXTENTS,
  type OutputOf,
  PAGE,
  type ProcedureName,
  pathOf,
} from "./api";
import type { Transport } from "./transport";

/** The answer to a call, and whether the service may have done the same call before. */
interface Replied<T> {
  result: T;
  wasRepeated: boolean;
}

/** A store behind a service. */
export class RemoteIpam implements Store {
  readonly #versions = new WeakMap<Lease, StoreVersion>();

  private constructor(
    private readonly transport: Transport,
    private readonly client: ClientSession,
    private readonly permitted: OutputOf<"hello">,
    private readonly isSession = false,
  ) {}

  /** Rejects if the service does not answer, or does not accept the access token. */
  static async open(transport: Transport, client: ClientSession): Promise<RemoteIpam> {
    const { json } = await transport.post(pathOf("hello"), encodeCall("hello", client, {}));
    return new RemoteIpam(transport, client, decodeAnswer("hello", json, client.place));
  }

  get whyNoOffers(): string | undefined {
    return this.permitted.whyNoOffers;
  }

  get whyNoClaims(): OverlayError | undefined {
    return this.permitted.whyNoClaims;
  }

  session({ access, actor, offerTtl, quarantine }: Partial<IpamSettings>): RemoteIpam {
    if (access) throw access.denied(`the service at ${this.client.place}, which has access tokens of its own`);
    const client = {
      ...this.client,
      ...(actor !== undefined && { actor }),
      ...(offerTtl !== undefined && { offerTtl }),
      ...(quarantine !== undefined && { quarantine }),
    };
    return new RemoteIpam(this.transport, client, this.permitted, true);
  }

  async offer({ by: _, ...request }: OfferRequest): Promise<Lease> {
    return (await this.#call("offer", { request })).lease;
  }

  async withdraw(owner: string, program: string, pool: string): Promise<void> {
    await this.#call("withdraw", { owner, program, pool });
  }

  async claim({ by: _, ...request }: Request): Promise<Lease> {
    const { lease, version } = await this.#call("claim", { request });
    return this.#noteVersion(lease, version);
  }

  async claimAll(requests: Request[]): Promise<Lease[]> {
    if (requests.length === 0) return [];
    const { leases, version } = await this.#call("claimAll", { requests: requests.map(withoutUser) });
    return leases.map((lease) => this.#noteVersion(lease, version));
  }

  async amend(
    pool: string,
    leaseId: string,
    { by: _, ...changes }: Changes,
    options: AmendOptions = {},
  ): Promise<Lease> {
    const call = { pool, leaseId, changes, ...options };
    const { lease, version } = await this.#call("amend", call).catch((error: unknown) => {
      // The change may have been made by the request whose answer was lost.
      if (!isOverlayError(error, "LEASE_CHANGED") || !this.transport.wasRepeated(error)) throw error;
      return this.#call("amend", { ...call, onlyIf: conditionAfter(changes) });
    });
    return this.#noteVersion(lease, version);
  }

  versionOf(lease: Lease): StoreVersion | undefined {
    return this.#versions.get(lease);
  }

  async importLeases(leases: ExistingLease[], options: ImportOptions = {}): Promise<ImportResult> {
    const result = await this.#call("importLeases", { leases: leases.map(withoutUser), ...options });
    const conflicts = result.conflicts.flatMap(({ index, error }) =>
      leases[index] ? [{ lease: leases[index], error }] : [],
    );
    return { ...result, conflicts };
  }

  async close(pool: string, leaseId: string, options: { onlyIf?: Condition } = {}): Promise<void> {
    await this.#call("close", { pool, leaseId, ...options });
  }

  async release(
    pool: string,
    leaseId: string,
    options: { onlyIf?: Condition; program?: string } = {},
  ): Promise<boolean> {
    const { result, wasRepeated } = await this.#reply("release", { pool, leaseId, ...options });
    return result.released || (wasRepeated && (await this.find(pool, { leaseId })) === undefined);
  }

  async touch(pool: string, leaseId: string, options: { ttl?: number } = {}): Promise<void> {
    await this.#call("touch", { pool, leaseId, ...options });
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    if (leases.length === 0) return [];
    const { tokens } = await this.#call("signTokens", {
      leases: leases.map(({ pool, leaseId }) => ({ pool, leaseId })),
    });
    return tokens;
  }

  async openToken(token: string, { now, ...expected }: ExpectedToken = {}): Promise<Grant> {
    const { grant } = await this.#call("openToken", { token, ...expected });
    if (now !== undefined && isTokenExpired(grant, now)) throw tokenExpiredError(grant);
    return grant;
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    return (await this.#call("find", { pool, by })).lease;
  }

  async endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return (await this.#call("endOf", { pool, uid })).lease;
  }

  async holder(name: string): Promise<Lease | undefined> {
    return (await this.#call("holder", { name })).lease;
  }

  async findOffer(owner: string, program: string): Promise<Lease | undefined> {
    return (await this.#call("findOffer", { owner, program })).lease;
  }

  async spec(pool: string) {
    return (await this.#call("spec", { pool })).spec;
  }

  /** Reads pages: leases that change meanwhile may be missing, or have changed. */
  async leases(pool: string, { owner, after, limit = Infinity }: LeaseFilter = {}): Promise<Lease[]> {
    if (owner !== undefined) return (await this.#call("leases", { pool, owner, limit: PAGE })).leases;
    const found: Lease[] = [];
    for (let from = after; found.length < limit; ) {
      const size = Math.min(PAGE, limit - found.length);
      const { leases } = await this.#call("leases", { pool, limit: size, ...(from !== undefined && { after: from }) });
      found.push(...leases);
      const next = leases.length < size ? undefined : lastValue(leases.at(-1)!);
      if (next === undefined || (from !== undefined && next <= from)) break;
      from = next;
    }
    return found;
  }

  async pools(prefix = "", { after, limit = Infinity }: PoolPage = {}): Promise<PoolSpec[]> {
    const found: PoolSpec[] = [];
    for (let from = after; found.length < limit; ) {
      const size = Math.min(PAGE, limit - found.length);
      const { pools } = await this.#call("pools", { prefix, limit: size, ...(from !== undefined && { after: from }) });
      found.push(...pools);
      const next = pools.length < size ? undefined : pools.at(-1)!.name;
      if (next === undefined || next === from) break;
      from = next;
    }
    return found;
  }

  async freeExtents(pool: string, { within, limit }: { within?: Extent; limit?: number } = {}): Promise<Extent[]> {
    const bounds = { ...(within && { within }), limit: Math.min(limit ?? Infinity, MOST_EXTENTS) };
    return (await this.#call("freeExtents", { pool, ...bounds })).extents;
  }

  async poolsEndingWith(pool: string) {
    return (await this.#call("poolsEndingWith", { pool })).pools;
  }

  async usage(pool: string): Promise<Usage | undefined> {
    return (await this.#call("usage", { pool })).usage;
  }

  async usages(prefix: string): Promise<Map<string, Usage>> {
    return new Map((await this.#call("usages", { prefix })).usages);
  }

  async history(pool: string, options: { after?: number; limit?: number } = {}) {
    return (await this.#call("history", { pool, ...limited(options) })).events;
  }

  events(options: { after?: number; limit?: number }) {
    return this.#call("events", limited(options));
  }

  identity(): Promise<StoreIdentity> {
    return this.#call("identity", {});
  }

  findSeen({ id, version, epoch }: StoreIdentity): Promise<SeenEpoch> {
    return this.#call("findSeen", { seen: { id, version, epoch } });
  }

  get admin(): never {
    throw new OverlayError(
      "ACCESS_DENIED",
      `The service at ${this.client.place} does not administer its store for others.`,
      "Run the command on a machine of the service, with the URL of the store that it has.",
    );
  }

  async end(): Promise<void> {
    if (!this.isSession) this.transport.close();
  }

  async #call<N extends ProcedureName>(name: N, input: InputOf<N>): Promise<OutputOf<N>> {
    return (await this.#reply(name, input)).result;
  }

  async #reply<N extends ProcedureName>(name: N, input: InputOf<N>): Promise<Replied<OutputOf<N>>> {
    const { json, wasRepeated } = await this.transport.post(pathOf(name), encodeCall(name, this.client, input));
    return { result: decodeAnswer(name, json, this.client.place), wasRepeated };
  }

  #noteVersion(lease: Lease, version: StoreVersion | undefined): Lease {
    if (version) this.#versions.set(lease, version);
    return lease;
  }
}

/** A service takes the user from the access token. */
const withoutUser = <R extends { by?: string }>({ by: _, ...request }: R): Omit<R, "by"> => request;

/** What a lease meets after these changes. Only these fields can be in a condition. */
const conditionAfter = ({ state, usedBy, data }: Changes): Condition => ({
  ...(state !== undefined && { state }),
  ...(usedBy !== undefined && { usedBy }),
  ...(data !== undefined && { data: dataEntries({ data }) }),
});

/** A lease is listed with its lowest extent. */
const lastValue = ({ extents }: Lease): bigint =>
  extents.reduce((lowest, extent) => (extent.first < lowest.first ? extent : lowest)).last;

const limited = <O extends { limit?: number }>(options: O): O =>
  options.limit === undefined ? options : { ...options, limit: Math.min(options.limit, MOST_EVENTS) };
