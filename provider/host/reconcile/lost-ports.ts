import { isOwnRecord } from "../../network/diff/ownership";
import { findEmptiedBridges } from "../../network/kinds/device";
import type { Facts } from "../../network/model/facts";
import { type DesiredState, hasItem, type Link, type Step } from "../../network/model/items";
import { findLostPorts, PORTS_SCRIPT, parsePortFacts } from "../../network/read/ports";
import type { Shell } from "../connection";

interface LostBridge {
  step: Step;
  link: Link;
  desired: DesiredState;
}

/** Bridges on record that were deleted: they must be created again, or were created again without their ports. */
function findLostBridges(steps: Step[], desiredStates: DesiredState[], facts: Facts): LostBridge[] {
  const added = steps.flatMap((step) =>
    step.verb === "add" && step.item.kind === "link" ? [[step, step.item] as const] : [],
  );
  return desiredStates.flatMap((desired) => {
    const isRecorded = (link: Link): boolean =>
      facts.records.some((record) => isOwnRecord(record, desired) && hasItem(record, link));
    const emptied = findEmptiedBridges(desired.items, facts).flatMap(({ item }) =>
      item.kind === "link" ? [[{ verb: "change", item } satisfies Step, item] as const] : [],
    );
    return [...added, ...emptied]
      .filter(([, link]) => link.type === "bridge" && isRecorded(link))
      .map(([step, link]) => ({ step, link, desired }));
  });
}

/** The same steps with the ports that such bridges had; `warnings`: what could not be found. */
export async function withLostPorts(
  shell: Shell,
  steps: Step[],
  desiredStates: DesiredState[],
  facts: Facts,
): Promise<{ steps: Step[]; warnings: string[] }> {
  const bridges = findLostBridges(steps, desiredStates, facts);
  if (bridges.length === 0) return { steps, warnings: [] };
  const { stdout } = await shell.run(PORTS_SCRIPT);
  const found = parsePortFacts(stdout);
  if (!found) return { steps, warnings: bridges.map(({ link }) => unreadPortsText(link)) };
  const lost = new Map(bridges.map(({ step, link, desired }) => [step, findLostPorts(link, desired, found, facts)]));
  const all = [...steps, ...[...lost.keys()].filter((step) => !steps.includes(step))];
  return {
    steps: all.map((step) => ({ ...step, ...(lost.has(step) && { ports: lost.get(step)!.ports }) })),
    warnings: [...lost.values()].flatMap(({ warnings }) => warnings),
  };
}

const unreadPortsText = ({ name }: Link): string =>
  `the ports that ${name} had could not be read, so workloads may be disconnected: \`ip link set dev PORT master ${name}\` for each.`;

/** After a change: ports that are still not attached. */
export async function findUnpluggedPorts(shell: Shell, steps: Step[]): Promise<string[]> {
  const warnings: string[] = [];
  for (const { item, ports = [] } of steps) {
    if (item.kind !== "link" || ports.length === 0) continue;
    const { stdout } = await shell.run(`ls /sys/class/net/${item.name}/brif`);
    const plugged = new Set(stdout.split("\n"));
    for (const port of ports.filter((each) => !plugged.has(each)))
      warnings.push(`${port} could not be attached again: \`ip link set dev ${port} master ${item.name}\`.`);
  }
  return warnings;
}
