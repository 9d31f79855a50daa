import { writeFile } from "node:fs/promises";
import type { Command } from "commander";
import { OverlayError } from "../provider/errors";
import type { Connection } from "../provider/host/connection";
import { networkSettings } from "../provider/resources/network-settings";
import { overlayNetwork } from "../provider/resources/overlay-network";
import { kohakuRiverNames } from "../sdk/kohakuriver";
import { command, withSettings } from "./command";
import { CliHosts, type Login, parseConnections, withLoginOptions } from "./hosts";
import type { Output } from "./output";
import { checkRequirements } from "./requirements";
import {
  findNetworks,
  type HostState,
  hostName,
  readHostState,
  type SurveyedNetwork,
  type SurveyedRunner,
} from "./survey";

/** `overlayctl scan`: a program for an existing overlay, from its hosts. */

interface Options extends Login {
  program?: string;
  import?: string;
  check?: boolean;
  json?: boolean;
}

export const scanCommand = (): Command =>
  withLoginOptions(
    command(
      "scan",
      "Read hosts of an existing overlay, of this package or of KohakuRiver, and write a program for it.",
    ),
  )
    .argument("<host...>", "the hub and its runners, as [user@]host[:port]", parseConnections)
    .option("--check", "instead, check that the hosts have what an overlay needs; exit code 1 if not")
    .option("--program <file>", "file for the program; default: standard output")
    .option("--import <file>", "file for the addresses that workloads use, for `overlayctl import`")
    .action(
      withSettings<Options>(async (settings, out, options, given) => {
        const hosts = new CliHosts(settings, options);
        const connections = given as unknown as Connection[];
        if (options.check) return printRequirements(out, hosts, connections);
        const reads = await hosts.use(() => Promise.all(connections.map((each) => readHostState(hosts, each))));
        const networks = findNetworks(reads);
        if (networks.length === 0) throw noHubError(reads);
        if (options.json) for (const row of networks.flatMap(describeNetwork)) out.emit(row);
        else if (options.program) await writeFile(options.program, renderProgram(networks));
        else process.stdout.write(renderProgram(networks));
        if (options.import) await writeFile(options.import, renderImport(networks));
        for (const network of networks) out.note(summarizeNetwork(network));
      }),
    );

async function printRequirements(out: Output, hosts: CliHosts, connections: Connection[]): Promise<void> {
  const rows = await hosts.use(() => Promise.all(connections.map((each) => checkRequirements(hosts, each))));
  out.list(rows.flat(), ["host", "requirement", "result", "fix"]);
  if (rows.flat().some(({ result }) => result === "missing")) process.exitCode = 1;
}

function noHubError(reads: HostState[]): OverlayError {
  const foreign = reads.flatMap((read) =>
    [...read.facts.links].flatMap(([name, { wireguard }]) => (wireguard ? `${name} on ${hostName(read)}` : [])),
  );
  const devices = foreign.length > 0 ? ` WireGuard of other programs cannot be adopted: ${foreign.join(", ")}.` : "";
  return new OverlayError(
    "INPUT_INVALID",
    `No hub of an overlay is among ${reads.map(hostName).join(", ")}: none has a tunnel with address 254 of a subnet, and the first address of that subnet's range.${devices}`,
    "Give the hub, too.",
  );
}

const describeNetwork = ({ name, network, hub, runners }: SurveyedNetwork) => [
  { network: name, hub: hostName(hub), ...network, tunnels: network.tunnels.length },
  ...runners.map(({ at, ...runner }) => ({
    network: name,
    ...runner,
    ...(at && { host: hostName(at.host), ...at.seen, inUse: at.inUse }),
  })),
];

function summarizeNetwork({ name, network, hub, runners }: SurveyedNetwork): string {
  const unread = runners.filter(({ at }) => !at).map(({ remote }) => remote);
  const used = runners.reduce((sum, { at }) => sum + (at?.inUse.length ?? 0), 0);
  return [
    `${name}: ${network.subnets.join(" and ")} on hub ${hostName(hub)}, ${runners.length} runners, ${used} addresses in use.`,
    ...(unread.length > 0 ? [`Not read: ${unread.join(", ")}. Give these hosts, too.`] : []),
    ...(network.networkName === undefined
      ? []
      : ["It was made by this package: if its store is lost, `overlayctl recover --host …` rebuilds it."]),
  ].join(" ");
}

/** The TypeScript program for the networks, without inputs that have their default. Pure. */
export function renderProgram(networks: SurveyedNetwork[]): string {
  return [
    'import * as pulumi from "@pulumi/pulumi";',
    'import * as overlay from "pulumi-overlay";',
    "",
    "// pulumi config set --secret privateKey < ~/.ssh/id_ed25519",
    'const privateKey = new pulumi.Config().requireSecret("privateKey");',
    'const at = (host: string, more = {}) => ({ host, user: "root", privateKey, ...more });',
    ...networks.flatMap((each, i) => {
      const variable = `network${i === 0 ? "" : i + 1}`;
      const runners = each.runners.flatMap((runner) => renderRunner(runner, variable, each));
      return ["", ...renderNetwork(variable, each), ...runners];
    }),
    "",
  ].join("\n");
}

type GivenInputs = Record<string, unknown>;

const { docker: _, ...KOHAKURIVER }: GivenInputs = kohakuRiverNames;
const DEFAULTS: GivenInputs = {
  ...networkSettings.parse({ networkName: "x" }),
  hubInterface: overlayNetwork.inputs.shape.hubInterface.parse(undefined),
};

