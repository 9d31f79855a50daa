import type { z } from "zod";
import type { Operations, SessionOptions } from "../operations";
import { API, type bodyOf, denialOf, type OutputOf, type PoolUser, type Procedure, type ProcedureName } from "./api";

/** A store that a service opens for its users. */
export interface ServedStore {
  /** The operations of one request, in the bounds of its user. */
  session(options: SessionOptions): Operations;
  /** Settings of the service, in seconds: offers last at most as long, and quarantines at least. */
  offerTtl: number;
  quarantine: number;
}

/** Does one request. It keeps nothing for the next one: that may go to another instance. */
export async function serveCall<N extends ProcedureName>(
  name: N,
  { session, input }: z.output<ReturnType<typeof bodyOf<N>>>,
  store: ServedStore,
  user: PoolUser,
): Promise<OutputOf<N>> {
  const { scope, run } = API[name] as unknown as Procedure;
  const denial = denialOf(user, typeof scope === "function" ? scope(input) : scope);
  if (denial) throw denial;
  const operations = store.session({
    ...session,
    actor: `${user.name} (${session.actor})`,
    offerTtl: Math.min(session.offerTtl, store.offerTtl),
    quarantine: Math.max(session.quarantine, store.quarantine),
  });
  return (await run(operations, input, user)) as OutputOf<N>;
}
