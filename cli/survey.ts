import { z } from "zod";
import { tryParseIp } from "../provider/addressing/ip";
import { parseLayout, runnerLayout } from "../provider/addressing/layout";
import { type Connection, connectionName } from "../provider/host/connection";
import { nameHostInErrors, readHostFacts } from "../provider/host/reconcile/host-state";
import { devicesWithAddress } from "../provider/network/kinds/device";
import type { Facts } from "../provider/network/model/facts";
import { boundedArray, parseHostJson } from "../provider/network/model/record";
import {
  type DiscoveredNetwork,
  type DiscoveredRunner,
  type DiscoveredTunnel,
  discoverNetworks,
  discoverRunner,
} from "../provider/network/read/survey";
import type { CliHosts } from "./hosts";

/** What was read from a host. */
export interface HostState {
  connection: Connection;
  hostname: string;
  facts: Facts;
  /** Its neighbour table, without failed entries. */
  neighbours: { dev: string; address: string }[];
}

/** A network and its hosts. */
export interface SurveyedNetwork {
  name: string;
  network: DiscoveredNetwork;
  hub: HostState;
  runners: SurveyedRunner[];
}

export interface SurveyedRunner {
  name: string;
  runnerId: number;
  device: string;
  /** Its underlay address on the hub. */
  remote: string;
  /** With WireGuard. */
  publicKey?: string;
  /** undefined: this host was not read. */
  at?: { host: HostState; seen: DiscoveredRunner; inUse: string[] };
}

const neighbourList = boundedArray(
  z.object({ dst: z.string(), dev: z.string(), state: boundedArray(z.string()).default([]) }),
);

const HOST_SCRIPT = "uname -n; ip -j neigh show";

export async function readHostState(hosts: CliHosts, connection: Connection): Promise<HostState> {
  const host = await hosts.connect(connection);
  const [facts, { stdout }] = await Promise.all([readHostFacts(host), host.exec(HOST_SCRIPT)]);
  const [hostname = "", ...rest] = stdout.split("\n");
  const neighbours = nameHostInErrors(host, () => parseHostJson(neighbourList, rest.join("\n").trim() || "[]"));
  const reachable = neighbours.filter(({ state }) => !state.some((each) => /FAILED|INCOMPLETE|NOARP/.test(each)));
  return {
    connection,
    hostname: hostname.trim(),
    facts,
    neighbours: reachable.map(({ dst, dev }) => ({ dev, address: dst })),
  };
}

/** Finds the hubs among the hosts, and their runners. Pure. */
export function findNetworks(reads: HostState[]): SurveyedNetwork[] {
  const taken = new Set<string>();
  return reads.flatMap((hub) =>
    discoverNetworks(hub.facts).map((network, i) => {
      const runners = network.tunnels.map((tunnel) => {
        const at = reads.map((host) => matchRunner(host, network, tunnel)).find((each) => each !== undefined);
        return { ...tunnel, name: "", ...(at && { at }) };
      });
      const name = makeUnique(network.networkName ?? (i === 0 ? "overlay" : `overlay${i + 1}`), taken);
      return { name, network, hub, runners: runners.map((each) => ({ ...each, name: nameRunner(each, taken) })) };
    }),
  );
}

function matchRunner(
  host: HostState,
  network: DiscoveredNetwork,
  { runnerId, remote, publicKey }: DiscoveredTunnel,
): SurveyedRunner["at"] {
  const seen = discoverRunner(host.facts, network);
  const isIt = publicKey !== undefined || devicesWithAddress(remote, host.facts).length > 0; // a key is known by one host
  if (!seen || !isIt || seen.runnerId !== runnerId) return undefined;
  return { host, seen, inUse: findUsedAddresses(host, network, seen) };
}

/** Addresses of workloads in the neighbour table of the bridge. */
function findUsedAddresses(
  { neighbours }: HostState,
  { subnets }: DiscoveredNetwork,
  { bridgeName, runnerId }: DiscoveredRunner,
): string[] {
  const usable = subnets.flatMap((text) => runnerLayout(parseLayout(text), runnerId).usable);
  return neighbours
    .filter(({ dev, address }) => {
      const point = tryParseIp(address);
      return dev === bridgeName && usable.some(({ first, last }) => point && point >= first && point <= last);
    })
    .map(({ address }) => address);
}

/** The name in our record, else the host name, else one with the id. */
function nameRunner({ at, runnerId }: SurveyedRunner, taken: Set<string>): string {
  const uid = at?.host.facts.records.find(({ items }) =>
    items.some((item) => item.kind === "link" && item.name === at.seen.runnerDevice),
  );
  return makeUnique(uid?.name ?? plainHostname(at?.host.hostname ?? "") ?? `runner${runnerId}`, taken);
}

const plainHostname = (hostname: string): string | undefined =>
  /^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$/i.test(hostname) ? hostname : undefined;

function makeUnique(name: string, taken: Set<string>): string {
  let free = name;
  for (let i = 2; taken.has(free); i++) free = `${name}-${i}`;
  taken.add(free);
  return free;
}

export const hostName = ({ connection }: HostState): string => connectionName(connection);
