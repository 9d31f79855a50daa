import { readFileSync } from "node:fs";
import { Session } from "node:inspector/promises";
import { relative } from "node:path";
import type * as runtime from "../../provider/runtime";

/**
 * Creates a network and a runner, as Pulumi calls the provider, and prints as JSON the files of the provider in which a function ran
 * during the `create` of the runner. Environment: the settings OVERLAY_*; HUB and RUNNER, two addresses; KEY, the private key's file.
 */
const { HUB, RUNNER, KEY } = process.env;
const dist = `${process.cwd()}/dist/`;
const { provider } = require(`${dist}provider/runtime.js`) as typeof runtime;

const connectionTo = (host: string) => ({ host, user: "root", privateKey: readFileSync(KEY!, "utf8") });

async function check(type: string, name: string, inputs: object) {
  const owner = `lab/urn:pulumi:dev::lab::overlay:index:${type}::${name}`;
  const checked = await provider(type).check({}, { owner, dryRun: false, ...inputs });
  if (checked.failures.length > 0) throw new Error(checked.failures.map(({ reason }) => reason).join("\n"));
  return checked.inputs;
}

async function main(): Promise<void> {
  const hubConnection = connectionTo(HUB!);
  await provider("OverlayNetwork").create(await check("OverlayNetwork", "training", { hubConnection }));
  const inputs = { network: "training", connection: connectionTo(RUNNER!), hubConnection };
  const runner = await check("RunnerSubnet", "r1", inputs);

  const session = new Session();
  session.connect();
  await session.post("Profiler.enable");
  await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
  await provider("RunnerSubnet").create(runner);
  const { result } = await session.post("Profiler.takePreciseCoverage");
  const files = result
    .map(({ url, functions }) => ({ file: relative(dist, url.replace(/^file:\/\//, "")), functions }))
    .filter(
      ({ file, functions }) => file.startsWith("provider/") && functions.some(({ ranges }) => ranges[0]!.count > 0),
    )
    .map(({ file }) => file.replace(/\.js$/, ".ts"));
  console.log(JSON.stringify(files.sort()));
  process.exit(0); // Else SSH connections keep the process alive for their idle time.
}

void main();
