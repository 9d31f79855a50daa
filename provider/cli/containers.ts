import { isOverlayError, OverlayError } from "../errors";
import type { Connection } from "../host/connection";
import { readHostFacts } from "../host/reconcile/facts";
import { containersOn, isOurDockerNetwork } from "../network/kinds/docker";
import type { Container, Facts } from "../network/model/facts";
import type { Lease } from "../pool";
import { findLeases, ipOf, isImported, isOfStack, isOfVm } from "../reservations";
import type { Session } from "./command";
import { type Login, Machines } from "./hosts/machines";
import { membersOf } from "./hosts/members";

/** Leases that say they are used by a container which its runner does not have, by the word of the Docker there. */
export async function withoutContainer(session: Session, network: string, login: Login): Promise<Lease[]> {
  const { runners } = await membersOf(async () => session.pool, { network });
  const machines = new Machines(session.settings, login);
  const found = await machines.use(() =>
    Promise.all(Object.entries(runners).map(([runner, at]) => onRunner(session, machines, network, runner, at))),
  );
  return found.flat();
}

/** Leases first: what is leased later has a container that was not looked for. */
async function onRunner({ pool, out }: Session, machines: Machines, network: string, runner: string, at: Connection) {
  const leases = (await findLeases(pool, { network, runner })).filter(saysContainer);
  if (leases.length === 0) return [];
  try {
    const containers = containersOf(network, await readHostFacts(await machines.connect(at)));
    return leases.filter((lease) => !containers.some((container) => uses(container, lease)));
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    out.note(`Not looked at: ${runner} (${error.message})`);
    return [];
  }
}

/** A stack's are left to the stack, and what was imported may be used by anything. */
const saysContainer = (lease: Lease): boolean =>
  lease.state === "used" && lease.usedBy !== undefined && ![isOfStack, isOfVm, isImported].some((is) => is(lease));

function containersOf(network: string, { docker, records }: Facts): Container[] {
  const items = records.filter((record) => record.network === network).flatMap((record) => record.items);
  if (docker?.isRunning && items.some((item) => item.kind === "docker" && isOurDockerNetwork(item, docker)))
    return containersOn(items, docker);
  throw new OverlayError(
    "DOCKER_UNAVAILABLE",
    `its Docker ${docker?.isRunning ? `has no network of ${network}` : "does not answer"}.`,
    "Start it, or free addresses by name: `overlayctl ip free`.",
  );
}

/** One that is stopped comes back with the address that it had. */
const uses = ({ name, running, addresses }: Container, lease: Lease): boolean =>
  running ? addresses.includes(ipOf(lease)) : name === lease.usedBy;
