import type { Item, Route } from "../../model/items";
import type { Network, Underlay } from "../hub";

/**
 * How packets pass between the hub and a runner. One file for each tunnel beside this one, and a line in index.ts; the rest of the
 * planner does not know which one a network has.
 */
export interface Tunnel {
  /** Whether the runner answers its workloads for the hub's address in its subnet. With a tunnel that is a port of its bridge, the hub does. */
  isRouted: boolean;
  /** Bytes of the outer headers, by which the overlay's MTU is smaller than that of the underlay. */
  overhead(underlayIp: string): number;
  /** The device on the hub that leads to this runner. */
  hubDevice(network: Pick<Network, "devicePrefix" | "keyGeneration">, runnerId: number): string;
  /** What the hub has for all runners, in the record of the network. */
  planHub(network: Network, hub: Underlay): Item[];
  /** The hub's end of one runner's tunnel, in the record of the runner. */
  planHubEnd(network: Network, runnerId: number, hub: Underlay, runner: Underlay): Item[];
  /** The runner's end, with the rules of its own; bridge, addresses and rules of workloads are the same for all tunnels. */
  planRunnerEnd(network: Network, runnerId: number, device: string, hub: Underlay, runner: Underlay): Item[];
  /** More that the ends need while they have another tunnel, too: see plan/tunnel-change.ts. */
  planTransition(network: Network, runnerId: number, hub: Underlay, runner: Underlay): { hub: Item[]; runner: Item[] };
  /** The runner's device by which the hub's probe address is reached. */
  probeDevice(network: Pick<Network, "devicePrefix" | "bridgeName" | "keyGeneration">): string;
  /** The next hop of a runner towards the hub. */
  nextHop(
    network: Pick<Network, "devicePrefix" | "bridgeName" | "keyGeneration">,
    hubIp: string,
  ): Pick<Route, "via" | "dev">;
  /** What leads packets of the overlay from the runner and its workloads to the hub. */
  planRunnerRoutes(network: Network, runnerId: number, device: string): Item[];
}

/** Direct routes between runners: one file for each tunnel, as above. */
export interface Mesh {
  /** The device on a runner. */
  device(network: Pick<Network, "devicePrefix" | "keyGeneration">): string;
  /** What a runner has for them. */
  plan(network: Network, runnerId: number, hub: Underlay, runner: Underlay, peers: MeshPeer[]): Item[];
}

/** Another runner, to which a runner of a mesh sends directly. */
export interface MeshPeer extends Pick<Underlay, "underlayIp" | "publicKey"> {
  id: number;
  /** Of its tunnel to the hub. */
  port: number;
  /** Data has passed to it. Until then packets to its subnet take the route by the hub. */
  isRouted: boolean;
}
