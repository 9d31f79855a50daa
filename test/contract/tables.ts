import { LocalIpam } from "../../provider/ipam/ipam";
import { RunPlan } from "../../provider/ipam/run-plan";
import { openSqlite } from "../../provider/ipam/store/sqlite";
import type { Pool } from "../../provider/ipam/types";
import type { Engine } from "./fixture";

/** A run and its store as one object. */
function poolOf(ipam: LocalIpam, swapWait: number | undefined): Pool {
  const plan = new RunPlan(ipam, { swapWait });
  const own = { session: (options: { actor: string }) => poolOf(ipam.session(options), swapWait) };
  const get = (_: unknown, key: string) => {
    const from = [own, plan, ipam].find((each) => key in each) as Record<string, unknown>;
    const value = from?.[key];
    return typeof value === "function" ? value.bind(from) : value;
  };
  return new Proxy({}, { get }) as Pool;
}

let stores = 0;

export const tablesEngine = (): Engine => ({
  name: "tables",
  newUrl: () => `memory:tables${stores++}`,
  open: async (url, { swapWait, ...terms }, clock) =>
    poolOf(new LocalIpam(await openSqlite(url, { clock }), terms), swapWait),
});
