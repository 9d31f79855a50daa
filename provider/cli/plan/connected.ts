import type { Connection } from "../../host/connection";
import { buildRequest } from "../../lifecycle/lease";
import type { Values } from "../../lifecycle/values";
import type { Pool } from "../../pool";
import { networkPool } from "../../pool-names";
import { resourceOf } from "../../resources";
import { readHub } from "../../resources/network-settings";
import { connectionAt, machineIn } from "../hosts/members";
import type { Planned } from "./planned";

/** What the options say of machines, by role or by the runner's name. */
export interface Given {
  hub?: Connection;
  runner?: Record<string, Connection>;
}

/**
 * Pulumi never prints connections in a preview. But the preview has told the pool on which machine each resource will be:
 * its offer holds the names of its devices there. Login comes from the settings. undefined: the pool does not know.
 */
export async function connected(pool: Pool, planned: Planned, given: Given): Promise<Values | undefined> {
  const { type, props } = planned;
  const hidden = resourceOf(type).secrets.filter((key) => isHidden(props[key]));
  const filled = { ...props };
  for (const key of hidden) {
    const connection = key === "hubConnection" ? await hubOf(pool, props, given) : await runnerOf(pool, planned, given);
    if (!connection) return undefined;
    filled[key] = connection;
  }
  return filled;
}

const isHidden = (value: unknown): boolean => typeof value === "string" || value === undefined;

async function hubOf(pool: Pool, props: Values, { hub }: Given): Promise<Connection | undefined> {
  if (hub) return hub;
  const name = (props.network as { networkName?: string } | undefined)?.networkName ?? props.networkName;
  const spec = await pool.spec(networkPool(String(name)));
  const machine = spec && readHub(spec);
  return machine ? connectionAt(machine) : undefined;
}

async function runnerOf(pool: Pool, { type, props }: Planned, { runner }: Given): Promise<Connection | undefined> {
  const named = runner?.[String(props.runnerName)];
  if (named) return named;
  const { pool: name } = buildRequest(resourceOf(type), props);
  const lease = (await pool.spec(name)) && (await pool.find(name, { owner: String(props.owner) }));
  const machine = lease && machineIn(lease);
  return machine ? connectionAt(machine) : undefined;
}
