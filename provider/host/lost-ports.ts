import type { Facts } from "../network/facts";
import { type Link, lists } from "../network/items";
import { isMine } from "../network/ownership";
import { lostPorts, PORTS_SCRIPT, parsePorts } from "../network/ports";
import type { Step, Want } from "../network/steps";
import type { Shell } from "./types";

/** A bridge that is on record and must be made again: it was deleted, and its ports are still there without it. */
const lostBridges = (steps: Step[], wants: Want[], { records }: Facts): { step: Step; link: Link; want: Want }[] =>
  steps.flatMap((step) => {
    const { verb, item } = step;
    if (verb !== "add" || item.kind !== "link" || item.type !== "bridge") return [];
    const want = wants.find((each) => records.some((record) => isMine(record, each) && lists(record, item)));
    return want ? [{ step, link: item, want }] : [];
  });

/** The same steps, with the ports that such bridges had; `warnings`: what could not be told. */
export async function withLostPorts(
  shell: Shell,
  steps: Step[],
  wants: Want[],
  facts: Facts,
): Promise<{ steps: Step[]; warnings: string[] }> {
  const bridges = lostBridges(steps, wants, facts);
  if (bridges.length === 0) return { steps, warnings: [] };
  const { stdout } = await shell.run(PORTS_SCRIPT);
  const found = parsePorts(stdout);
  const lost = new Map(bridges.map(({ step, link, want }) => [step, lostPorts(link, want, found, facts)]));
  return {
    steps: steps.map((step) => ({ ...step, ...(lost.has(step) && { ports: lost.get(step)!.ports }) })),
    warnings: [...lost.values()].flatMap(({ warnings }) => warnings),
  };
}

/** After a change: ports that are still not plugged in. */
export async function unpluggedPorts(shell: Shell, steps: Step[]): Promise<string[]> {
  const warnings: string[] = [];
  for (const { item, ports = [] } of steps) {
    if (item.kind !== "link" || ports.length === 0) continue;
    const { stdout } = await shell.run(`ls /sys/class/net/${item.name}/brif`);
    const plugged = new Set(stdout.split("\n"));
    for (const port of ports.filter((each) => !plugged.has(each)))
      warnings.push(`${port} could not be plugged in again: \`ip link set dev ${port} master ${item.name}\`.`);
  }
  return warnings;
}
