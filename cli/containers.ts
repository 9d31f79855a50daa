import { isOverlayError, OverlayError } from "../provider/errors";
import type { Connection } from "../provider/host/connection";
import { readHostFacts } from "../provider/host/reconcile/host-state";
import type { ExistingLease, Ipam, Lease } from "../provider/ipam";
import { isCommitted } from "../provider/ipam/types";
import { containersOn, isOurDockerNetwork } from "../provider/network/kinds/docker";
import type { Container, Facts } from "../provider/network/model/facts";
import { findLeases, ipOf, isImported, isOfStack, isOfVm } from "../provider/reservations";
import { resourceOf } from "../provider/resources";
import { userLeaseName } from "../provider/resources/runner-subnet";
import type { Session } from "./command";
import { CliHosts, findMembers, type Login } from "./hosts";
import type { ExportedResource } from "./stack-export";
import type { HostState } from "./survey";

/** Leases in use by a container that Docker on the runner does not have. */
export async function findLeasesWithoutContainer(session: Session, network: string, login: Login): Promise<Lease[]> {
  const { runners } = await findMembers(async () => session.pool, { network });
  const hosts = new CliHosts(session.settings, login);
  const found = await hosts.use(() =>
    Promise.all(Object.entries(runners).map(([runner, at]) => findOnRunner(session, hosts, network, runner, at))),
  );
  return found.flat();
}

/** Reads the leases before the containers: a lease that is made meanwhile is not missed in the list of containers. */
async function findOnRunner({ pool, out }: Session, hosts: CliHosts, network: string, runner: string, at: Connection) {
  const leases = (await findLeases({ pool }, { network, runner })).filter(isUsedByContainer);
  if (leases.length === 0) return [];
  try {
    const containers = readContainers(network, await readHostFacts(await hosts.connect(at)));
    return leases.filter((lease) => !containers.some((container) => usesLease(container, lease)));
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    out.note(`Skipped: ${runner} (${error.message})`);
    return [];
  }
}

/** Leases of stacks are released by the stack, and imported ones may be used by any program. */
const isUsedByContainer = (lease: Lease): boolean =>
  lease.state === "used" && lease.usedBy !== undefined && ![isOfStack, isOfVm, isImported].some((is) => is(lease));

function readContainers(network: string, { docker, records }: Facts): Container[] {
  const items = records.filter((record) => record.network === network).flatMap((record) => record.items);
  if (docker?.isRunning && items.some((item) => item.kind === "docker" && isOurDockerNetwork(item, docker)))
    return containersOn(items, docker);
  throw new OverlayError(
    "DOCKER_UNAVAILABLE",
    `its Docker ${docker?.isRunning ? `has no network of ${network}` : "does not answer"}.`,
    "Start it, or release single addresses with `overlayctl ip free`.",
  );
}

/** A stopped container gets the same address when it starts. */
const usesLease = ({ name, running, addresses }: Container, lease: Lease): boolean =>
  running ? addresses.includes(ipOf(lease)) : name === lease.usedBy;

// Addresses of containers as Docker reports them: exports have only the state of the last up or refresh.

/** The containers on the Docker networks in our records, by overlay network. */
export function groupContainers(reads: Pick<HostState, "facts">[]): Map<string, Container[]> {
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
  pool: Ipam,
  facts: ExistingLease[],
  found: ExportedResource[],
  containers: Map<string, Container[]>,
): Promise<ExistingLease[]> {
  const result = [...facts];
  const taken = new Set(facts.flatMap(({ names = [] }) => names));
  for (const { type, props } of found) {
    const network = (props.network as { networkName?: string } | undefined)?.networkName ?? "";
    for (const use of resourceOf(type).host?.containerLeases?.(props, containers.get(network) ?? []) ?? []) {
      const i = result.findIndex((fact) => sharesAddress(fact, use));
      if (i >= 0) result[i] = withUser(result[i]!, use.usedBy!, userLeaseName(network, use.usedBy!), taken);
      else if (!(await isHeld(pool, use))) result.push(use);
    }
  }
  return result;
}

const sharesAddress = (fact: ExistingLease, use: ExistingLease): boolean =>
  fact.pool === use.pool && fact.values.some(({ first }) => use.values.some((range) => range.first === first));

/** A container has one address on a network: the first lease gets its name. */
function withUser(fact: ExistingLease, usedBy: string, name: string, taken: Set<string>): ExistingLease {
  if (fact.usedBy !== undefined) return fact;
  const names = taken.has(name) ? {} : { names: [...(fact.names ?? []), name] };
  taken.add(name);
  return { ...fact, usedBy, state: "used", ...names };
}

async function isHeld(pool: Ipam, { pool: name, owner, values }: ExistingLease): Promise<boolean> {
  const lease = await pool.find({ pool: name, value: values[0]!.first });
  return lease !== undefined && isCommitted(lease) && lease.owner !== owner;
}
