import { Command, InvalidArgumentError, Option } from "commander";
import { TOPOLOGIES, type Topology, TUNNELS, type TunnelName } from "../provider/network/plan/tunnels";
import { networkSettings, toNetwork } from "../provider/resources/network-settings";
import { wholeNumber } from "./command";
import { Output } from "./output";
import { type HostCost, simulate } from "./simulation";

/** `overlayctl simulate`: what a network of some size costs its hosts, before it is built. It needs no store and no hosts. */

interface Options {
  runners: number;
  tunnel: TunnelName;
  topology: Topology;
  json?: boolean;
}

export const simulateCommand = (): Command =>
  new Command("simulate")
    .description("Plan a network of this size without hosts, and count what each host would have.")
    .requiredOption("--runners <n>", `how many runners, 1 to ${MAX_RUNNERS}`, runnerCount)
    .addOption(new Option("--tunnel <name>", "the network's tunnel").choices(Object.keys(TUNNELS)).default("vxlan"))
    .addOption(new Option("--topology <name>", "the network's topology").choices([...TOPOLOGIES]).default("hub"))
    .option("--json", "print one JSON object per line")
    .action(({ runners, tunnel, topology, json }: Options) => {
      const started = performance.now();
      const { hub, planned, allRunners, changedByOneMore } = simulate(networkOf(runners, tunnel), topology, runners);
      const seconds = (performance.now() - started) / 1000;
      const memoryBytes = process.resourceUsage().maxRSS * 1024;
      const out = new Output(json === true);
      out.list([hub, ...planned, allRunners], COLUMNS, UNITS);
      out.emit({ topology, tunnel, runners, changedByOneMore, planningSeconds: seconds, memoryBytes });
      out.say(
        [
          "",
          `${tunnel}, ${topology}: the hub and ${planned.length} of ${runners} runners were planned in full; the last line is theirs, multiplied.`,
          `One more runner changes ${changedByOneMore} hosts, its own included.`,
          `Planning took ${seconds.toFixed(1)} s and ${formatBytes(memoryBytes)} of memory.`,
        ].join("\n"),
      );
    });

const MAX_RUNNERS = 10_000;

function runnerCount(text: string): number {
  const count = wholeNumber(text);
  if (count >= 1 && count <= MAX_RUNNERS) return count;
  throw new InvalidArgumentError(`It must be 1 to ${MAX_RUNNERS}.`);
}

/** The smallest number of node bits that has room; the rest of 10.0.0.0/8 is for workloads. All other settings are the defaults. */
function networkOf(runners: number, tunnel: TunnelName) {
  const nodeBits = Math.max(2, Math.ceil(Math.log2(runners + 1)));
  const subnets = `10.0.0.0/8/${nodeBits}/${24 - nodeBits}`;
  return toNetwork(networkSettings.parse({ networkName: "simulated", subnets, tunnel }));
}

const COLUMNS: (keyof HostCost)[] = [
  "host",
  "devices",
  "addresses",
  "routes",
  "peers",
  "rules",
  "objects",
  "scriptBytes",
  "handshakesPerSecond",
];

const UNITS = {
  scriptBytes: formatBytes,
  handshakesPerSecond: (each: number) => (each === 0 || each >= 1 ? each.toFixed(0) : each.toFixed(3)),
};

function formatBytes(bytes: number): string {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(0)} MB`;
}
