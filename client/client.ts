import { OverlayServiceError } from "./errors";
import { followEvents } from "./events";
import {
  type AddressHistoryInput,
  type AddressStatus,
  type Availability,
  type AvailableInput,
  type BatchInput,
  type Change,
  type CreatedWebhook,
  type CreatePoolInput,
  type EventInput,
  type FreeInput,
  type Heartbeat,
  type HistoryInput,
  type Lease,
  type LeasePage,
  type OverlayEvent,
  type PlaceInput,
  type PoolPage,
  type PoolPageInput,
  type PoolStatus,
  type Release,
  type ReleaseInput,
  type ReportInput,
  type Reservation,
  type ReserveInput,
  ROUTES,
  type Route,
  type RunnerConfig,
  type RunnerInfo,
  type RunnerReport,
  type SearchInput,
  type Totals,
  type UseInput,
  type ValidateInput,
  type Validation,
  type Webhook,
  type WebhookInput,
} from "./routes";
import { type CallOptions, type ClientOptions, Transport } from "./transport";

export interface ReserveOptions extends CallOptions {
  /**
   * Requests with the same key get the same reservation while it is held. Default: a new key for each call without container and owner, the same for its
   * retries.
   */
  idempotencyKey?: string;
}

/** For `withAddress`. */
export interface UseOptions extends CallOptions {
  /** The container that uses the address. Default: a name of its own for each call. */
  container?: string;
}

/**
 * The service of `overlayctl serve`. A method for each route; failures are `OverlayServiceError`. A request is sent again after connection
 * errors, timeouts and 429, 502, 503 or 504 if that cannot do harm: what is sent twice has the effect of once. A runner is NAME if only one network has it, or
 * NETWORK/NAME.
 */
export class OverlayClient {
  readonly #transport: Transport;

  constructor(options: ClientOptions) {
    this.#transport = new Transport(options);
  }

  /** Reserves an address on a runner, on any runner of a network, or in a pool, until it is used or `ttl` seconds have passed. */
  reserve(input: ReserveInput, options: ReserveOptions = {}): Promise<Reservation> {
    return this.#send(ROUTES.reserve, input, options, keyOf(input, options));
  }

