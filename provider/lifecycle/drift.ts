import { isOverlayError } from "../errors";
import type { RunPlan } from "../ipam/run-plan";
import { formatDifference } from "../network/kinds";
import { type Definition, type TargetHost, targetsOf } from "../resource";
import { offerContainerLeases } from "./container-leases";
import type { Dependencies } from "./dependencies";
import { askOrRecall, desiredState, formatDrift, planItems, runProbe } from "./hosts";
import { isLeaseGone, type OwnedLease } from "./lease";
import { findPeers } from "./mesh-peers";
import { findOwnersOn } from "./owners-on-host";
import type { Values } from "./values";

export const NOT_READ = "could not be read";
export const NOT_COMPARED = "was not compared";

/** Differences between hosts and plan, as text. A host that cannot be read counts as a difference, and does not hide those of the others. */
export async function readDrift(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  owned: Omit<OwnedLease, "run">,
): Promise<{ found: string[]; isComplete: boolean }> {
  const targets = targetsOf(def, props);
  const { underlays, errors, unknown } = await askOrRecall(deps, targets, props);
  const peers = await findPeers(def, pool.ipam, props, underlays.runner);
  const plan = unknown ? {} : planItems(def, props, underlays, peers);
  let isComplete = true;
  // Only the code: the text has the number of attempts, which would differ in every refresh.
  const describeUnread = (error: unknown): string => {
    if (!isOverlayError(error)) throw error;
    isComplete = false;
    return `${NOT_READ} (${error.code})`;
  };
  const neighbours: string[] = [];
  const read = async ({ role, connection }: TargetHost): Promise<string[]> => {
    if (errors.has(role)) return [describeUnread(errors.get(role))];
    if (unknown) return [`${NOT_COMPARED}, because another host of the resource could not be read`];
    const request = {
      ...desiredState(def, props, owned, plan[role] ?? []),
      isLeaseGone: (uid: string) => isLeaseGone(pool, owned, uid),
      ownersHere: () => findOwnersOn(pool.ipam, connection),
    };
    try {
      const seen = await deps.fleet.inspect(connection, request);
      neighbours.push(...seen.neighbours);
      const unleased = await offerContainerLeases(def, pool, props, [seen]);
      return [...seen.foreign, ...seen.differences.map(formatDifference), ...unleased];
    } catch (error) {
      return [describeUnread(error)];
    }
  };
  const texts = targets.map(async (target) => (await read(target)).map((text) => formatDrift(target.connection, text)));
  const found = (await Promise.all(texts)).flat();
  if (found.length > 0) return { found, isComplete };
  const failure = await runProbe(def, deps, props, underlays, neighbours, peers).catch(describeUnread);
  return { found: failure === undefined ? [] : [failure], isComplete };
}
