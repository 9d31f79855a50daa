import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Lab } from "../lab/lab";
import type { HubFigures } from "./hub-side";
import { median } from "./measure";
import { table } from "./table";

/**
 * The time of a create of a RunnerSubnet over SSH, with its claim, both conversations and the ping: on a hub without runners, and on another
 * one with 500, in turns. Ratios are taken round by round.
 */
const DEVICES = 500;
const ROUNDS = 15;

export async function benchHub(args: string[]): Promise<void> {
  const devices = Number(args[0] ?? DEVICES);
  const lab = await Lab.up({ runners: 2 });
  try {
    const [emptyHub, fullHub, runner] = lab.hosts.map(({ address }) => address);
    const options = {
      emptyHub,
      fullHub,
      runner,
      devices,
      rounds: ROUNDS,
      key: lab.privateKeyPath,
      knownHosts: lab.knownHosts,
    };
    const side = ["--import", pathToFileURL(require.resolve("tsx")).href, join(__dirname, "hub-side.ts")];
    const { code, stdout, stderr } = await lab.controller(process.execPath, [...side, JSON.stringify(options)]);
    if (code !== 0) throw new Error(stderr);
    report(devices, JSON.parse(stdout.trim().split("\n").at(-1)!) as Rounds);
  } finally {
    await lab.down();
  }
}

interface Rounds {
  first: HubFigures[];
  more: HubFigures[];
}

function report(devices: number, { first, more }: Rounds): void {
  const ratioOf = (key: keyof HubFigures): number => median(more.map((figures, i) => figures[key] / first[i]![key]));
  const row = (name: string, key: keyof HubFigures): string[] => [
    name,
    ...[first, more].map((rounds) => median(rounds.map((figures) => figures[key])).toFixed(1)),
    `${ratioOf(key).toFixed(2)}×`,
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
  console.log(`aim: at most 2× for the create: ${ratioOf("create") <= 2 ? "reached" : "missed"}`);
  console.log(JSON.stringify({ devices, first, more }));
}
