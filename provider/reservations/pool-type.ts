import { z } from "zod";
import type { PoolSpec } from "../ipam/types";
import { IP_POOLS } from "../pool-names";
import { poolSettings } from "../resources/ip-pool";

const storedSettings = z.object({ settings: poolSettings.pick({ type: true }) });

/** `clusterIP`, `container` and so on for an IPPool, `runner`, `network` or `space` for others; "" for a pool without settings. */
export function poolTypeOf({ name, data }: PoolSpec): string {
  if (!name.startsWith(IP_POOLS)) return name.slice(0, name.indexOf("/"));
  const parsed = storedSettings.safeParse(data);
  return parsed.success ? parsed.data.settings.type : "";
}
