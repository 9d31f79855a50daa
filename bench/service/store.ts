import { createAccessToken } from "../../provider/access/access-tokens";
import { openIpam } from "../../provider/ipam";
import { deploy } from "../../test/unit/cli/ctl";
import { SETTINGS } from "../pool/adapter";

/** A store with a network and one runner, as a program deploys them, and an access token, which is returned. */

export const RUNNER = "training/node1";

export async function prepareStore(url: string): Promise<string> {
  const pool = await openIpam(url, SETTINGS);
  try {
    // 2^14 addresses for each runner, as KohakuRiver has it.
    await deploy(pool, ["node1"], { subnets: "10.128.0.0/12/6/14" });
    const input = { name: "bench", scopes: ["reserve" as const, "read" as const] };
    return (await createAccessToken({ pool, createdBy: "bench" }, input)).text;
  } finally {
    await pool.end();
  }
}
