import { z } from "zod";
import { OverlayError } from "../../errors";
import { fencedError, notClaimedError } from "../errors";
import { type Ipam, isCommitted, type Lease } from "../types";
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

const define = <I extends z.ZodType, O extends z.ZodType>(procedure: Procedure<I, O>): Procedure<I, O> => procedure;

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

  // The owner is offered the same values again. A refusal changes nothing.
  offer: define({
    input: z.strictObject({ request: wire.offerRequest }),
    output: z.object({ lease: wire.lease }),
    scope: ({ request }) => (request.inUp ? "deploy" : "preview"),
    run: async (ipam, { request }) => ({ lease: await ipam.offer(request) }),
  }),

  withdraw: define({
    input: z.strictObject({ owner: wire.owner, program: wire.text, pool: wire.poolName }),
    output: nothing,
    scope: "preview",
    run: (ipam, { owner, program, pool }) => done(ipam.withdraw(owner, program, pool)),
  }),

  // The owner gets the same values again, under a newer lease id. The run has seen no other.
  claim: define({
    input: z.strictObject({ request: wire.request }),
    output: z.object({ lease: wire.lease, version }),
    scope: "deploy",
    run: async (ipam, { request }) => withVersion(ipam, await ipam.claim(request)),
  }),

  claimAll: define({
    input: z.strictObject({ requests: z.array(wire.request).min(1).max(PAGE) }),
    output: z.object({ leases: z.array(wire.lease), version }),
    scope: "deploy",
    run: async (ipam, { requests }) => {
      const leases = await ipam.claimAll(requests);
      return { leases, ...optional("version", ipam.versionOf(leases[0]!)) };
    },
  }),

  // The same change again. If it has changed what `onlyIf` compares, the client compares with what it has changed it to.
  amend: define({
    input: z.strictObject({ ...place, changes: wire.changes, dryRun, onlyIf }),
    output: z.object({ lease: wire.lease, version }),
    scope: ({ dryRun }) => (dryRun ? "preview" : "deploy"),
    run: async (ipam, { pool, leaseId, changes, ...options }) =>
      withVersion(ipam, await ipam.amend(pool, leaseId, changes, options)),
  }),

  // Leases that were added are found unchanged.
  importLeases: define({
    input: z.strictObject({
      leases: z.array(wire.existingLease).max(10 * PAGE),
      missing: z.array(wire.missingPool).max(PAGE).exactOptional(),
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
    run: (ipam, { pool, leaseId, ...options }) => done(ipam.close(pool, leaseId, options)),
  }),

  // After a repeated request, the client takes a lease that has gone for released.
  release: define({
    input: z.strictObject({ ...place, onlyIf, program: wire.text.exactOptional() }),
    output: z.object({ released: z.boolean() }),
    scope: "deploy",
    run: async (ipam, { pool, leaseId, ...options }) => ({
      released: await ipam.release(pool, leaseId, options),
    }),
  }),

  touch: define({
    input: z.strictObject({ ...place, ttl: wire.seconds.exactOptional() }),
    output: nothing,
    scope: "deploy",
    run: (ipam, { pool, leaseId, ...options }) => done(ipam.touch(pool, leaseId, options)),
  }),

  /** Of leases that the store has: the client says which, not what the tokens permit. */
  signTokens: define({
    input: z.strictObject({ leases: z.array(z.strictObject(place)).max(PAGE) }),
    output: z.object({ tokens: z.array(z.string()) }),
    scope: "deploy",
    run: async (ipam, input) => {
      const leases: Lease[] = [];
      for (const { pool, leaseId } of input.leases) leases.push(await findHeld(ipam, pool, leaseId));
      return { tokens: await ipam.signTokens(leases) };
    },
  }),

  openToken: define({
    input: z.strictObject({ token: z.string().max(5000), runner: wire.text.exactOptional() }),
    output: z.object({ grant: wire.grant }),
    scope: "preview",
    run: async (ipam, { token, ...expected }) => ({ grant: await ipam.openToken(token, expected) }),
  }),

  // Queries change nothing; the first `identity` gives the store its id.

  find: define({
    input: z.strictObject({ pool: wire.poolName, by: wire.by }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (ipam, { pool, by }) => optional("lease", await ipam.find(pool, by)),
  }),

  endOf: define({
    input: z.strictObject({ pool: wire.poolName, uid: wire.leaseId }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (ipam, { pool, uid }) => optional("lease", await ipam.endOf(pool, uid)),
  }),

  holder: define({
    input: z.strictObject({ name: wire.text }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (ipam, { name }) => optional("lease", await ipam.holder(name)),
  }),

  findOffer: define({
    input: z.strictObject({ owner: wire.text, program: wire.text }),
    output: z.object({ lease: wire.lease.exactOptional() }),
    scope: "preview",
    run: async (ipam, { owner, program }) => optional("lease", await ipam.findOffer(owner, program)),
  }),

  spec: define({
    input: z.strictObject({ pool: wire.poolName }),
    output: z.object({ spec: wire.poolSpec.exactOptional() }),
    scope: "preview",
    run: async (ipam, { pool }) => optional("spec", await ipam.spec(pool)),
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
    run: async (ipam, { pool, ...options }) => ({ leases: await ipam.leases(pool, options) }),
  }),

  pools: define({
    input: z.strictObject({
      prefix: wire.text,
      after: wire.poolName.exactOptional(),
      limit: wire.count.max(PAGE),
    }),
    output: z.object({ pools: z.array(wire.poolSpec) }),
    scope: "preview",
    run: async (ipam, { prefix, ...options }) => ({ pools: await ipam.pools(prefix, options) }),
  }),

  freeExtents: define({
    input: z.strictObject({
      pool: wire.poolName,
      within: wire.extent.exactOptional(),
      limit: wire.count.max(MOST_EXTENTS),
    }),
    output: z.object({ extents: z.array(wire.extent) }),
    scope: "preview",
    run: async (ipam, { pool, ...options }) => ({ extents: await ipam.freeExtents(pool, options) }),
  }),

  poolsEndingWith: define({
    input: z.strictObject({ pool: wire.poolName }),
    output: z.object({ pools: z.array(z.object({ spec: wire.poolSpec, held: z.array(wire.lease) })) }),
    scope: "preview",
    run: async (ipam, { pool }) => ({ pools: await ipam.poolsEndingWith(pool) }),
  }),

  usage: define({
    input: z.strictObject({ pool: wire.poolName }),
    output: z.object({ usage: wire.usage.exactOptional() }),
    scope: "preview",
    run: async (ipam, { pool }) => optional("usage", await ipam.usage(pool)),
  }),

  usages: define({
    input: z.strictObject({ prefix: wire.text }),
    output: z.object({ usages: z.array(z.tuple([wire.poolName, wire.usage])) }),
    scope: "preview",
    run: async (ipam, { prefix }) => ({ usages: [...(await ipam.usages(prefix))] }),
  }),

  history: define({
    input: z.strictObject({
      pool: wire.poolName,
      after: wire.time.exactOptional(),
      limit: wire.count.max(MOST_EVENTS).exactOptional(),
    }),
    output: z.object({ events: z.array(wire.event) }),
    scope: "preview",
    run: async (ipam, { pool, ...options }) => ({ events: await ipam.history(pool, options) }),
  }),

  events: define({
    input: z.strictObject({ after: wire.count.exactOptional(), limit: wire.count.max(MOST_EVENTS).exactOptional() }),
    output: z.object({ events: z.array(wire.loggedEvent), last: wire.count }),
    scope: "preview",
    run: (ipam, options) => ipam.events(options),
  }),

  identity: define({
    input: z.strictObject({}),
    output: wire.storeIdentity,
    scope: "preview",
    run: (ipam) => ipam.identity(),
  }),

  findSeen: define({
    input: z.strictObject({ seen: wire.storeIdentity.strict() }),
    output: z.object({ first: wire.count, last: wire.count, recovered: z.boolean() }),
    scope: "preview",
    run: (ipam, { seen }) => ipam.findSeen(seen),
  }),
};

export type ProcedureName = keyof typeof API;
export const PROCEDURES = Object.keys(API) as ProcedureName[];
export type InputOf<N extends ProcedureName> = z.output<(typeof API)[N]["input"]>;
export type OutputOf<N extends ProcedureName> = z.output<(typeof API)[N]["output"]>;

/** The settings of the client. Those of the service limit them: see `Ipam.session`. */
export const session = z.strictObject({
  actor: wire.text.max(500),
  offerTtl: wire.seconds,
  quarantine: wire.seconds,
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

async function findHeld(ipam: Ipam, pool: string, leaseId: string): Promise<Lease> {
  const lease = await ipam.find(pool, { leaseId });
  if (!lease) throw fencedError(pool, leaseId);
  if (!isCommitted(lease)) throw notClaimedError(lease);
  return lease;
}

const withVersion = (ipam: Ipam, lease: Lease) => ({ lease, ...optional("version", ipam.versionOf(lease)) });

const optional = <K extends string, V>(key: K, value: V | undefined): { [P in K]?: V } =>
  (value === undefined ? {} : { [key]: value }) as { [P in K]?: V };
