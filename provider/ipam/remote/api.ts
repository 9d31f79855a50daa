import { z } from "zod";
import { CODES, OverlayError } from "../../errors";
import { fencedError, notClaimedError } from "../errors";
import * as field from "../fields";
import { PAGE } from "../interface";
import type { IpamSettings } from "../session";
import * as types from "../types";
import { type Ipam, isCommitted, type Lease } from "../types";

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

/*
 * A call is answered in one turn of the event loop of the service, or in a few. The numbers below keep each of them below 50 ms; clients read
 * further pages, and send further parts.
 */

/** Leases that one call claims, imports or signs. */
export const MOST_LEASES = 64;
/** Free ranges of one answer. A pool that is more fragmented is not read further. */
export const MOST_RANGES = 10_000;

/** The longest text of an error. */
const sentence = z.string().max(20_000);

/** An error as RFC 9457 has it in `application/problem+json`, as far as it is needed here. */
const problem = z.object({
  code: z.string(),
  what: sentence,
  fix: sentence,
  property: z.string().max(1000).exactOptional(),
  /** The lease that keeps a request from its values. One that the sender may not see has no uid, and is left out. */
  holder: types.lease
    .pick({ pool: true, owner: true, uid: true })
    .extend({ ranges: z.array(field.range) })
    .exactOptional(),
});

/** A code that only a newer service knows becomes `INTERNAL`. */
export const overlayError = z.codec(problem, z.instanceof(OverlayError), {
  decode: ({ code, what, fix, ...more }) =>
    Object.assign(new OverlayError(CODES.find((known) => known === code) ?? "INTERNAL", what, fix), more),
  encode: ({ code, what, fix, property, holder }) => ({
    ...{ code, what, fix },
    ...(property !== undefined && { property }),
    ...(holder && holder.uid !== "" && { holder }),
  }),
});

const place = { pool: field.poolName, leaseId: field.leaseId };
const onlyIf = types.condition.exactOptional();
const dryRun = field.flag.exactOptional();
const nothing = z.void().optional();

export const API = {
  // What the access token permits, and which store it is. The first call gives the store its id.
  describe: define({
    input: z.strictObject({ seen: types.storeIdentity.strict().exactOptional() }),
    output: types.storeIdentity.extend({
      whyNoOffers: field.text.exactOptional(),
      whyNoClaims: overlayError.exactOptional(),
      seen: types.seenEpoch.exactOptional(),
    }),
    scope: "preview",
    run: async (ipam, { seen }, user) => {
      const whyNoClaims = denialOf(user, "deploy");
      return { ...(await ipam.describe(seen)), ...(whyNoClaims && { whyNoClaims }) };
    },
  }),

  // The owner is offered the same values again. A refusal changes nothing.
  offer: define({
    input: types.offerRequest,
    output: types.lease,
    scope: (request) => (request.inUp ? "deploy" : "preview"),
    run: (ipam, request) => ipam.offer(request),
  }),

  withdraw: define({
    input: z.strictObject({ owner: field.givenOwner, program: field.text, pool: field.poolName }),
    output: nothing,
    scope: "preview",
    run: (ipam, offer) => ipam.withdraw(offer),
  }),

  // The owners get the same values again, under newer lease ids. The run has seen no others.
  claim: define({
    input: z.array(types.request).min(1).max(MOST_LEASES),
    output: z.array(types.lease),
    scope: "deploy",
    run: (ipam, requests) => ipam.claim(requests),
  }),

  // The same change again. If it has changed what `onlyIf` compares, the client compares with what it has changed it to.
  change: define({
    input: z.strictObject({ ...place, changes: types.changes, dryRun, onlyIf }),
    output: types.lease,
    scope: ({ dryRun }) => (dryRun ? "preview" : "deploy"),
    run: (ipam, { pool, leaseId, changes, ...options }) => ipam.change(pool, leaseId, changes, options),
  }),

  // Leases that were added are found unchanged.
  importLeases: define({
    input: z.strictObject({ leases: z.array(types.existingLease).max(MOST_LEASES), dryRun }),
    output: z.object({
      added: z.array(types.lease),
      unchanged: z.array(types.lease),
      conflicts: z.array(z.object({ index: field.count, error: overlayError })),
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
    input: z.strictObject({ ...place, onlyIf, program: field.text.exactOptional() }),
    output: z.boolean(),
    scope: "deploy",
    run: (ipam, { pool, leaseId, ...options }) => ipam.release(pool, leaseId, options),
  }),

  touch: define({
    input: z.strictObject({ ...place, ttl: field.seconds.exactOptional() }),
    output: nothing,
    scope: "deploy",
    run: (ipam, { pool, leaseId, ...options }) => ipam.touch(pool, leaseId, options),
  }),

  // Of leases that the store has: the client says which, not what the tokens permit.
  signTokens: define({
    input: z.array(z.strictObject(place)).max(MOST_LEASES),
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
    input: z.strictObject({ token: z.string().max(5000), runner: field.text.exactOptional() }),
    output: types.tokenClaims,
    scope: "preview",
    run: (ipam, { token, ...expected }) => ipam.openToken(token, expected),
  }),

  find: define({
    input: types.leaseSelector,
    output: types.lease.optional(),
    scope: "preview",
    run: (ipam, selector) => ipam.find(selector),
  }),

  leases: define({
    input: z.strictObject({
      pool: field.poolName,
      owner: field.text.exactOptional(),
      after: field.value.exactOptional(),
      limit: field.count.max(PAGE),
    }),
    output: z.array(types.lease),
    scope: "preview",
    run: (ipam, { pool, ...filter }) => ipam.leases(pool, filter),
  }),

  pools: define({
    input: z.union([
      z.strictObject({ name: field.poolName, withUsage: field.flag.exactOptional() }),
      z.strictObject({
        prefix: field.text.exactOptional(),
        after: field.poolName.exactOptional(),
        limit: field.count.max(PAGE),
        withUsage: field.flag.exactOptional(),
      }),
    ]),
    output: z.array(types.poolInfo),
    scope: "preview",
    run: (ipam, selector) => ipam.pools(selector),
  }),

  freeRanges: define({
    input: z.strictObject({
      pool: field.poolName,
      range: field.range.exactOptional(),
      limit: field.count.max(MOST_RANGES),
    }),
    output: z.array(field.range),
    scope: "preview",
    run: (ipam, { pool, ...options }) => ipam.freeRanges(pool, options),
  }),

  events: define({
    input: z.union([
      z.strictObject({
        pool: field.poolName,
        since: field.time.exactOptional(),
        after: field.count.exactOptional(),
        limit: field.count.max(PAGE),
      }),
      z.strictObject({ after: field.count.exactOptional(), limit: field.count.max(PAGE) }),
    ]),
    output: types.eventPage,
    scope: "preview",
    run: (ipam, selector) => ipam.events(selector),
  }),
};

export type OperationName = keyof typeof API;
export const OPERATIONS = Object.keys(API) as OperationName[];
export type InputOf<N extends OperationName> = z.output<(typeof API)[N]["input"]>;
export type OutputOf<N extends OperationName> = z.output<(typeof API)[N]["output"]>;

/** The settings of the client. Those of the service limit them: see `Store.session`. */
export const session = z.strictObject({
  actor: field.text.max(500),
  offerTtl: field.seconds,
  quarantine: field.seconds,
  place: field.text.exactOptional(),
});
export type ClientSession = z.output<typeof session>;

/** The body of a request. */
export const bodyOf = <N extends OperationName>(name: N) => z.strictObject({ session, input: API[name].input });

export const answerOf = (name: OperationName) => z.object({ result: API[name].output });

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
