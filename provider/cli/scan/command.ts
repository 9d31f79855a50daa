import { writeFile } from "node:fs/promises";
import type { Command } from "commander";
import { OverlayError } from "../../errors";
import type { Connection } from "../../host/connection";
import { command, guarded } from "../command";
import { connections, type Login, Machines, withLogin } from "../hosts/machines";
import { importFor, programFor } from "./program";
import { placeText, readMachine, type Surveyed, surveyOf } from "./surveyed";

interface Options extends Login {
  program?: string;
  import?: string;
  json?: boolean;
}

export const scanCommand = (): Command =>
  withLogin(command("scan", "Read machines that carry an overlay, ours or KohakuRiver's, and write a program for it."))
    .argument("<host...>", "the hub and its runners, as [user@]host[:port]", connections)
    .option("--program <file>", "write the program there; default: standard output")
    .option("--import <file>", "write the addresses that workloads use there, for `overlayctl import`")
    .action(
      guarded<Options>(async (settings, out, options, hosts) => {
        const machines = new Machines(settings, options);
        const given = hosts as unknown as Connection[];
        const reads = await machines.use(() => Promise.all(given.map((each) => readMachine(machines, each))));
        const networks = surveyOf(reads);
        if (networks.length === 0) throw nothingFound(reads.map(placeText));
        if (options.json) for (const row of networks.flatMap(rows)) out.emit(row);
        else if (options.program) await writeFile(options.program, programFor(networks));
        else process.stdout.write(programFor(networks));
        if (options.import) await writeFile(options.import, importFor(networks));
        for (const network of networks) out.note(summary(network));
      }),
    );

const nothingFound = (places: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `No hub of an overlay is among ${places.join(", ")}: none has a tunnel with address 254 of a subnet, and the first address of that subnet's range.`,
    "Name the hub, too.",
  );

const rows = ({ name, network, hub, runners }: Surveyed) => [
  { network: name, hub: placeText(hub), ...network, tunnels: network.tunnels.length },
  ...runners.map(({ at, ...runner }) => ({
    network: name,
    ...runner,
    ...(at && { host: placeText(at.host), ...at.seen, inUse: at.inUse }),
  })),
];

function summary({ name, network, hub, runners }: Surveyed): string {
  const unread = runners.filter(({ at }) => !at).map(({ remote }) => remote);
  const used = runners.reduce((sum, { at }) => sum + (at?.inUse.length ?? 0), 0);
  return [
    `${name}: ${network.subnets.join(" and ")} on hub ${placeText(hub)}, ${runners.length} runners, ${used} addresses in use.`,
    ...(unread.length > 0 ? [`Not read: ${unread.join(", ")}; name them, too.`] : []),
    ...(network.networkName === undefined
      ? []
      : ["It has our records: if its store is lost, `overlayctl recover --host …` rebuilds it."]),
  ].join(" ");
}
