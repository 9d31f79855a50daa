import { networkSettings } from "../../resources/network-settings";
import type { Read, Surveyed, SurveyedRunner } from "./surveyed";

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