  /** Reserves `count` addresses: all, or none. */
  async reserveMany(input: BatchInput, options: ReserveOptions = {}): Promise<Reservation[]> {
    return (await this.#send(ROUTES.reserveMany, input, options, keyOf(input, options))).reservations;
  }

  /** Checks the token of a reservation that is not used yet. */
  validate(input: ValidateInput, options?: CallOptions): Promise<Validation> {
    return this.#send(ROUTES.validate, input, options);
  }

  /** Marks an address as used by a container, by its token or by the address. It does not expire then. */
  use(input: UseInput, options?: CallOptions): Promise<Lease> {
    return this.#send(ROUTES.use, input, options);
  }

  /**
   * Releases an unused reservation by its token, or all addresses of a container. If the first answer was lost, the second one does not list what the
   * first one has released.
   */
  release(input: ReleaseInput, options?: CallOptions): Promise<Release> {
    return this.#send(ROUTES.release, input, options);
  }

  /** Releases an address of any owner; if a stack holds it, `force` is required. Needs the scope `admin`. */
  free(input: FreeInput, options?: CallOptions): Promise<Lease> {
    return this.#send(ROUTES.free, input, options);
  }

  /** A page of the addresses that are held. */
  reservations(input: SearchInput = {}, options?: CallOptions): Promise<LeasePage> {
    return this.#send(ROUTES.reservations, input, options);
  }

  /** All of them, read in pages. */
  async *allReservations(input: SearchInput = {}, options?: CallOptions): AsyncGenerator<Lease, void, void> {
    for (let cursor = input.cursor, isLast = false; !isLast; ) {
      const page = await this.reservations({ ...input, cursor }, options);
      yield* page.reservations;
      isLast = page.next === undefined || page.next === cursor;
      cursor = page.next;
    }
  }

  /** How many addresses are free, and the first of them: of a pool, of the runners of a network, or of all pools. */
  async available(input: AvailableInput = {}, options?: CallOptions): Promise<Availability[]> {
    const found: Availability[] = [];
    for (let cursor = input.cursor; ; ) {
      const { pools, next } = await this.#send(ROUTES.available, { ...input, cursor }, options);
      found.push(...pools);
      if (next === undefined || next === cursor) return found;
      cursor = next;
    }
  }

  /** Counts of all pools of addresses and ports together. */
  stats(options?: CallOptions): Promise<Totals> {
    return this.#send(ROUTES.stats, {}, options);
  }

  /** The holder of an address, and the holders before it. */
  address(ip: string, input: PlaceInput = {}, options?: CallOptions): Promise<AddressStatus> {
    return this.#send(ROUTES.address, { ip, ...input }, options);
  }

  /** The last changes of an address, oldest first. */
  async addressHistory(ip: string, input: AddressHistoryInput = {}, options?: CallOptions): Promise<Change[]> {
    return (await this.#send(ROUTES.addressHistory, { ip, ...input }, options)).changes;
  }

  /** A page of the pools, by name. */
  pools(input: PoolPageInput = {}, options?: CallOptions): Promise<PoolPage> {
    return this.#send(ROUTES.pools, input, options);
  }

  /** How full a pool is, and when it is exhausted at its present rate. */
  pool(pool: string, options?: CallOptions): Promise<PoolStatus> {
    return this.#send(ROUTES.pool, { pool }, options);
  }

  /** The last changes of a pool, oldest first. */
  async poolHistory(pool: string, input: HistoryInput = {}, options?: CallOptions): Promise<Change[]> {
    return (await this.#send(ROUTES.poolHistory, { pool, ...input }, options)).changes;
  }

  /** Creates an IPPool; the same again is the same pool. Needs the scope `admin`. */
  createPool(input: CreatePoolInput, options?: CallOptions): Promise<PoolStatus> {
    return this.#send(ROUTES.createPool, input, options);
  }

  /** Deletes an IPPool that was created by the service and has no leases. Returns its whole name. Needs the scope `admin`. */
  async deletePool(pool: string, options?: CallOptions): Promise<string> {
    return (await this.#send(ROUTES.deletePool, { pool }, options)).deleted;
  }

  /** All that a machine needs to configure itself as a runner. */
  runner(runner: string, options?: CallOptions): Promise<RunnerConfig> {
    return this.#send(ROUTES.runner, { runner }, options);
  }

  /** The same, and how full its subnet is. */
  runnerInfo(runner: string, options?: CallOptions): Promise<RunnerInfo> {
    return this.#send(ROUTES.runnerInfo, { runner }, options);
  }

  /** Records that a runner is alive. */
  heartbeat(runner: string, options?: CallOptions): Promise<Heartbeat> {
    return this.#send(ROUTES.heartbeat, { runner }, options);
  }

  /** Tells what runs on a runner: it becomes used, and what has gone is listed and, if asked, released. */
  report(runner: string, input: ReportInput, options?: CallOptions): Promise<RunnerReport> {
    return this.#send(ROUTES.report, { runner, ...input }, options);
  }

  /**
   * Changes of all pools, or of one pool or tenant, as they are made: from now on, or after the event with the id `after`. A lost connection is replaced by another one, which
   * goes on after the last event. Throws `EVENTS_LOST` when the service no longer has the next one; `signal` ends it.
   */
  events(input: EventInput = {}, { signal, retries }: CallOptions = {}): AsyncGenerator<OverlayEvent, void, void> {
    const { method, path, effect, answer } = ROUTES.events;
    const call = { method, path, effect, query: input, headers: { accept: "text/event-stream" } };
    return followEvents(this.#transport, call, { event: answer, signal, retries });
  }

  /** Lists the webhooks, and how far each has come. Needs the scope `admin`, as all about webhooks. */
  async webhooks(options?: CallOptions): Promise<Webhook[]> {
    return (await this.#send(ROUTES.webhooks, {}, options)).webhooks;
  }

  /** Sends events from now on to a URL. The secret that signs them is shown only here. */
  addWebhook(input: WebhookInput, options?: CallOptions): Promise<CreatedWebhook> {
    return this.#send(ROUTES.addWebhook, input, options);
  }

  /** Tries a failing or suspended webhook again. */
  async resumeWebhook(id: string, options?: CallOptions): Promise<void> {
    await this.#send(ROUTES.resumeWebhook, { id }, options);
  }

  async removeWebhook(id: string, options?: CallOptions): Promise<void> {
    await this.#send(ROUTES.removeWebhook, { id }, options);
  }

  /** Metrics in the text format of Prometheus. */
  metrics(options?: CallOptions): Promise<string> {
    return this.#send(ROUTES.metrics, {}, options);
  }

  /** Whether the process is running. */
  health(options?: CallOptions): Promise<{ status: "ok" }> {
    return this.#send(ROUTES.health, {}, options);
  }

  /** Whether it can serve: its store answers. */
  readiness(options?: CallOptions): Promise<{ status: "ready" }> {
    return this.#send(ROUTES.readiness, {}, options);
  }

  /**
   * Runs a function with an address of a runner, which is released when the function returns or throws. A used address does not expire, however long
   * the function takes. If this process dies, the address stays in use until its container is released. Fails with `RESERVATION_EXISTS` if the
   * container has an address in the network already, which it keeps.
   */
  async withAddress<T>(
    runner: string,
    run: (ip: string, reservation: Reservation) => Promise<T>,
    { container = `client-${crypto.randomUUID()}`, ...options }: UseOptions = {},
  ): Promise<T> {
    // Without the container, which may have a reservation of another process: this one is of this call alone. If its answer is lost, it expires.
    const reservation = await this.reserve({ runner }, options);
    const { ip, token } = reservation;
    const last = { ...options, signal: undefined };
    try {
      await this.use({ token, container }, options);
    } catch (error) {
      await this.#undoUse({ runner, container, token }, last).catch(() => {}); // the first error is the cause
      throw error;
    }
    const release = () => this.release({ runner, container }, last);
    let result: T;
    try {
      result = await run(ip, reservation);
    } catch (error) {
      await release().catch(() => {});
      throw error;
    }
    await release();
    return result;
  }

  /** If the answer of `use` was lost, the address is in use, and all that the container has in the network. */
  async #undoUse(
    { runner, container, token }: { runner: string; container: string; token: string },
    options: CallOptions,
  ): Promise<void> {
    try {
      await this.release({ token }, options);
    } catch (error) {
      if (!(error instanceof OverlayServiceError) || error.code !== "TOKEN_USED") throw error;
      await this.release({ runner, container }, options);
    }
  }

  #send<A>(
    { path, answer, ...route }: Route<A>,
    input: object,
    options?: CallOptions,
    headers: Record<string, string> = {},
  ): Promise<A> {
    const { filled, rest } = fillPath(path, input);
    const given = route.method === "POST" ? { body: rest } : { query: rest };
    return this.#transport.send({ ...route, path: filled, headers, ...given }, answer, options);
  }
}

function keyOf({ container, owner }: ReserveInput, { idempotencyKey }: ReserveOptions): Record<string, string> {
  if (idempotencyKey === undefined && (container ?? owner) !== undefined) return {};
  return { "idempotency-key": idempotencyKey ?? crypto.randomUUID() };
}

/** Replaces `:name` in a path by the input of this name. */
function fillPath(path: string, input: object): { filled: string; rest: object } {
  const rest = new Map<string, unknown>(Object.entries(input));
  const filled = path.replace(/:(\w+)/g, (_, name: string) => {
    const value = encodeURIComponent(String(rest.get(name)));
    rest.delete(name);
    return value;
  });
  return { filled, rest: Object.fromEntries(rest) };
}
