import type { Command } from "commander";
import { runnerLayout } from "../provider/addressing/layout";
import { escapeControls } from "../provider/errors";
import type { Lease, PoolSpec } from "../provider/ipam";
import { idOfRoute, readDirectRoutes } from "../provider/lifecycle/mesh-peers";
import { TUNNELS } from "../provider/network/plan/tunnels";
import { formatTime } from "../provider/reservations";
import { readRunnerName, requireNetwork } from "../provider/reservations/runners";
import { parseSettings } from "../provider/resource";
import { layoutsOf, readHub, storedNetwork } from "../provider/resources/network-settings";
import { command, withPool } from "./command";
import { hostIdOfLease } from "./hosts";

/** `overlayctl topology`: a network, its hub and its runners, from the store. */

export interface Topology {
  network: string;
  cidr: string;
  hub: string | undefined;
  hubIp: string;
  tunnel: string;
  topology: string;
  runners: TopologyRunner[];
}

interface TopologyRunner {
  runner: string;
  id: number;
  subnet: string;
  /** With VXLAN. */
  vni: number | undefined;
  /** In a mesh: the ids of the runners to which it sends directly. */
  direct: number[] | undefined;
  device: string;
  host: string | undefined;
  state: Lease["state"];
  lastSeen: string;
}

export const topologyCommand = (): Command =>
  command("topology", "Show a network as it is in the store: its hub, its runners and their tunnels.")
    .argument("<network>", "name of the network")
    .option("--mermaid", "as a Mermaid flowchart, for READMEs and pull requests")
    .action(
      withPool<{ mermaid?: boolean }>(async ({ pool, out }, { mermaid = false }, name) => {
        const spec = await requireNetwork(pool, name!);
        const topology = describeTopology(name!, spec, await pool.leases(spec.name));
        if (mermaid) return void process.stdout.write(`${escapeControls(renderMermaid(topology))}\n`);
        const { runners, ...network } = topology;
        out.one(network);
        out.say("");
        out.list(runners, ["runner", "id", "subnet", "vni", "device", "direct", "host", "state", "lastSeen"]);
      }),
    );

/** With offers, so that the chart of a pull request shows the runners that it adds. */
function describeTopology(network: string, spec: PoolSpec, leases: Lease[]): Topology {
  const settings = parseSettings(storedNetwork, spec);
  const hub = readHub(spec);
  const layouts = layoutsOf(settings.subnets);
  const runners = leases
    .filter(({ state }) => state !== "quarantined")
    .map((lease): TopologyRunner => {
      const id = Number(lease.ranges[0]!.first);
      return {
        runner: readRunnerName(lease, network) ?? lease.owner,
        id,
        subnet: layouts.map((layout) => runnerLayout(layout, id).subnet).join(", "),
        vni: settings.tunnel === "vxlan" ? settings.vniBase + id : undefined,
        direct:
          settings.topology === "mesh" ? (readDirectRoutes(lease) ?? []).map(idOfRoute).sort(byNumber) : undefined,
        device: TUNNELS[settings.tunnel].hubDevice(settings, id),
        host: hostIdOfLease(lease),
        state: lease.state,
        lastSeen: formatTime(lease.lastSeen),
      };
    });
  return {
    network,
    cidr: layouts.map(({ cidr }) => cidr).join(", "),
    hub,
    hubIp: layouts.map(({ hubIp }) => hubIp).join(", "),
    tunnel: settings.tunnel,
    topology: settings.topology,
    runners: runners.sort((a, b) => a.id - b.id),
  };
}

const byNumber = (a: number, b: number): number => a - b;

/** Offers are dashed, direct routes are thin lines. Names are quoted, because Mermaid has reserved words. */
function renderMermaid({ network, cidr, hub, hubIp, tunnel, runners }: Topology): string {
  const label = (...lines: (string | undefined)[]): string =>
    `"${lines.filter(Boolean).join("<br/>").replaceAll('"', "#quot;")}"`;
  return [
    "flowchart LR",
    `  hub((${label(`${network} hub`, hubIp, hub)}))`,
    ...runners.map(({ id, runner, subnet, host }) => `  r${id}[${label(runner, subnet, host)}]`),
    ...runners.map(
      ({ id, vni = tunnel, state }) => `  hub ${state === "offered" ? `-. ${vni} .-` : `== ${vni} ===`} r${id}`,
    ),
    ...runners.flatMap(({ id, direct = [] }) => direct.filter((to) => id < to).map((to) => `  r${id} --- r${to}`)),
    `  %% ${network}: ${cidr}, ${runners.length} runners`,
  ].join("\n");
}
