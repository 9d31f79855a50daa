import type { z } from "zod";
import type { Operations, SessionOptions } from "../operations";
import { API, type bodyOf, denialOf, type OutputOf, type PoolUser, type Procedure, type ProcedureName } from "./api";

/** Does one call for a user. It keeps nothing for the next one, which another instance may get. */
export async function serveCall<N extends ProcedureName>(
  name: N,
  { session, input }: z.output<ReturnType<typeof bodyOf<N>>>,
  user: PoolUser,
  /** The operations in the bounds of the user. */
  open: (session: SessionOptions) => Operations,
): Promise<OutputOf<N>> {
  const { scope, run } = API[name] as unknown as Procedure;
  const denial = denialOf(user, typeof scope === "function" ? scope(input) : scope);
  if (denial) throw denial;
  const operations = open({ ...session, actor: `${user.name} (${session.actor})` });
  return (await run(operations, input, user)) as OutputOf<N>;
}
