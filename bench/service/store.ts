import { createAccessToken } from "../../provider/access/access-tokens";
import { openIpam } from "../../provider/ipam";
import { findSpec } from "../../provider/ipam/interface";
import type { PoolSpec } from "../../provider/ipam/types";
import { deploy } from "../../test/unit/cli/ctl";
import type { Engine } from "../engines";
import { SETTINGS } from "../pool/adapter";
import { contentOf } from "../pool/cases";

/** A store with a network and one runner, as a program deploys them, and an access token. */

export const RUNNER = "training/node1";
const POOL = `runner/${RUNNER}`;

/** 2^14 addresses for each runner, as KohakuRiver has it. */
const LAYOUT = "10.128.0.0/12/6/14";

/** 2^21 addresses for each runner. */
export const LARGE_LAYOUT = "10.0.0.0/8/3/21";

/** Returns the access token, and the addresses of the runner. */
export async function prepareStore(url: string, subnets = LAYOUT): Promise<{ token: string; spec: PoolSpec }> {
  const pool = await openIpam(url, SETTINGS);
  try {
    await deploy(pool, ["node1"], { subnets });
    const input = { name: "bench", scopes: ["reserve" as const, "read" as const] };
    const { text } = await createAccessToken({ pool, createdBy: "bench" }, input);
    return { token: text, spec: (await findSpec(pool, POOL))! };
  } finally {
    await pool.end();
  }
}

/** Leases of the runner, written as rows: at random, with free addresses between them. */
export const fillRunner = (engine: Engine, spec: PoolSpec, leases: number): Promise<void> =>
  engine.load(contentOf({ name: POOL, cidr: "", spec, leases, filled: "at random" }));
