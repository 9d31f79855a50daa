import { createHash } from "node:crypto";
import { formatIp, parseIp } from "../provider/addressing/ip";
import { planSteps } from "../provider/network/diff/steps";
import { toRecordItem } from "../provider/network/kinds";
import type { Facts } from "../provider/network/model/facts";
import { type DesiredState, FORWARDING, type Item } from "../provider/network/model/items";
import { keyPath } from "../provider/network/model/record";
import { type Network, planHub, planRunner, planTunnel, type Underlay } from "../provider/network/plan/hub";
import { adaptToHost } from "../provider/network/plan/this-host";
import { type Topology, tunnelOf } from "../provider/network/plan/tunnels";
import { parseFacts } from "../provider/network/read/facts";
import { renderChange } from "../provider/network/render/script";

/**
 * What a network costs its hosts: the planners of an up, for hosts that exist only here. Each has systemd, IPv4 and one device, and
 * nothing of ours. The hub is planned with all runners, and three runners in full; the others are like these.
 */

export interface HostCost {
  host: string;
  devices: number;
  addresses: number;
  routes: number;
  peers: number;
  rules: number;
  /** All objects: those of the columns before, and settings, files and units. */
  objects: number;
  /** Of the script that makes them in one conversation, with the records and the scripts for the next boot. */
  scriptBytes: number;
  /** While data or keepalives pass. */
  handshakesPerSecond: number;
}

type Count = Exclude<keyof HostCost, "host">;

export interface Simulation {
  hub: HostCost;
  /** The first runner, the middle one and the last. */
  planned: HostCost[];
  /** Those of the planned runners, multiplied. */
  allRunners: HostCost;
  /** Hosts that change when one more runner joins, with its own. */
  changedByOneMore: number;
}

export function simulate(network: Network, topology: Topology, runners: number): Simulation {
  const everyId = Array.from({ length: runners }, (_, i) => i + 1);
  const ids = [...new Set([1, Math.ceil(runners / 2), runners])];
  const planned = ids.map((id) =>
    planHost(network, `runner ${id}`, underlayOf(network, id), [
      runnerItems(network, id, topology === "mesh" ? everyId : undefined),
    ]),
  );
  const hub = underlayOf(network, HUB);
  const ends = everyId.map((id) => planTunnel(network, id, hub, underlayOf(network, id)));
  return {
    hub: planHost(network, "hub", hub, [planHub(network, hub), ...ends]),
    planned,
    allRunners: multiply(planned, runners),
    changedByOneMore: topology === "mesh" ? runners + 2 : 2, // in a hub network the plan of a runner names no other
  };
}

const HUB = 0;

/** `all`: the ids of a mesh. */
function runnerItems(network: Network, id: number, all?: number[]): Item[] {
  const device = tunnelOf(network).hubDevice(network, id);
  const peers = all
    ?.filter((each) => each !== id)
    .map((each) => ({ id: each, port: network.wireguardPort, isRouted: true, ...underlayOf(network, each) }));
  return planRunner(network, id, device, underlayOf(network, HUB), underlayOf(network, id), peers);
}

/** Addresses and keys are as long as real ones. */
const underlayOf = (network: Network, id: number): Underlay => ({
  underlayIp: formatIp(parseIp("172.16.0.1") + BigInt(id)),
  underlayMtu: 1500,
  ...(network.tunnel === "wireguard" && { publicKey: createHash("sha256").update(String(id)).digest("base64") }),
});

/** `owners`: the items of each owner on the host. */
function planHost(network: Network, host: string, underlay: Underlay, owners: Item[][]): HostCost {
  const facts = bareHost(network, underlay);
  const states = owners.map((items, i): DesiredState => {
    const record = { uid: uidOf(i), owner: `OverlayNetwork/${i}`, network: network.networkName, store: uidOf(0) };
    return adaptToHost({ record, items, persist: true }, facts);
  });
  const steps = planSteps(states, facts);
  const records = states.map(({ record, items }) => ({ ...record, items: items.map(toRecordItem) }));
  const count = (...kinds: Item["kind"][]): number => steps.filter(({ item }) => kinds.includes(item.kind)).length;
  const peers = count("wgpeer", "vxpeer");
  return {
    host,
    devices: count("link"),
    addresses: count("address"),
    routes: count("route"),
    peers,
    rules: count("rule", "jump"),
    objects: steps.length,
    scriptBytes: Buffer.byteLength(renderChange(steps, records)),
    handshakesPerSecond: count("wgpeer") / REKEY_SECONDS,
  };
}

/** A WireGuard session is replaced at this age (REKEY_AFTER_TIME). */
const REKEY_SECONDS = 120;

const uidOf = (i: number): string => i.toString(16).padStart(16, "0");

const bareHost = ({ networkName }: Network, { underlayIp, publicKey }: Underlay): Facts => ({
  ...parseFacts(""),
  addresses: new Set([`${underlayIp}/12 eth0`]),
  sysctls: new Map([[FORWARDING[4], "0"]]),
  keys: new Map(publicKey ? [[keyPath(networkName), publicKey]] : []),
  ip6tables: true,
  systemd: new Map(),
});

function multiply(planned: HostCost[], runners: number): HostCost {
  const total = (count: Count): number =>
    (planned.reduce((sum, each) => sum + each[count], 0) / planned.length) * runners;
  return {
    host: `all ${runners} runners`,
    devices: total("devices"),
    addresses: total("addresses"),
    routes: total("routes"),
    peers: total("peers"),
    rules: total("rules"),
    objects: total("objects"),
    scriptBytes: Math.round(total("scriptBytes")),
    handshakesPerSecond: total("handshakesPerSecond"),
  };
}
