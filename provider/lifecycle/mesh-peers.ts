import { createHash } from "node:crypto";
import { dataEntries, type Ipam, isCommitted, type Lease } from "../ipam/types";
import type { Underlay } from "../network/plan/hub";
import type { MeshPeer } from "../network/plan/tunnels/tunnel";
import { readTunnelEnd, type TunnelEnd } from "../network/plan/tunnels/tunnel-end";
import type { Definition } from "../resource";
import { isEqual, type Values } from "./values";

/**
 * In a mesh the other runners are peers of each runner. They follow from the leases of the network's pool. The lease of a runner
 * that is a member lists its direct routes, those to runners that answered on its host: what a host lacks is found without contact to it.
 */

/** Another member of the mesh. */
export interface Peer extends MeshPeer {
  uid: string;
  name: string;
  /** Identifies the direct route to it: another key or address of one of the two makes it another route. */
  route: string;
}

type End = Pick<Underlay, "underlayIp" | "publicKey">;

/** Its direct routes, as its host has them; undefined: it is not a member of a mesh. */
export function readDirectRoutes(lease: Pick<Lease, "data">): string[] | undefined {
  const { directRoutes } = dataEntries(lease);
  return Array.isArray(directRoutes) ? directRoutes.map(String) : undefined;
}

export const idOfRoute = (route: string): number => Number(route.split(":")[0]);

/** Whether it leaves the mesh, or has to join it again with another device. */
export const leavesMesh = (def: Definition, lease: Lease, olds: Values, news: Values): boolean =>
  readDirectRoutes(lease) !== undefined &&
  (meshPool(def, news) === undefined || !isEqual(def.host!.mesh!.ends(olds), def.host!.mesh!.ends(news)));

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
  const leases = leaveOutCopiedKeys((await ipam.leases(pool)).filter(isCommitted), props, own);
  const mine = leases.find(({ uid }) => uid === props.uid);
  const end = own ?? (mine && readTunnelEnd(mine));
  const { tunnel } = def.host!.mesh!.ends(props);
  const routes = new Set(mine && readDirectRoutes(mine));
  return leases.flatMap((lease) => {
    const peer = end && lease.uid !== props.uid ? toPeer(end, tunnel, lease) : undefined;
    return peer ? [{ ...peer, isRouted: routes.has(peer.route) }] : [];
  });
}

/**
 * A device has one peer for a key: of two runners with one key, the packets of one would go to the other. A user that may write leases of the
 * network can store any key in its own. Both are reached by the hub.
 */
function leaveOutCopiedKeys(leases: Lease[], { uid }: Values, own?: End): Lease[] {
  const keys = leases.map((lease) => (lease.uid === uid && own ? own : readTunnelEnd(lease))?.publicKey);
  const isCopied = (key: string, at: number): boolean => keys.indexOf(key) !== at || keys.lastIndexOf(key) !== at;
  return leases.filter(({ uid: other }, i) => other === uid || keys[i] === undefined || !isCopied(keys[i], i));
}

/** undefined: it is not a member, has another tunnel, or is being deleted. */
function toPeer(own: End, tunnel: TunnelEnd["tunnel"], lease: Lease): Omit<Peer, "isRouted"> | undefined {
  const end = readTunnelEnd(lease);
  if (end?.tunnel !== tunnel || !readDirectRoutes(lease) || lease.deletingSince !== undefined) return undefined;
  const id = Number(lease.ranges[0]!.first);
  const ends = [own.underlayIp, own.publicKey, end.underlayIp, end.port, end.publicKey];
  const digest = createHash("sha256").update(ends.join(" ")).digest("hex").slice(0, 8);
  const { name } = dataEntries(lease);
  const { underlayIp, port, publicKey } = end;
  const address = { underlayIp, port, ...(publicKey && { publicKey }) };
  return { uid: lease.uid, id, ...address, name: String(name ?? id), route: `${id}:${digest}` };
}

/** What a host that has these routes lacks; empty: nothing. */
export function compareRoutes(routes: string[] | undefined, peers: Peer[]): string[] {
  if (routes === undefined) return ["is not a member of the mesh yet"];
  const wanted = new Set(peers.map(({ route }) => route));
  const missing = peers.filter(({ route }) => !routes.includes(route)).map(({ name }) => name);
  const surplus = routes.filter((route) => !wanted.has(route)).map(idOfRoute);
  return [
    ...(missing.length > 0 ? [`has no direct route to ${missing.join(", ")}`] : []),
    ...(surplus.length > 0 ? [`has a stale direct route to runner ${surplus.join(", ")}`] : []),
  ];
}
