import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Lab } from "../lab/lab";
import type { HubFigures } from "./hub-side";
import { table } from "./table";

/**
 * The time of a create of a RunnerSubnet over SSH, with its claim, both conversations and the ping: on a hub without runners, and on
 * the same hub with 500.
 */
const DEVICES = 500;
const ROUNDS = 15;

export async function benchHub(args: string[]): Promise<void> {
  const devices = Number(args[0] ?? DEVICES);
  const lab = await Lab.up({ runners: 1 });
  try {
    const [hub, runner] = lab.hosts.map(({ address }) => address);
    const options = { hub, runner, devices, rounds: ROUNDS, key: lab.privateKeyPath, knownHosts: lab.knownHosts };
    const side = ["--import", pathToFileURL(require.resolve("tsx")).href, join(__dirname, "hub-side.ts")];
    const { code, stdout, stderr } = await lab.controller(process.execPath, [...side, JSON.stringify(options)]);
    if (code !== 0) throw new Error(stderr);
    report(devices, JSON.parse(stdout.trim().split("\n").at(-1)!) as { first: HubFigures; more: HubFigures });
  } finally {
    await lab.down();
  }
}

function report(devices: number, { first, more }: { first: HubFigures; more: HubFigures }): void {
  const row = (name: string, key: keyof HubFigures): string[] => [
    name,
    first[key].toFixed(1),
    more[key].toFixed(1),
    `${(more[key] / first[key]).toFixed(2)}×`,
  ];
  console.log(
    table(
      [
        ["milliseconds, median", "first runner", `with ${devices} others`, "ratio"],
        row("create of a runner", "create"),
        row("  reading the hub once, over SSH", "facts"),
        row("  parsing its answer", "parse"),
        row("  planning", "plan"),
        row("delete of it", "delete"),
      ],
      [1, 2, 3],
    ),
  );
  console.log(`aim: less than 2× for the create: ${more.create < 2 * first.create ? "reached" : "missed"}`);
  console.log(JSON.stringify({ devices, first, more }));
}
