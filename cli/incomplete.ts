import { hostId } from "../provider/host/connection";
import type { Ipam, Lease } from "../provider/ipam";
import { dataEntries, isCommitted } from "../provider/ipam/types";
import { meshPool, type Peer, readDirectRoutes } from "../provider/lifecycle/mesh-peers";
import { isEqual, type Values } from "../provider/lifecycle/values";
import { readTunnelEnd, type TunnelEnd } from "../provider/network/plan/tunnels/tunnel-end";
import { networkOfPool } from "../provider/pool-names";
import { targetsOf, type Underlays } from "../provider/resource";
import { resourceOf } from "../provider/resources";
import { hostIdOfLease } from "./hosts";
import { compareNaturally } from "./output";
import type { PlannedResource } from "./planned";

/** What an up does and `overlayctl plan` does not show: it depends on what hosts answer meanwhile. */

/** A resource of which the plan has the hosts. */
export interface PlannedHosts {
  each: PlannedResource;
  props: Values;
  /** As it is before the up. */
  lease: Lease | undefined;
  /** Those of a deleted resource are empty, and so are its peers. */
  underlays: Underlays;
  peers: Peer[];
}

export async function findMissing(pool: Ipam, planned: PlannedHosts[]): Promise<string[]> {
  const tunnels = planned.filter(changesTunnel).map(describeHosts).sort(compareNaturally);
  const joined = planned.filter(changesMesh);
  const pools = [...new Set(joined.map(meshOf))];
  const meshes = await Promise.all(pools.map((name) => describeMesh(pool, name, joined)));
  return [
    ...(tunnels.length > 0
      ? [
          `the steps in which the tunnel changes while packets pass, of ${tunnels.join(", ")}: only what is there afterwards`,
        ]
      : []),
    ...meshes.flatMap((text) => text ?? []),
  ];
}

function changesTunnel({ each, props, lease, underlays }: PlannedHosts): boolean {
  const { host } = resourceOf(each.type);
  const held = lease && readTunnelEnd(lease);
  return (
    !each.isDeleted &&
    !!host?.tunnelChanges &&
    !!held &&
    !isEqual(choiceOf(held), choiceOf(endOf(each, props, underlays)!))
  );
}

/** What makes a tunnel another one. That of VXLAN is another one with another UDP port, too. */
const choiceOf = ({ tunnel, keyGeneration, vniBase, port }: TunnelEnd) =>
  tunnel === "vxlan" ? { tunnel, vniBase, port } : { tunnel, keyGeneration };

const endOf = ({ type }: PlannedResource, props: Values, underlays: Underlays): TunnelEnd | undefined =>
  resourceOf(type).host?.tunnelEnd?.(props, underlays);

const describeHosts = ({ each, props }: PlannedHosts): string => {
  const hosts = targetsOf(resourceOf(each.type), props).map(({ connection }) => hostId(connection));
  return `${each.name} (${hosts.join(", ")})`;
};

/** Whether other hosts of a mesh get or lose it as a peer, or routes of its own follow once data has passed. */
function changesMesh({ each, props, lease, underlays, peers }: PlannedHosts): boolean {
  if (!resourceOf(each.type).host?.mesh) return false;
  const isIn = !each.isDeleted && meshPool(resourceOf(each.type), props) !== undefined;
  const wasIn = lease !== undefined && readDirectRoutes(lease) !== undefined;
  const address = ({ underlayIp, port, publicKey }: Partial<TunnelEnd> = {}) => ({ underlayIp, port, publicKey });
  const hasMoved = (): boolean =>
    !isEqual(address(readTunnelEnd(lease!)), address(endOf(each, props, underlays))) ||
    peers.some(({ isRouted }) => !isRouted);
  return isIn !== wasIn || (isIn && hasMoved());
}

/** The pool of its network. */
const meshOf = ({ each, props }: PlannedHosts): string => resourceOf(each.type).request(props, "").pool;

async function describeMesh(pool: Ipam, name: string, joined: PlannedHosts[]): Promise<string | undefined> {
  const changed = joined.filter((each) => meshOf(each) === name);
  const present = (await pool.leases(name)).filter((lease) => isCommitted(lease) && readDirectRoutes(lease));
  const others = present.filter(({ uid }) => !changed.some(({ lease }) => lease?.uid === uid));
  if (changed.length + others.length < 2) return undefined;
  const hosts = [
    ...changed.map(({ props }) => [props.runnerName, hostIdOfRunner(props)]),
    ...others.map((lease) => [dataEntries(lease).name, hostIdOfLease(lease)]),
  ].map(([runner, host]) => `${runner} (${host})`);
  const list = (names: string[]): string => names.sort(compareNaturally).join(", ");
  const causes = list(changed.map(({ each }) => each.name));
  return `in the mesh of network ${networkOfPool(name)}, the peers and direct routes that change with ${causes}, on ${list(hosts)}`;
}

const hostIdOfRunner = ({ connection }: Values): string => hostId(connection as { host: string });
