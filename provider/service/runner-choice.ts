import { OverlayError } from "../errors";
import type { Pool } from "../pool/types";
import { addressPool, NETWORKS, networkOfPool } from "../pool-names";

/** A runner as requests name it: NAME if only one network has it, or NETWORK/NAME, or NAME beside the network. */
export interface RunnerChoice {
  network?: string | undefined;
  runner?: string | undefined;
}

/** The same with the network of the runner. */
export async function resolveRunner<C extends RunnerChoice>(pool: Pool, choice: C): Promise<C> {
  const { network, runner } = choice;
  if (runner === undefined) return choice;
  const [first, name] = runner.split("/") as [string, string?];
  if (name !== undefined && network !== undefined && network !== first)
    throw new OverlayError(
      "INPUT_INVALID",
      `Runner ${runner} is not in network ${network}.`,
      "Give the network once.",
    ).about("network");
  if (name !== undefined) return { ...choice, network: first, runner: name };
  return network === undefined ? { ...choice, network: await findNetworkOf(pool, runner) } : choice;
}

async function findNetworkOf(pool: Pool, runner: string): Promise<string> {
  const networks: string[] = [];
  for (const { name } of await pool.pools(NETWORKS)) {
    const network = networkOfPool(name);
    const lease = await pool.find(name, { name: addressPool(network, runner) });
    if (lease && lease.state !== "offered") networks.push(network);
  }
  const [network, ...others] = networks;
  if (network === undefined)
    throw new OverlayError("POOL_NOT_FOUND", `No network has a runner '${runner}'.`, "Check the name.").about("runner");
  if (others.length === 0) return network;
  throw new OverlayError(
    "INPUT_INVALID",
    `Networks ${networks.join(" and ")} have a runner '${runner}'.`,
    "Write it as NETWORK/RUNNER, or give the network.",
  ).about("network");
}
