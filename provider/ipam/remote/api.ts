import { z } from "zod";
import { OverlayError } from "../../errors";
import { fencedError, notClaimedError } from "../errors";
import type { IpamSettings } from "../session";
import { type Ipam, isCommitted, type Lease } from "../types";
import * as wire from "./wire";

/**
 * The operations that a service does for stacks: `POST /api/pool/v1/NAME` with a `call` as JSON. Routes and the methods of the client follow
 * from this list. An answer may get lost, and the client repeats the request: every operation says why that is harmless.
 */

/** `preview`: reads and offers. `deploy`: also changes of leases. */
export type PoolScope = "preview" | "deploy";

export interface Operation<I extends z.ZodType = z.ZodType, O extends z.ZodType = z.ZodType> {
  input: I;
  output: O;
  scope: PoolScope | ((input: z.output<I>) => PoolScope);
  run(ipam: Ipam, input: z.output<I>, user: PoolUser): Promise<z.output<O>>;
}

/** The user of a service. */
export interface PoolUser {
  /** The name of the access token. */
  name: string;
  may(scope: PoolScope): boolean;
}

/** Why the user may not do this; undefined if it may. */
export const denialOf = (user: PoolUser, scope: PoolScope): OverlayError | undefined =>
  user.may(scope)
    ? undefined
    : new OverlayError(
        "ACCESS_DENIED",
        scope === "deploy"
          ? `Access token ${user.name} may only preview: it may not change leases.`
          : `Access token ${user.name} may not use the service as a store.`,
        scope === "deploy"
          ? "Use a token with the scope deploy for up, refresh and destroy."
          : "Use a token with the scope preview or deploy.",
      );

const define = <I extends z.ZodType, O extends z.ZodType>(operation: Operation<I, O>): Operation<I, O> => operation;

/** A service sends no list that is longer. */
export const PAGE = 1000;
/** More than the history of a pool, and the event log, have. */
export const MOST_EVENTS = 25_000;

/** Free extents of one answer. A pool that is more fragmented is not read further. */
export const MOST_EXTENTS = 100_000;

const place = { pool: wire.poolName, leaseId: wire.leaseId };
const onlyIf = wire.condition.exactOptional();
const dryRun = z.boolean().exactOptional();
const nothing = z.void().optional();

export const API = {
  // What the access token permits, and which store it is. The first call gives the store its id.
  describe: define({
    input: z.strictObject({ seen: wire.storeIdentity.strict().exactOptional() }),
    output: wire.storeInfo,
    scope: "preview",
    run: async (ipam, { seen }, user) => {
      const whyNoClaims = denialOf(user, "deploy");
      return { ...(await ipam.describe(seen)), ...(whyNoClaims && { whyNoClaims }) };
    },
  }),

  // The owner is offered the same values again. A refusal changes nothing.
  offer: define({
    input: wire.offerRequest,
    output: wire.lease,
    scope: (request) => (request.inUp ? "deploy" : "preview"),
    run: (ipam, request) => ipam.offer(request),
  }),

  withdraw: define({
    input: z.strictObject({ owner: wire.owner, program: wire.text, pool: wire.poolName }),
    output: nothing,
    scope: "preview",
    run: (ipam, offer) => ipam.withdraw(offer),
  }),

  // The owners get the same values again, under newer lease ids. The run has seen no others.
  claim: define({
    input: z.array(wire.request).min(1).max(PAGE),
    output: z.array(wire.lease),
    scope: "deploy",
    run: (ipam, requests) => ipam.claim(requests),
  }),

  // The same change again. If it has changed what `onlyIf` compares, the client compares with what it has changed it to.
  change: define({
    input: z.strictObject({ ...place, changes: wire.changes, dryRun, onlyIf }),
    output: wire.lease,
    scope: ({ dryRun }) => (dryRun ? "preview" : "deploy"),
    run: (ipam, { pool, leaseId, changes, ...options }) => ipam.change(pool, leaseId, changes, options),
  }),

  // Leases that were added are found unchanged.
  importLeases: define({
    input: z.strictObject({
      leases: z.array(wire.existingLease).max(10 * PAGE),
      dryRun,
    }),
    output: z.object({
      added: z.array(wire.lease),
      unchanged: z.array(wire.lease),
      conflicts: z.array(z.object({ index: wire.count, error: wire.overlayError })),
    }),
    scope: ({ dryRun }) => (dryRun ? "preview" : "deploy"),
    run: async (ipam, { leases, ...options }) => {
      const { conflicts, ...result } = await ipam.importLeases(leases, options);
      return { ...result, conflicts: conflicts.map(({ lease, error }) => ({ index: leases.indexOf(lease), error })) };
    },
  }),

  // A pool that is closed already is closed again.
  close: define({
    input: z.strictObject({ ...place, onlyIf }),
    output: nothing,
    scope: "deploy",
    run: (ipam, { pool, leaseId, ...options }) => ipam.close(pool, leaseId, options),
  }),

  // After a repeated request, the client takes a lease that has gone for released.
  release: define({
    input: z.strictObject({ ...place, onlyIf, program: wire.text.exactOptional() }),
    output: z.boolean(),
    scope: "deploy",
    run: (ipam, { pool, leaseId, ...options }) => ipam.release(pool, leaseId, options),
  }),

  touch: define({
    input: z.strictObject({ ...place, ttl: wire.seconds.exactOptional() }),
    output: nothing,
    scope: "deploy",
    run: (ipam, { pool, leaseId, ...options }) => ipam.touch(pool, leaseId, options),
  }),

  // Of leases that the store has: the client says which, not what the tokens permit.
  signTokens: define({
    input: z.array(z.strictObject(place)).max(PAGE),
    output: z.array(z.string()),
    scope: "deploy",
    run: async (ipam, input) => {
      const leases: Lease[] = [];
      for (const { pool, leaseId } of input) leases.push(await findHeld(ipam, pool, leaseId));
      return ipam.signTokens(leases);
    },
  }),

  // Reads change nothing.

  openToken: define({
    input: z.strictObject({ token: z.string().max(5000), runner: wire.text.exactOptional() }),
    output: wire.grant,
    scope: "preview",
    run: (ipam, { token, ...expected }) => ipam.openToken(token, expected),
  }),

  find: define({
    input: wire.leaseSelector,
    output: wire.lease.optional(),
    scope: "preview",
    run: (ipam, selector) => ipam.find(selector),
  }),

  leases: define({
    input: z.strictObject({
      pool: wire.poolName,
      owner: wire.text.exactOptional(),
      after: wire.value.exactOptional(),
      limit: wire.count.max(PAGE),
    }),
    output: z.array(wire.lease),
    scope: "preview",
    run: (ipam, { pool, ...filter }) => ipam.leases(pool, filter),
  }),

  pools: define({
    input: z.union([
      z.strictObject({ name: wire.poolName, withUsage: z.boolean().exactOptional() }),
      z.strictObject({ endingWith: wire.poolName }),
      z.strictObject({
        prefix: wire.text.exactOptional(),
        after: wire.poolName.exactOptional(),
        limit: wire.count.max(PAGE),
        withUsage: z.boolean().exactOptional(),
      }),
    ]),
    output: z.array(wire.poolInfo),
    scope: "preview",
    run: (ipam, selector) => ipam.pools(selector),
  }),

  freeExtents: define({
    input: z.strictObject({
      pool: wire.poolName,
      range: wire.extent.exactOptional(),
      limit: wire.count.max(MOST_EXTENTS),
    }),
    output: z.array(wire.extent),
    scope: "preview",
    run: (ipam, { pool, ...options }) => ipam.freeExtents(pool, options),
  }),

  events: define({
    input: z.union([
      z.strictObject({
        pool: wire.poolName,
        since: wire.time.exactOptional(),
        limit: wire.count.max(MOST_EVENTS).exactOptional(),
      }),
      z.strictObject({ after: wire.count.exactOptional(), limit: wire.count.max(MOST_EVENTS).exactOptional() }),
    ]),
    output: z.object({ events: z.array(wire.event), last: wire.count }),
    scope: "preview",
    run: (ipam, selector) => ipam.events(selector),
  }),
};

