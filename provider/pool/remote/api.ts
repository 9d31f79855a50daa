import { z } from "zod";
import { OverlayError } from "../../errors";
import { fencedError, notClaimedError } from "../errors";
import type { Operations } from "../operations";
import { isCommitted, type Lease, type Request } from "../types";
import { answers, OpenQuestions, questions, RemotePlan } from "./questions";
import * as wire from "./wire";

/**
 * The operations that a service does for stacks: `POST /api/pool/v1/NAME` with a `call` as JSON. Routes and the methods of the client follow
 * from this list. An answer may get lost, and the client repeats the request: every operation says why that is harmless.
 */

/** `preview`: reads and offers. `deploy`: also changes of leases. */
export type PoolScope = "preview" | "deploy";

export interface Procedure<I extends z.ZodType = z.ZodType, O extends z.ZodType = z.ZodType> {
  input: I;
  output: O;
  scope: PoolScope | ((input: z.output<I>) => PoolScope);
  run(operations: Operations, input: z.output<I>, user: PoolUser): Promise<z.output<O>>;
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

const define = <I extends z.ZodType, O extends z.ZodType>(procedure: Procedure<I, O>): Procedure<I, O> => procedure;

/** An operation that may have questions for the run. */
const defineAsking = <F extends z.ZodRawShape, O extends z.ZodType>({
  input,
  output,
  scope,
  run,
}: {
  input: F;
  output: O;
  scope: PoolScope | ((input: z.output<z.ZodObject<F>>) => PoolScope);
  run(operations: Operations, input: z.output<z.ZodObject<F>>, plan: RemotePlan): Promise<z.output<O>>;
}) =>
  define({
    input: z.strictObject({ call: z.strictObject(input), answers }),
    output: z.union([questions, z.strictObject({ result: output })]),
    scope: typeof scope === "string" ? scope : ({ call }) => scope(call as z.output<z.ZodObject<F>>),
    run: async (operations, { call, answers }) => {
      try {
        const plan = new RemotePlan(answers);
        return { result: await run(operations, call as z.output<z.ZodObject<F>>, plan) };
      } catch (error) {
        if (error instanceof OpenQuestions) return { questions: error.questions };
        throw error;
      }
    },
  });

/** A request whose child pool the run is asked for. */
function toRequest({ childPool, ...request }: z.output<typeof wire.request>, plan: RemotePlan, index = 0): Request {
  if (childPool === undefined) return request;
  return {
    ...request,
    childPool: childPool === "ask" ? (extents) => plan.childPool(index, extents) : childPool,
  };
}

/** A service sends no list that is longer. */
export const PAGE = 1000;
/** More than the history of a pool, and the event log, have. */
export const MOST_EVENTS = 25_000;

/** Free extents of one answer. A pool that is more fragmented is not read further. */
export const MOST_EXTENTS = 100_000;

const version = wire.storeVersion.exactOptional();
const place = { pool: wire.poolName, leaseId: wire.leaseId };
const onlyIf = wire.condition.exactOptional();
const dryRun = z.boolean().exactOptional();
const nothing = z.object({});
const done = (work: Promise<void>): Promise<Record<string, never>> => work.then(() => ({}));

export const API = {
  /** What the access token permits. */
  hello: define({
    input: z.strictObject({}),
    output: z.object({ whyNoOffers: wire.text.exactOptional(), whyNoClaims: wire.overlayError.exactOptional() }),
    scope: "preview",
    run: async ({ whyNoOffers }, _input, user) => ({
      ...optional("whyNoOffers", whyNoOffers),
      ...optional("whyNoClaims", denialOf(user, "deploy")),
    }),
  }),

  // The owner gets the same offer again.
  offer: defineAsking({
    input: {
      request: wire.request,
      terms: z.strictObject({
        inUp: z.boolean(),
        plannedExtents: wire.extents.exactOptional(),
        plannedSpec: wire.givenSpec.exactOptional(),
      }),
    },
    output: z.object({ lease: wire.lease }),
    scope: ({ terms }) => (terms.inUp ? "deploy" : "preview"),
    run: async (operations, { request, terms }, plan) => ({
      lease: await operations.offer(toRequest(request, plan), terms, plan),
    }),
  }),

  // The owner gets the same values again, under a newer lease id. The run has seen no other.
  claim: defineAsking({
    input: { request: wire.request },
    output: z.object({ value: wire.lease, version }),
    scope: "deploy",
    run: (operations, { request }, plan) => operations.claim(toRequest(request, plan), plan),
  }),

  claimAll: defineAsking({
    input: { requests: z.array(wire.request).min(1).max(PAGE) },
    output: z.object({ value: z.array(wire.lease), version }),
    scope: "deploy",
    run: (operations, { requests }, plan) =>
      operations.claimAll(
        requests.map((request, i) => toRequest(request, plan, i)),
        plan,
      ),
  }),

  // The same change again. If it has changed what `onlyIf` compares, the client compares with what it has changed it to.
  amend: defineAsking({
    input: { ...place, changes: wire.changes, dryRun, onlyIf },
    output: z.object({ value: wire.lease, version }),
    scope: ({ dryRun }) => (dryRun ? "preview" : "deploy"),
    run: (operations, { pool, leaseId, changes, ...options }, plan) =>
      operations.amend(pool, leaseId, changes, options, plan),
  }),

  // Leases that were added are found unchanged.
  importLeases: defineAsking({
    input: {
      leases: z.array(wire.existingLease).max(10 * PAGE),
      missing: z.array(wire.missingPool).max(PAGE).exactOptional(),
      dryRun,
    },
    output: z.object({
      added: z.array(wire.lease),
      unchanged: z.array(wire.lease),
      conflicts: z.array(z.object({ index: wire.count, error: wire.overlayError })),
    }),
    scope: ({ dryRun }) => (dryRun ? "preview" : "deploy"),
    run: async (operations, { leases, ...options }, plan) => {
      const { conflicts, ...result } = await operations.importLeases(leases, options, plan);
      return {
        ...result,
        conflicts: conflicts.map(({ lease, error }) => ({ index: leases.indexOf(lease), error })),
      };
    },
  }),

  // A pool that is closed already is closed again.
  close: define({
    input: z.strictObject({ ...place, onlyIf }),
    output: nothing,
    scope: "deploy",
    run: (operations, { pool, leaseId, ...options }) => done(operations.close(pool, leaseId, options)),
  }),

  // After a repeated request, the client takes a lease that has gone for released.
  release: define({
    input: z.strictObject({ ...place, onlyIf }),
    output: z.object({ released: z.boolean() }),
    scope: "deploy",
    run: async (operations, { pool, leaseId, ...options }) => ({
      released: await operations.release(pool, leaseId, options),
    }),
  }),

  withdraw: define({
    input: z.strictObject(place),
    output: z.object({ withdrawn: z.boolean() }),
    scope: "preview",
    run: async (operations, { pool, leaseId }) => ({ withdrawn: await operations.withdraw(pool, leaseId) }),
  }),

  retract: define({
    input: z.strictObject({ pool: wire.poolName, owner: wire.owner, program: wire.program.exactOptional() }),
    output: nothing,
    scope: "preview",
    run: (operations, { pool, owner, program }) => done(operations.retract(pool, owner, program)),
  }),

  touch: define({
    input: z.strictObject({ ...place, ttl: wire.seconds.exactOptional() }),
    output: nothing,
    scope: "deploy",
    run: (operations, { pool, leaseId, ...options }) => done(operations.touch(pool, leaseId, options)),
  }),

  /** Of leases that the store has: the client says which, not what the tokens permit. */
  signTokens: define({
    input: z.strictObject({ leases: z.array(z.strictObject(place)).max(PAGE) }),
    output: z.object({ tokens: z.array(z.string()) }),
    scope: "deploy",
    run: async (operations, input) => {
      const leases: Lease[] = [];
      for (const { pool, leaseId } of input.leases) leases.push(await findHeld(operations, pool, leaseId));
      return { tokens: await operations.signTokens(leases) };
    },
  }),

  openToken: define({
    input: z.strictObject({ token: z.string().max(5000), runner: wire.text.exactOptional() }),
    output: z.object({ grant: wire.grant }),
    scope: "preview",
    run: async (operations, { token, ...expected }) => ({ grant: await operations.openToken(token, expected) }),
  }),

  // Queries change nothing; the first `identity` gives the store its id.

  find: define({
    input: z.strictObject({ pool: wire.poolName, by: wire.by }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (operations, { pool, by }) => optional("lease", await operations.find(pool, by)),
  }),

  endOf: define({
    input: z.strictObject({ pool: wire.poolName, uid: wire.leaseId }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (operations, { pool, uid }) => optional("lease", await operations.endOf(pool, uid)),
  }),

  holder: define({
    input: z.strictObject({ name: wire.text }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (operations, { name }) => optional("lease", await operations.holder(name)),
  }),

  findPromise: define({
    input: z.strictObject({ name: wire.text }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (operations, { name }) => optional("lease", await operations.findPromise(name)),
  }),

  spec: define({
    input: z.strictObject({ pool: wire.poolName }),
    output: z.object({ spec: wire.poolSpec.exactOptional() }),
    scope: "preview",
    run: async (operations, { pool }) => optional("spec", await operations.spec(pool)),
  }),

  leases: define({
    input: z.strictObject({
      pool: wire.poolName,
      owner: wire.text.exactOptional(),
      after: wire.value.exactOptional(),
      limit: wire.count.max(PAGE),
    }),
    output: z.object({ leases: z.array(wire.lease) }),
    scope: "preview",
    run: async (operations, { pool, ...options }) => ({ leases: await operations.leases(pool, options) }),
  }),

  pools: define({
    input: z.strictObject({
      prefix: wire.text,
      after: wire.poolName.exactOptional(),
      limit: wire.count.max(PAGE),
    }),
    output: z.object({ pools: z.array(wire.poolSpec) }),
    scope: "preview",
    run: async (operations, { prefix, ...options }) => ({ pools: await operations.pools(prefix, options) }),
  }),

  freeExtents: define({
    input: z.strictObject({
      pool: wire.poolName,
      within: wire.extent.exactOptional(),
      limit: wire.count.max(MOST_EXTENTS),
    }),
    output: z.object({ extents: z.array(wire.extent) }),
    scope: "preview",
    run: async (operations, { pool, ...options }) => ({ extents: await operations.freeExtents(pool, options) }),
  }),

  poolsEndingWith: define({
    input: z.strictObject({ pool: wire.poolName }),
    output: z.object({ pools: z.array(z.object({ spec: wire.poolSpec, held: z.array(wire.lease) })) }),
    scope: "preview",
    run: async (operations, { pool }) => ({ pools: await operations.poolsEndingWith(pool) }),
  }),

  usage: define({
    input: z.strictObject({ pool: wire.poolName }),
    output: z.object({ usage: wire.usage.exactOptional() }),
    scope: "preview",
    run: async (operations, { pool }) => optional("usage", await operations.usage(pool)),
  }),

  usages: define({
    input: z.strictObject({ prefix: wire.text }),
    output: z.object({ usages: z.array(z.tuple([wire.poolName, wire.usage])) }),
    scope: "preview",
    run: async (operations, { prefix }) => ({ usages: [...(await operations.usages(prefix))] }),
  }),

  history: define({
    input: z.strictObject({
      pool: wire.poolName,
      after: wire.time.exactOptional(),
      limit: wire.count.max(MOST_EVENTS).exactOptional(),
    }),
    output: z.object({ events: z.array(wire.event) }),
    scope: "preview",
    run: async (operations, { pool, ...options }) => ({ events: await operations.history(pool, options) }),
  }),

  events: define({
    input: z.strictObject({ after: wire.count.exactOptional(), limit: wire.count.max(MOST_EVENTS).exactOptional() }),
    output: z.object({ events: z.array(wire.loggedEvent), last: wire.count }),
    scope: "preview",
    run: (operations, options) => operations.events(options),
  }),

  identity: define({
    input: z.strictObject({}),
    output: wire.storeIdentity,
    scope: "preview",
    run: (operations) => operations.identity(),
  }),

  findSeen: define({
    input: z.strictObject({ seen: wire.storeIdentity.strict() }),
    output: z.object({ first: wire.count, last: wire.count, recovered: z.boolean() }),
    scope: "preview",
    run: (operations, { seen }) => operations.findSeen(seen),
  }),
};

export type ProcedureName = keyof typeof API;
export const PROCEDURES = Object.keys(API) as ProcedureName[];
export type InputOf<N extends ProcedureName> = z.output<(typeof API)[N]["input"]>;
export type OutputOf<N extends ProcedureName> = z.output<(typeof API)[N]["output"]>;

/** The settings of the client. Those of the service limit them: see `SessionOptions`. */
export const session = z.strictObject({
  actor: wire.text.max(500),
  offerTtl: wire.seconds,
  quarantine: wire.seconds,
  seed: wire.text.exactOptional(),
  place: wire.text.exactOptional(),
});
export type ClientSession = z.output<typeof session>;

/** The body of a request. */
export const bodyOf = <N extends ProcedureName>(name: N) => z.strictObject({ session, input: API[name].input });

export const pathOf = (name: ProcedureName): string => `/api/pool/v1/${name}`;

export function encodeCall<N extends ProcedureName>(name: N, client: ClientSession, input: InputOf<N>): unknown {
  const encoded = bodyOf(name).safeEncode({ session: client, input } as z.output<ReturnType<typeof bodyOf<N>>>);
  if (encoded.success) return encoded.data;
  const { path, message } = encoded.error.issues[0]!;
  throw new OverlayError("INPUT_INVALID", `${path.slice(1).join(".")} ${message}.`, "Correct it.");
}

/** Rejects what is not an answer of the service, such as that of a program of another kind. */
export function decodeAnswer<N extends ProcedureName>(name: N, json: unknown, place?: string): OutputOf<N> {
  const decoded = API[name].output.safeParse(json);
  if (decoded.success) return decoded.data as OutputOf<N>;
  const { path, message } = decoded.error.issues[0]!;
  throw new OverlayError(
    "STORE_UNAVAILABLE",
    `The answer of the service at ${place} to ${name} is not valid: ${[...path, ""].join(".")} ${message}.`,
    "Set overlay:store to the URL of `overlayctl serve`, of this release or a newer one.",
  );
}

async function findHeld(operations: Operations, pool: string, leaseId: string): Promise<Lease> {
  const lease = await operations.find(pool, { leaseId });
  if (!lease) throw fencedError(pool, leaseId);
  if (!isCommitted(lease)) throw notClaimedError(lease);
  return lease;
}

const optional = <K extends string, V>(key: K, value: V | undefined): { [P in K]?: V } =>
  (value === undefined ? {} : { [key]: value }) as { [P in K]?: V };
