import { findKeptKeys, findOwnedItems, isOwnRecord } from "../../network/diff/ownership";
import { findItemsToRemove, findRiskySteps } from "../../network/diff/steps";
import { diffItems, formatDifference, readBackOf, restoresFormerState } from "../../network/kinds";
import { findEmptiedBridges } from "../../network/kinds/device";
import type { Facts } from "../../network/model/facts";
import { type DesiredState, hasItem, itemKey, type Link, type Step } from "../../network/model/items";
import { recordPath } from "../../network/model/record";
import { readbackScript } from "../../network/read/facts";
import { findLostPorts, PORTS_SCRIPT, parsePortFacts } from "../../network/read/ports";
import { renderChange } from "../../network/render/script";
import type { CommandResult, Host, Shell } from "../connection";
import { applyGuarded } from "./guarded-change";
import { commandFailedError, parseHostFacts, wasRecordWritten } from "./host-state";
import type { Accepted, ApplyRequest } from "./requests";

/** Applies the steps of accepted requests to a host, and verifies the result. */

/** For errors. */
export const CHANGING = "changing it";

export const acceptedRequests = (accepted: Accepted[]): ApplyRequest[] => accepted.map(({ desired }) => desired);

/** Writes the records, applies the steps and reads back, in one message; in several if a step could cut SSH. */
export async function applySteps(
  host: Host,
  shell: Shell,
  accepted: Accepted[],
  steps: Step[],
  facts: Facts,
  revertAfter: number,
): Promise<{ script: string; result: CommandResult }> {
  const records = accepted.flatMap(({ written }) => written);
  const invalidFiles = accepted.flatMap((each) => each.invalidFiles);
  const script = renderChange(steps, records, invalidFiles);
  const risky = findRiskySteps(steps, facts);
  if (risky.length === 0) {
    const readback = renderReadback(accepted, facts);
    return { script, result: await shell.run(`(\n${script}\n) >&2\necho "@@ applied $?"\n${readback}`, CHANGING) };
  }
  const change = { steps, states: acceptedRequests(accepted), risky, records, invalidFiles, before: facts };
  return { script, result: await applyGuarded(host, shell, change, revertAfter) };
}

/** Reads all that these requests can have changed, now or before. */
function renderReadback(accepted: Accepted[], before: Facts): string {
  const items = accepted.flatMap(({ desired }) => [...desired.items, ...findOwnedItems(desired, before)]);
  const { devices, files, isIpv6 } = readBackOf(items, before);
  const records = accepted.flatMap(({ written }) => written.map(recordPath));
  return readbackScript({ devices, files: [...files, ...records], isIpv6 });
}

/** The requests whose desired state the host now has. The exit code is that of a batch which several owners share, and decides nothing. */
export function checkResult(
  host: Host,
  accepted: Accepted[],
  before: Facts,
  result: CommandResult,
  script: string,
): Accepted[] {
  const code = /^@@ applied (\d+)$/m.exec(result.stdout)?.[1] ?? "none";
  const after = parseHostFacts(host, result);
  const ownOf = (desired: DesiredState) => findOwnedItems(desired, before);
  const states = acceptedRequests(accepted);
  const keep = findKeptKeys(states.flatMap(ownOf), states, before);
  return accepted.filter((each) => {
    const { job, desired } = each;
    const remaining = findItemsToRemove(ownOf(desired), keep, after).filter((item) => !restoresFormerState(item));
    const failed = [
      ...(wasRecordWritten(each, after) ? [] : [`${recordPath(desired.record)}: not written`]),
      ...diffItems(desired.items, after).map(formatDifference),
      ...remaining.map((item) => `${itemKey(item)}: still there`),
    ];
    if (failed.length > 0) job.fail(commandFailedError(host, code, result.stderr, script, failed));
    return failed.length === 0;
  });
}

interface LostBridge {
  step: Step;
  link: Link;
  desired: DesiredState;
}

/**
 * Bridges that were deleted: they must be created again, or were created again without their ports. A bridge was there before if it is on record, or
 * if a port is there that we made for it.
 */
function findLostBridges(steps: Step[], desiredStates: DesiredState[], facts: Facts): LostBridge[] {
  const added = steps.flatMap((step) =>
    step.verb === "add" && step.item.kind === "link" ? [[step, step.item] as const] : [],
  );
  return desiredStates.flatMap((desired) => {
    const wasThere = (link: Link): boolean =>
      facts.records.some((record) => isOwnRecord(record, desired) && hasItem(record, link)) ||
      desired.items.some(
        (item) =>
          item.kind === "link" && item.master === link.name && item.mac && facts.links.get(item.name)?.mac === item.mac,
      );
    const emptied = findEmptiedBridges(desired.items, facts).flatMap(({ item }) =>
      item.kind === "link" ? [[{ verb: "change", item } satisfies Step, item] as const] : [],
    );
    return [...added, ...emptied]
      .filter(([, link]) => link.type === "bridge" && wasThere(link))
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
  const { stdout } = await shell.run(PORTS_SCRIPT, "looking for the ports of a bridge");
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
    const { stdout } = await shell.run(`ls /sys/class/net/${item.name}/brif`, "reading the ports of a bridge");
    const plugged = new Set(stdout.split("\n"));
    for (const port of ports.filter((each) => !plugged.has(each)))
      warnings.push(`${port} could not be attached again: \`ip link set dev ${port} master ${item.name}\`.`);
  }
  return warnings;
}