export type OperationName = keyof typeof API;
export const OPERATIONS = Object.keys(API) as OperationName[];
export type InputOf<N extends OperationName> = z.output<(typeof API)[N]["input"]>;
export type OutputOf<N extends OperationName> = z.output<(typeof API)[N]["output"]>;

/** The settings of the client. Those of the service limit them: see `Ipam.session`. */
export const session = z.strictObject({
  actor: wire.text.max(500),
  offerTtl: wire.seconds,
  quarantine: wire.seconds,
  place: wire.text.exactOptional(),
});
export type ClientSession = z.output<typeof session>;

/** The body of a request. */
export const bodyOf = <N extends OperationName>(name: N) => z.strictObject({ session, input: API[name].input });

export const answerOf = (name: OperationName) => z.object({ result: API[name].output });

export const pathOf = (name: OperationName): string => `/api/pool/v1/${name}`;

export function encodeCall<N extends OperationName>(name: N, client: ClientSession, input: InputOf<N>): unknown {
  const encoded = bodyOf(name).safeEncode({ session: client, input } as z.output<ReturnType<typeof bodyOf<N>>>);
  if (encoded.success) return encoded.data;
  const { path, message } = encoded.error.issues[0]!;
  throw new OverlayError("INPUT_INVALID", `${path.slice(1).join(".")} ${message}.`, "Correct it.");
}

/** Rejects what is not an answer of the service, such as that of a program of another kind. */
export function decodeAnswer<N extends OperationName>(name: N, json: unknown, place?: string): OutputOf<N> {
  const decoded = answerOf(name).safeParse(json);
  if (decoded.success) return decoded.data.result as OutputOf<N>;
  const { path, message } = decoded.error.issues[0]!;
  throw new OverlayError(
    "STORE_UNAVAILABLE",
    `The answer of the service at ${place} to ${name} is not valid: ${[...path, ""].join(".")} ${message}.`,
    "Set overlay:store to the URL of `overlayctl serve`, of this release or a newer one.",
  );
}

/** Does one call for a user. It keeps nothing for the next one, which another instance may get. */
export async function serveCall<N extends OperationName>(
  name: N,
  { session, input }: z.output<ReturnType<typeof bodyOf<N>>>,
  user: PoolUser,
  /** The store in the bounds of the user. */
  open: (session: Partial<IpamSettings>) => Ipam,
): Promise<{ result: OutputOf<N> }> {
  const { scope, run } = API[name] as unknown as Operation;
  const denial = denialOf(user, typeof scope === "function" ? scope(input) : scope);
  if (denial) throw denial;
  const ipam = open({ ...session, actor: `${user.name} (${session.actor})` });
  return { result: (await run(ipam, input, user)) as OutputOf<N> };
}

async function findHeld(ipam: Ipam, pool: string, leaseId: string): Promise<Lease> {
  const lease = await ipam.find({ pool, leaseId });
  if (!lease) throw fencedError(pool, leaseId);
  if (!isCommitted(lease)) throw notClaimedError(lease);
  return lease;
}
