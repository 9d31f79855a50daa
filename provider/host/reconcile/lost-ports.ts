import { isMine } from "../../network/diff/ownership";
import { emptiedBridges } from "../../network/kinds/device";
import type { Facts } from "../../network/model/facts";
import { type Link, lists } from "../../network/model/items";
import type { Step, Want } from "../../network/model/steps";
import { lostPorts, PORTS_SCRIPT, parsePorts } from "../../network/read/ports";
import type { Shell } from "../connection";

interface LostBridge {
  step: Step;
  link: Link;
  want: Want;
}

/** Bridges on record that were deleted: they must be made again, or stand without their ports. */
function lostBridges(steps: Step[], wants: Want[], facts: Facts): LostBridge[] {
  const added = steps.flatMap((step) =>
    step.verb === "add" && step.item.kind === "link" ? [[step, step.item] as const] : [],
  );
  return wants.flatMap((want) => {
    const isRecorded = (link: Link): boolean =>
      facts.records.some((record) => isMine(record, want) && lists(record, link));
    const emptied = emptiedBridges(want.items, facts).flatMap(({ item }) =>
      item.kind === "link" ? [[{ verb: "change", item } satisfies Step, item] as const] : [],
    );
    return [...added, ...emptied]
      .filter(([, link]) => link.type === "bridge" && isRecorded(link))
      .map(([step, link]) => ({ step, link, want }));
  });
}

/** The same steps, and the ports that such bridges had; `warnings`: what could not be told. */
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
  if (!found) return { steps, warnings: bridges.map(({ link }) => unreadText(link)) };
  const lost = new Map(bridges.map(({ step, link, want }) => [step, lostPorts(link, want, found, facts)]));
  const all = [...steps, ...[...lost.keys()].filter((step) => !steps.includes(step))];
  return {
    steps: all.map((step) => ({ ...step, ...(lost.has(step) && { ports: lost.get(step)!.ports }) })),
    warnings: [...lost.values()].flatMap(({ warnings }) => warnings),
  };
}

const unreadText = ({ name }: Link): string =>
  `the ports that ${name} had could not be read, so workloads may be unplugged: \`ip link set dev PORT master ${name}\` for each.`;

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
