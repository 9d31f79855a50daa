import { writeFile } from "node:fs/promises";
import type { Command } from "commander";
import { OverlayError } from "../errors";
import type { Connection } from "../host/connection";
import { networkSettings } from "../resources/network-settings";
import { command, guarded } from "./command";
import { connections, type Login, Machines, withLogin } from "./hosts";
import { placeText, type Read, readMachine, type Surveyed, type SurveyedRunner, surveyOf } from "./survey";

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

/** The program that declares what was found, in TypeScript; what is as by default is not said. Pure. */
export function programFor(networks: Surveyed[]): string {
  return [
    'import * as pulumi from "@pulumi/pulumi";',
    'import * as overlay from "pulumi-overlay";',
    "",
    "// pulumi config set --secret privateKey < ~/.ssh/id_ed25519",
    'const privateKey = new pulumi.Config().requireSecret("privateKey");',
    'const at = (host: string, more = {}) => ({ host, user: "root", privateKey, ...more });',
    ...networks.flatMap((each, i) => {
      const variable = `network${i === 0 ? "" : i + 1}`;
      const runners = each.runners.flatMap((runner) => runnerText(runner, variable, each));
      return ["", ...networkText(variable, each), ...runners];
    }),
    "",
  ].join("\n");
}

type Inputs = Record<string, unknown>;

const DEFAULTS = networkSettings.parse({ networkName: "x" }) as Inputs;

function networkText(variable: string, { name, network, hub, runners }: Surveyed): string[] {
  const { subnets, devicePrefix, vniBase, vxlanPort, hubInterface, hubUnderlayIp } = network;
  const settings: Inputs = {
    subnets: subnets.length === 1 ? subnets[0] : subnets,
    devicePrefix,
    vniBase,
    vxlanPort,
    bridgeName: shared(runners, ({ bridgeName }) => bridgeName),
    mtu: shared(runners, ({ isAutoMtu, mtu }) => (isAutoMtu ? "auto" : mtu)),
    masquerade: shared(runners, ({ masquerade }) => masquerade),
  };
  const unusual = Object.entries(settings).filter(([key, value]) => value !== undefined && value !== DEFAULTS[key]);
  return resource(`const ${variable} = `, "OverlayNetwork", name, [
    `hubConnection: ${connectionText(hub)}`,
    ...unusual.map(([key, value]) => `${key}: ${JSON.stringify(value)}`),
    ...(hubInterface === "kohaku-host" ? [] : [`hubInterface: ${JSON.stringify(hubInterface)}`]),
    ...(hubUnderlayIp === hub.connection.host ? [] : [`hubUnderlayIp: ${JSON.stringify(hubUnderlayIp)}`]),
    // What workloads of an overlay that is taken over reach today, they reach tomorrow.
    ...(network.networkName === undefined ? ["adopt: true", 'hostAccess: "all"'] : []),
  ]);
}

/** What most runners have is the network's; the others say theirs. */
function shared<T>(
  runners: SurveyedRunner[],
  of: (seen: NonNullable<SurveyedRunner["at"]>["seen"]) => T,
): T | undefined {
  const values = runners.flatMap(({ at }) => (at ? [of(at.seen)] : []));
  const counts = new Map(values.map((value) => [value, values.filter((other) => other === value).length]));
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
}

function runnerText(runner: SurveyedRunner, variable: string, { network, runners }: Surveyed): string[] {
  const { name, at, runnerId, device, remote } = runner;
  const adopted = network.networkName === undefined || !isRecorded(runner);
  const lines = [
    variable === "network" ? variable : `network: ${variable}`,
    `connection: ${at ? connectionText(at.host) : `at(${JSON.stringify(remote)})`}`,
    `runnerId: ${JSON.stringify(runnerId)}`,
    ...(at && at.seen.runnerDevice !== device ? [`runnerDevice: ${JSON.stringify(at.seen.runnerDevice)}`] : []),
    ...(at && at.host.connection.host !== remote ? [`underlayIp: ${JSON.stringify(remote)}`] : []),
    ...(at ? exceptions(at.seen, runners) : []),
    ...(adopted ? ["adopt: true"] : []),
  ];
  const why = at ? [] : ["// This machine was not read: check its connection and its runnerDevice."];
  return ["", ...why, ...resource("", "RunnerSubnet", name, lines)];
}

/** Host text in a comment, which it must not end. */
const commentText = (text: string): string => JSON.stringify(text.replace(/[^\w.:@-]/g, "?"));

const isRecorded = ({ at }: SurveyedRunner): boolean =>
  at?.host.facts.records.some(({ items }) =>
    items.some((item) => item.kind === "link" && item.name === at.seen.runnerDevice),
  ) ?? false;

function exceptions(seen: NonNullable<SurveyedRunner["at"]>["seen"], runners: SurveyedRunner[]): string[] {
  const mtu = shared(runners, ({ isAutoMtu, mtu }) => (isAutoMtu ? "auto" : mtu));
  const masquerade = shared(runners, (each) => each.masquerade);
  const bridge = shared(runners, ({ bridgeName }) => bridgeName);
  return [
    ...((seen.isAutoMtu ? "auto" : seen.mtu) === mtu ? [] : [`mtu: ${JSON.stringify(seen.mtu)}`]),
    ...(seen.masquerade === masquerade ? [] : [`masquerade: ${JSON.stringify(seen.masquerade)}`]),
    ...(seen.bridgeName === bridge
      ? []
      : [`/* its bridge is ${commentText(seen.bridgeName)}; a network has one name for all */`]),
  ];
}

const connectionText = ({ connection: { host, user, port } }: Read): string => {
  const more = {
    ...(user !== undefined && user !== "root" && { user }),
    ...(port !== undefined && port !== 22 && { port }),
  };
  const rest = Object.keys(more).length > 0 ? `, ${JSON.stringify(more)}` : "";
  return `at(${JSON.stringify(host)}${rest})`;
};

const resource = (start: string, type: string, name: string, lines: string[]): string[] => [
  `${start}new overlay.${type}(${JSON.stringify(name)}, {`,
  ...lines.map((line) => `  ${line},`),
  "});",
];

const csvField = (text: string): string => (/^[\w.:-]*$/.test(text) ? text : `"${text.replaceAll('"', '""')}"`);

/** For `overlayctl import`, once the network is up: workloads whose addresses are not reserved. */
export function importFor(networks: Surveyed[]): string {
  const lines = networks.flatMap(({ name, runners }) =>
    runners.flatMap((runner) => (runner.at?.inUse ?? []).map((ip) => [ip, name, runner.name].map(csvField).join(","))),
  );
  return ["ip,network,runner", ...lines, ""].join("\n");
}
