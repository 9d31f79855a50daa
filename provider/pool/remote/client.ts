import { randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../../errors";
import type { Committed, OfferTerms, Operations, SeenEpoch, SessionOptions, StackPlan } from "../operations";
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
  type PoolPage,
  type PoolSpec,
  type Request,
  type StoreIdentity,
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
import { answerQuestion, MOST_ROUNDS, predictAnswers } from "./questions";
import type { Transport } from "./transport";

/** Operations that may have questions for the run. */
type AskingName = "offer" | "claim" | "claimAll" | "amend" | "importLeases";
type CallOf<N extends AskingName> = InputOf<N>["call"];
type ResultOf<N extends AskingName> = Extract<OutputOf<N>, { result: unknown }>["result"];

/** The answer to a call, and whether the service may have done the same call before. */
interface Replied<T> {
  result: T;
  wasRepeated: boolean;
}

/** The operations on a store, done by a service. */
export class RemoteOperations implements Operations {
  private constructor(
    private readonly transport: Transport,
    private readonly client: ClientSession,
    private readonly permitted: OutputOf<"hello">,
    private readonly isSession = false,
  ) {}

  /** Rejects if the service does not answer, or does not accept the access token. */
  static async open(transport: Transport, client: ClientSession): Promise<RemoteOperations> {
    const { json } = await transport.post(pathOf("hello"), encodeCall("hello", client, {}));
    return new RemoteOperations(transport, client, decodeAnswer("hello", json, client.place));
  }

  get whyNoOffers(): string | undefined {
    return this.permitted.whyNoOffers;
  }

  get whyNoClaims(): OverlayError | undefined {
    return this.permitted.whyNoClaims;
  }

  session({ access, ...options }: SessionOptions): RemoteOperations {
    if (access) throw access.denied(`the service at ${this.client.place}, which has access tokens of its own`);
    return new RemoteOperations(this.transport, { ...this.client, ...options }, this.permitted, true);
  }

  async offer(request: Request, terms: OfferTerms, plan: StackPlan): Promise<Lease> {
    const call = { request: withoutUser(request), terms };
    return (await this.#ask("offer", call, plan, [request], terms.plannedExtents)).lease;
  }

  async claim(request: Request, plan: StackPlan): Promise<Committed<Lease>> {
    return this.#ask("claim", { request: withoutUser(request) }, plan, [request]);
  }

  async claimAll(requests: Request[], plan: StackPlan): Promise<Committed<Lease[]>> {
    if (requests.length === 0) return { value: [] };
    return this.#ask("claimAll", { requests: requests.map(withoutUser) }, plan, requests);
  }

  async amend(
    pool: string,
    leaseId: string,
    { by: _, ...changes }: Changes,
    options: AmendOptions,
    plan: StackPlan,
  ): Promise<Committed<Lease>> {
    const call = { pool, leaseId, changes, ...options };
    try {
      return await this.#ask("amend", call, plan);
    } catch (error) {
      // The change may have been made by the request whose answer was lost.
      if (!isOverlayError(error, "LEASE_CHANGED") || !this.transport.wasRepeated(error)) throw error;
      return await this.#ask("amend", { ...call, onlyIf: conditionAfter(changes) }, plan);
    }
  }

  async importLeases(leases: ExistingLease[], options: ImportOptions, plan: StackPlan): Promise<ImportResult> {
    const call = { leases: leases.map(({ by: _, ...lease }) => lease), ...options };
    const result = await this.#ask("importLeases", call, plan);
    const conflicts = result.conflicts.flatMap(({ index, error }) =>
      leases[index] ? [{ lease: leases[index], error }] : [],
    );
    return { ...result, conflicts };
  }

  async close(pool: string, leaseId: string, options: { onlyIf?: Condition } = {}): Promise<void> {
    await this.#call("close", { pool, leaseId, ...options });
  }

  async release(pool: string, leaseId: string, options: { onlyIf?: Condition } = {}): Promise<boolean> {
    const { result, wasRepeated } = await this.#reply("release", { pool, leaseId, ...options });
    return result.released || (wasRepeated && (await this.find(pool, { leaseId })) === undefined);
  }

  async withdraw(pool: string, leaseId: string): Promise<boolean> {
    return (await this.#call("withdraw", { pool, leaseId })).withdrawn;
  }

  async retract(pool: string, owner: string, program: string | undefined): Promise<void> {
    await this.#call("retract", { pool, owner, ...(program !== undefined && { program }) });
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

  async findPromise(name: string): Promise<Lease | undefined> {
    return (await this.#call("findPromise", { name })).lease;
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

  async findSecret(): Promise<never> {
    throw this.#onlyAtStore("show its secrets");
  }

  async replaceSecret(): Promise<never> {
    throw this.#onlyAtStore("change its secrets");
  }

  async adoptIdentity(): Promise<never> {
    throw this.#onlyAtStore("recover stores into it");
  }

  async accessTokens(): Promise<never> {
    throw this.#onlyAtStore("show access tokens");
  }

  async findAccessToken(): Promise<never> {
    throw this.#onlyAtStore("show access tokens");
  }

  async updateAccessTokens(): Promise<never> {
    throw this.#onlyAtStore("change access tokens");
  }

  get webhooks(): never {
    throw this.#onlyAtStore("show webhooks");
  }

  async fsck(): Promise<never> {
    throw this.#onlyAtStore("check all rows");
  }

  async end(): Promise<void> {
    if (!this.isSession) this.transport.close();
  }

  async #call<N extends ProcedureName>(name: N, input: InputOf<N>): Promise<OutputOf<N>> {
    return (await this.#reply(name, input)).result;
  }

  async #reply<N extends ProcedureName>(
    name: N,
    input: InputOf<N>,
    session = this.client,
  ): Promise<Replied<OutputOf<N>>> {
    const { json, wasRepeated } = await this.transport.post(pathOf(name), encodeCall(name, session, input));
    return { result: decodeAnswer(name, json, this.client.place), wasRepeated };
  }

  /** Sends a call until all questions about it are answered. `requests` that it has, and extents that they may get. */
  async #ask<N extends AskingName>(
    name: N,
    call: CallOf<N>,
    plan: StackPlan,
    requests: Request[] = [],
    expected: Extent[] = [],
  ): Promise<ResultOf<N>> {
    const session = { ...this.client, seed: randomUUID() };
    const answers = new Map(requests.flatMap((request, i) => predictAnswers(request, i, expected)));
    for (let round = 0; round < MOST_ROUNDS; round++) {
      const input = { call, answers: [...answers.values()] } as InputOf<N>;
      const { result } = await this.#reply(name, input, session);
      if (!("questions" in result)) return result.result as ResultOf<N>;
      for (const question of result.questions) {
        answers.set(question.id, { id: question.id, value: answerQuestion(question, plan, requests) });
      }
    }
    throw new OverlayError(
      "STORE_CONFLICT",
      `The service at ${this.client.place} has asked about this request ${MOST_ROUNDS} times.`,
      "Run again.",
    );
  }

  #onlyAtStore(what: string): OverlayError {
    return new OverlayError(
      "ACCESS_DENIED",
      `The service at ${this.client.place} does not ${what} for others.`,
      "Run the command on a machine of the service, with the URL of the store that it has.",
    );
  }
}

/** A service takes the user from the access token, and asks for a child pool that follows from the extents. */
function withoutUser({ by: _, childPool, ...request }: Request): CallOf<"claim">["request"] {
  if (childPool === undefined) return request;
  return { ...request, childPool: typeof childPool === "function" ? "ask" : childPool };
}

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
