import { Command, InvalidArgumentError } from "commander";
import { exactNumber } from "../provider/addressing/ip";
import { type Layout, parseLayout, runnerLayout, tunnelName } from "../provider/addressing/layout";
import { isOverlayError, type OverlayError } from "../provider/errors";

/** `overlayctl layout CONFIG… [--runner N] [--json]`: the subnets of a layout. It needs no store. */
export const layoutCommand = (): Command =>
  new Command("layout")
    .description("Show the subnets, addresses and device names of a layout.")
    .argument("<config...>", "BASE/PREFIX/NODE_BITS/SUBNET_BITS, e.g. 10.128.0.0/12/6/14")
    .option("--runner <id>", "also show this runner's subnet", integer)
    .option("--vni-base <n>", "VNI of runner i is this + i", integer, 100)
    .option("--device-prefix <text>", "start of the names of tunnel devices", "ovl")
    .option("--json", "print one JSON object per line, for each CONFIG")
    .action((configs: string[], options: Options) => {
      for (const config of configs) printLayout(config, options);
    });

interface Options {
  runner?: number;
  vniBase: number;
  devicePrefix: string;
  json?: boolean;
}

function integer(text: string): number {
  if (!/^-?\d+$/.test(text)) throw new InvalidArgumentError("It must be a whole number.");
  return Number(text);
}

/** An invalid CONFIG is reported, the others are still shown, and the exit code is 1. */
function printLayout(config: string, options: Options): void {
  try {
    const view = describeLayout(parseLayout(config), options);
    console.log(options.json ? JSON.stringify(view) : renderTable(view));
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    process.exitCode = 1;
    if (options.json) console.log(JSON.stringify(describeError(config, error)));
    console.error(error.message);
  }
}

const describeError = (config: string, { code, message }: OverlayError) => ({ config, error: code, message });

function describeLayout(layout: Layout, { runner, vniBase, devicePrefix }: Options) {
  const { text, cidr, hubIp, maxRunners, ipsPerRunner, runnerPrefix } = layout;
  return {
    config: text,
    cidr,
    hubIp,
    maxRunners,
    ipsPerRunner: exactNumber(ipsPerRunner),
    runnerPrefix,
    ...(runner !== undefined && { runner: describeRunnerLayout(layout, runner, vniBase, devicePrefix) }),
  };
}

function describeRunnerLayout(layout: Layout, id: number, vniBase: number, devicePrefix: string) {
  const { runnerId, subnet, gateway, hubIp, firstIp, lastIp } = runnerLayout(layout, id);
  const usableIps = exactNumber(layout.ipsPerRunner);
  return {
    runnerId,
    subnet,
    gateway,
    hubIp,
    firstIp,
    lastIp,
    usableIps,
    vni: vniBase + id,
    hubDevice: tunnelName(devicePrefix, id),
  };
}

function renderTable(view: object, indent = ""): string {
  return Object.entries(view)
    .map(([key, value]) =>
      typeof value === "object"
        ? `${indent}${key}\n${renderTable(value, `${indent}  `)}`
        : `${indent}${key.padEnd(16 - indent.length)}${value}`,
    )
    .join("\n");
}
