import { containersOn } from "../network/kinds/docker";
import type { Container } from "../network/model/facts";
import type { Fact, Pool } from "../pool";
import { isFirm } from "../pool/types";
import { resourceOf } from "../resources";
import { userName } from "../resources/runner-subnet";
import type { Exported } from "./exports";
import type { Read } from "./scan/surveyed";

/** Which addresses containers use, by the word of the Docker on the machines: exports know only of the last up or refresh. */

/** The containers on the Docker networks that our records list, by overlay network. */
export function containersIn(reads: Pick<Read, "facts">[]): Map<string, Container[]> {
  const found = new Map<string, Container[]>();
  for (const { facts } of reads) {
    for (const { network, items } of facts.records)
      found.set(network, [...(found.get(network) ?? []), ...containersOn(items, facts.docker)]);
  }
  return found;
}

/**
 * Facts in which what a container has is used by it: the lease of that address, or else a lease of the container's own. What the
 * store knows otherwise stays as it is.
 */
export async function withContainerUsers(
  pool: Pool,
  facts: Fact[],
  found: Exported[],
  containers: Map<string, Container[]>,
): Promise<Fact[]> {
  const result = [...facts];
  const taken = new Set(facts.flatMap(({ names = [] }) => names));
  for (const { type, props } of found) {
    const network = (props.network as { networkName?: string } | undefined)?.networkName ?? "";
    for (const use of resourceOf(type).host?.containerLeases?.(props, containers.get(network) ?? []) ?? []) {
      const i = result.findIndex((fact) => holdsSome(fact, use));
      if (i >= 0) result[i] = withUser(result[i]!, use.usedBy!, userName(network, use.usedBy!), taken);
      else if (!(await isHeld(pool, use))) result.push(use);
    }
  }
  return result;
}

const holdsSome = (fact: Fact, use: Fact): boolean =>
  fact.pool === use.pool && fact.want.some(({ first }) => use.want.some((extent) => extent.first === first));

/** A user has one address on a network: its name goes to the first. */
function withUser(fact: Fact, usedBy: string, name: string, taken: Set<string>): Fact {
  if (fact.usedBy !== undefined) return fact;
  const names = taken.has(name) ? {} : { names: [...(fact.names ?? []), name] };
  taken.add(name);
  return { ...fact, usedBy, state: "used", ...names };
}

async function isHeld(pool: Pool, { pool: name, owner, want }: Fact): Promise<boolean> {
  const lease = await pool.find(name, { value: want[0]!.first });
  return lease !== undefined && isFirm(lease) && lease.owner !== owner;
}
