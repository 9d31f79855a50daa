import type { z } from "zod";
import type { IpamSettings } from "../session";
import type { Ipam } from "../types";
import { API, type bodyOf, denialOf, type OutputOf, type PoolUser, type Procedure, type ProcedureName } from "./api";

/** Does one call for a user. It keeps nothing for the next one, which another instance may get. */
export async function serveCall<N extends ProcedureName>(
  name: N,
  { session, input }: z.output<ReturnType<typeof bodyOf<N>>>,
  user: PoolUser,
  /** The store in the bounds of the user. */
  open: (session: Partial<IpamSettings>) => Ipam,
): Promise<OutputOf<N>> {
  const { scope, run } = API[name] as unknown as Procedure;
  const denial = denialOf(user, typeof scope === "function" ? scope(input) : scope);
  if (denial) throw denial;
  const ipam = open({ ...session, actor: `${user.name} (${session.actor})` });
  return (await run(ipam, input, user)) as OutputOf<N>;
}