function renderNetwork(variable: string, { name, network, hub, runners }: SurveyedNetwork): string[] {
  const { subnets, networkName, hubInterface, hubUnderlayIp, tunnels: _, ...known } = network;
  const settings: GivenInputs = {
    subnets: subnets.length === 1 ? subnets[0] : subnets,
    ...known,
    topology: mostCommon(runners, ({ topology }) => topology),
    bridgeName: mostCommon(runners, ({ bridgeName }) => bridgeName),
    mtu: mostCommon(runners, ({ isAutoMtu, mtu }) => (isAutoMtu ? "auto" : mtu)),
    masquerade: mostCommon(runners, ({ masquerade }) => masquerade),
  };
  const isKohakuRiver = Object.entries(KOHAKURIVER).every(
    ([key, value]) => ({ ...settings, hubInterface })[key] === value,
  );
  const usual: GivenInputs = { ...DEFAULTS, ...(isKohakuRiver && KOHAKURIVER) };
  const unusual = Object.entries({ ...settings, hubInterface }).filter(
    ([key, value]) => value !== undefined && value !== usual[key],
  );
  return renderResource(`const ${variable} = `, "OverlayNetwork", name, [
    `hubConnection: ${renderConnection(hub)}`,
    ...(isKohakuRiver ? ["...overlay.kohakuRiverNames"] : []),
    ...unusual.map(([key, value]) => `${key}: ${JSON.stringify(value)}`),
    ...(hubUnderlayIp === hub.connection.host ? [] : [`hubUnderlayIp: ${JSON.stringify(hubUnderlayIp)}`]),
    // Workloads of an adopted overlay keep their access to hosts.
    ...(networkName === undefined ? ["adopt: true", 'hostAccess: "all"'] : []),
  ]);
}

/** The value that most runners have: it becomes the network's. */
function mostCommon<T>(
  runners: SurveyedRunner[],
  of: (seen: NonNullable<SurveyedRunner["at"]>["seen"]) => T,
): T | undefined {
  const values = runners.flatMap(({ at }) => (at ? [of(at.seen)] : []));
  const counts = new Map(values.map((value) => [value, values.filter((other) => other === value).length]));
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
}

function renderRunner(runner: SurveyedRunner, variable: string, { network, runners }: SurveyedNetwork): string[] {
  const { name, at, runnerId, device, remote } = runner;
  const adopted = network.networkName === undefined || !isRecorded(runner);
  const lines = [
    variable === "network" ? variable : `network: ${variable}`,
    `connection: ${at ? renderConnection(at.host) : `at(${JSON.stringify(remote)})`}`,
    `runnerId: ${JSON.stringify(runnerId)}`,
    ...(at && at.seen.runnerDevice !== device ? [`runnerDevice: ${JSON.stringify(at.seen.runnerDevice)}`] : []),
    ...(at && at.host.connection.host !== remote ? [`underlayIp: ${JSON.stringify(remote)}`] : []),
    ...(at ? renderExceptions(at.seen, runners) : []),
    ...(adopted ? ["adopt: true"] : []),
  ];
  const why = at ? [] : ["// This host was not read: check its connection and its runnerDevice."];
  return ["", ...why, ...renderResource("", "RunnerSubnet", name, lines)];
}

/** Text of a host for a comment, which it must not end. */
const renderComment = (text: string): string => JSON.stringify(text.replace(/[^\w.:@-]/g, "?"));

const isRecorded = ({ at }: SurveyedRunner): boolean =>
  at?.host.facts.records.some(({ items }) =>
    items.some((item) => item.kind === "link" && item.name === at.seen.runnerDevice),
  ) ?? false;

function renderExceptions(seen: NonNullable<SurveyedRunner["at"]>["seen"], runners: SurveyedRunner[]): string[] {
  const mtu = mostCommon(runners, ({ isAutoMtu, mtu }) => (isAutoMtu ? "auto" : mtu));
  const masquerade = mostCommon(runners, (each) => each.masquerade);
  const bridge = mostCommon(runners, ({ bridgeName }) => bridgeName);
  return [
    ...((seen.isAutoMtu ? "auto" : seen.mtu) === mtu ? [] : [`mtu: ${JSON.stringify(seen.mtu)}`]),
    ...(seen.masquerade === masquerade ? [] : [`masquerade: ${JSON.stringify(seen.masquerade)}`]),
    ...(seen.bridgeName === bridge
      ? []
      : [`/* its bridge is ${renderComment(seen.bridgeName)}; all runners of a network must have the same */`]),
  ];
}

const renderConnection = ({ connection: { host, user, port } }: HostState): string => {
  const more = {
    ...(user !== undefined && user !== "root" && { user }),
    ...(port !== undefined && port !== 22 && { port }),
  };
  const rest = Object.keys(more).length > 0 ? `, ${JSON.stringify(more)}` : "";
  return `at(${JSON.stringify(host)}${rest})`;
};

const renderResource = (start: string, type: string, name: string, lines: string[]): string[] => [
  `${start}new overlay.${type}(${JSON.stringify(name)}, {`,
  ...lines.map((line) => `  ${line},`),
  "});",
];

const quoteCsv = (text: string): string => (/^[\w.:-]*$/.test(text) ? text : `"${text.replaceAll('"', '""')}"`);

/** For `overlayctl import`, once the network is up: workloads whose addresses are not reserved. */
function renderImport(networks: SurveyedNetwork[]): string {
  const lines = networks.flatMap(({ name, runners }) =>
    runners.flatMap((runner) => (runner.at?.inUse ?? []).map((ip) => [ip, name, runner.name].map(quoteCsv).join(","))),
  );
  return ["ip,network,runner", ...lines, ""].join("\n");
}
