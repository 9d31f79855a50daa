import { createHash } from "node:crypto";
import { dataEntries, type Ipam, isCommitted, type Lease } from "../ipam/types";
import type { Underlay } from "../network/plan/hub";
import type { MeshPeer } from "../network/plan/tunnels/tunnel";
import { readTunnelEnd } from "../network/plan/tunnels/tunnel-end";
import type { Definition } from "../resource";
import type { Values } from "./values";

/**
 * In a mesh the other runners are peers of each runner. They follow from the leases of the network's pool. The lease of a runner
 * that takes part lists its direct ways, those to runners that answered on its host: a way by which a host is behind is found without contact to it.
 */

/** Another runner that takes part. */
export interface Peer extends MeshPeer {
  name: string;
  /** Identifies the way to it: one of the two with another key or address makes it another way. */
  way: string;
}

type End = Pick<Underlay, "underlayIp" | "publicKey">;

/** Its direct ways, as its host has them; undefined: it takes no part in a mesh. */
export function readWays(lease: Pick<Lease, "data">): string[] | undefined {
  const { ways } = dataEntries(lease);
  return Array.isArray(ways) ? ways.map(String) : undefined;
}

export const idOfWay = (way: string): number => Number(way.split(":")[0]);

/** The pool whose leases are the runners of its mesh; undefined: it is in none. */
export const meshPool = (def: Definition, props: Values): string | undefined => def.host?.mesh?.pool(props);

/** The other runners of a resource's mesh; none if it is in none. `own`: its host, if that was asked; else as its lease has it. */
export async function findPeers(
  def: Definition,
  ipam: Pick<Ipam, "leases">,
  props: Values,
  own?: End,
): Promise<Peer[]> {
  const pool = meshPool(def, props);
  if (pool === undefined) return [];
  const leases = (await ipam.leases(pool)).filter(isCommitted);
  const mine = leases.find(({ uid }) => uid === props.uid);
  const end = own ?? (mine && readTunnelEnd(mine));
  const ways = new Set(mine && readWays(mine));
  return leases.flatMap((lease) => {
    const peer = end && lease.uid !== props.uid ? toPeer(end, lease) : undefined;
    return peer ? [{ ...peer, isRouted: ways.has(peer.way) }] : [];
  });
}

/** undefined: it takes no part, or is being deleted. */
function toPeer(own: End, lease: Lease): Omit<Peer, "isRouted"> | undefined {
  const end = readTunnelEnd(lease);
  if (!end?.publicKey || !readWays(lease) || lease.deletingSince !== undefined) return undefined;
  const id = Number(lease.ranges[0]!.first);
  const ends = [own.underlayIp, own.publicKey, end.underlayIp, end.port, end.publicKey];
  const digest = createHash("sha256").update(ends.join(" ")).digest("hex").slice(0, 8);
  const { name } = dataEntries(lease);
  const { underlayIp, port, publicKey } = end;
  return { id, underlayIp, port, publicKey, name: String(name ?? id), way: `${id}:${digest}` };
}

/** What a host that has these ways lacks; empty: nothing. */
export function compareWays(ways: string[] | undefined, peers: Peer[]): string[] {
  if (ways === undefined) return ["takes no part in the mesh yet"];
  const wanted = new Set(peers.map(({ way }) => way));
  const missing = peers.filter(({ way }) => !ways.includes(way)).map(({ name }) => name);
  const surplus = ways.filter((way) => !wanted.has(way)).map(idOfWay);
  return [
    ...(missing.length > 0 ? [`has no direct way to ${missing.join(", ")}`] : []),
    ...(surplus.length > 0 ? [`has an old way to runner ${surplus.join(", ")}`] : []),
  ];
}
