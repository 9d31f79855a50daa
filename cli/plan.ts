import type { Command } from "commander";
import { isOverlayError, OverlayError } from "../provider/errors";
import { type Connection, hostId } from "../provider/host/connection";
import { createFleet } from "../provider/host/fleet";
import { type DryRun, dryRun, type PlannedStep } from "../provider/host/reconcile/dry-run";
import { Reconciler } from "../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../provider/host/reconcile/requests";
import type { Ipam } from "../provider/ipam";
import { desiredStates, notCleanedWarning, stateAfterRemoval } from "../provider/lifecycle/hosts";
import { buildRequest } from "../provider/lifecycle/lease";
import { findOwnersOn } from "../provider/lifecycle/owners-on-host";
import { readCleanHosts, removedTargets } from "../provider/lifecycle/target-hosts";
import { unknownPaths, type Values } from "../provider/lifecycle/values";
import { itemKey } from "../provider/network/model/items";
import { type TargetHost, targetsOf } from "../provider/resource";
import { resourceOf } from "../provider/resources";
import { command, type Session, withPool } from "./command";
import { CliHosts, type Login, parseConnection, parseNamedConnection, withLoginOptions } from "./hosts";
import { findMissing, type PlannedHosts } from "./incomplete";
import { compareNaturally } from "./output";
import { type ConnectionOptions, fillConnections, type PlannedResource, readPlanned } from "./planned";

/** `overlayctl plan`: the commands of the next up, for each host. */

interface Options extends Login, ConnectionOptions {
  all?: boolean;
}

export const planCommand = (): Command =>
  withLoginOptions(command("plan", "Print the exact commands that an up would run on each host. Changes nothing."))
    .argument("[file]", "output of `pulumi preview --json` or `pulumi stack export --show-secrets`", "-")
    .option("--all", "also hosts without a change, records, and the files that restore all at boot")
    .option("--hub <host>", "the hub's host, if the preview does not show it", parseConnection)
    .option(
      "--runner <name=host>",
      "a runner's host, if the preview does not show it; may be repeated",
      parseNamedConnection,
    )
    .action(
      withPool<Options>(async (session, options, file) => {
        const planned = await readPlanned(file!);
        const hosts = new CliHosts(session.settings, options);
        await hosts.use(async () => {
          const { works, notCleaned, unknown, missing } = await makePlan(session.pool, hosts, planned, options);
          const inOrder = [...works].sort(([a], [b]) => compareNaturally(a, b));
          const runs: [string, DryRun][] = [];
          for (const [host, { connection, all }] of inOrder)
            runs.push([host, await dryRun(await hosts.connect(connection), all)]);
          for (const [host, warning] of notCleaned) runs.push([host, { ...NO_CHANGE, warnings: [warning] }]);
          for (const [host, run] of runs) printDryRun(session, host, run, options.all === true);
          session.out.note(summarize(runs));
          if (unknown.length + missing.length > 0) throw incompleteError(unknown, missing);
        });
      }),
    );

function summarize(runs: [host: string, run: DryRun][]): string {
  const changing = runs.filter(([, { steps }]) => steps.length > 0);
  const refusing = runs.filter(([, { refused }]) => refused.length > 0).map(([host]) => host);
  const steps = changing.reduce((sum, [, run]) => sum + run.steps.length, 0);
  const changes =
    steps === 0
      ? "Nothing would be changed on any host."
      : `${count(steps, "change")} on ${changing.length} of ${count(runs.length, "host")}.`;
  return refusing.length === 0 ? changes : `${changes} Refused on ${refusing.join(", ")}: see above.`;
}

const count = (many: number, what: string): string => `${many} ${what}${many === 1 ? "" : "s"}`;

function incompleteError(unknown: string[], missing: string[]): OverlayError {
  const values = `hosts or values of ${unknown.join(", ")}, which are not known before up`;
  return new OverlayError(
    "PLAN_INCOMPLETE",
    `The plan above is not complete. Not in it: ${[...(unknown.length > 0 ? [values] : []), ...missing].join("; ")}.`,
    unknown.length > 0
      ? "Give hosts that are not known with --hub HOST and --runner NAME=HOST. The rest is known only in up."
      : "It depends on what hosts answer during the up.",
  );
}

const NO_HOSTS = { underlays: {}, peers: [] };

const NO_CHANGE: DryRun = { steps: [], script: "", commands: "", records: [], warnings: [], refused: [] };

type HostRequests = Map<string, { connection: Connection; all: ApplyRequest[] }>;

interface Plan {
  works: HostRequests;
  /** Hosts that a resource no longer has and that do not answer, with what up says then. */
  notCleaned: [host: string, warning: string][];
  /** Resources whose hosts or values are not known. */
  unknown: string[];
  /** What the plan lacks of the others. */
  missing: string[];
}

async function makePlan(
  pool: Ipam,
  hosts: CliHosts,
  planned: PlannedResource[],
  given: ConnectionOptions,
): Promise<Plan> {
  const deps = { fleet: createFleet(hosts, new Reconciler(), {}), ipam: pool };
  const { id: store } = await pool.describe();
  const plan: Plan = { works: new Map(), notCleaned: [], unknown: [], missing: [] };
  const found: PlannedHosts[] = [];
  for (const each of planned.filter(({ type }) => resourceOf(type).host !== undefined)) {
    const def = resourceOf(each.type);
    const former = each.olds && { ...each, props: each.olds, isDeleted: true };
    const olds = former && (await fillConnections(pool, former, [], {}));
    const props = unknownPaths(each.props).length === 0 ? await fillConnections(pool, each, planned, given) : undefined;
    if (!props || (former && !olds)) {
      plan.unknown.push(each.name);
      continue;
    }
    // A resource that does not exist yet has no uid. Its record has a uid with its name here.
    const { uid = `uid-of-${each.name}`, leaseId = "" } = props as { uid?: string; leaseId?: string };
    const { pool: from, owner } = buildRequest(def, props);
    const owned = { pool: from, uid, leaseId, owner, store };
    const lease = await pool.find({ pool: from, leaseId });
    const removal = (of: Values, target: TargetHost) => stateAfterRemoval(def, deps, of, owned, target);
    const { states, ...facts } = each.isDeleted
      ? { states: await Promise.all(targetsOf(def, props).map((target) => removal(props, target))), ...NO_HOSTS }
      : await desiredStates(def, deps, props, owned);
    for (const state of states) addRequest(plan, pool, from, state);
    found.push({ each, props, lease, ...facts });
    for (const target of olds ? removedTargets(def, olds, props, lease ? readCleanHosts(lease) : []) : []) {
      try {
        addRequest(plan, pool, from, await removal(olds!, target));
      } catch (error) {
        plan.notCleaned.push([hostId(target.connection), notCleanedWarning(def.id(props), target, error)]);
      }
    }
  }
  plan.missing.push(...(await findMissing(pool, found)));
  return plan;
}

function addRequest({ works }: Plan, pool: Ipam, from: string, { target, desired }: PlannedState): void {
  const id = hostId(target.connection);
  const at = works.get(id) ?? { connection: target.connection, all: [] };
  works.set(id, at);
  at.all.push({
    ...desired,
    fence: async () => {},
    isLeaseGone: async (uid) => (await pool.find({ pool: from, uid })) === undefined,
    ownersHere: () => findOwnersOn(pool, target.connection),
  });
}

type PlannedState = Awaited<ReturnType<typeof stateAfterRemoval>>;

function printDryRun({ out }: Session, host: string, run: DryRun, all: boolean): void {
  const { steps, script, commands, records, warnings } = run;
  const refused = run.refused.map((error) => {
    if (!isOverlayError(error)) throw error;
    return error.message;
  });
  if (refused.length > 0) process.exitCode = 1;
  const changes = steps.map(({ verb, item, values, faults }) => ({ verb, item: itemKey(item), values, faults }));
  out.emit({ host, changes, script, records, warnings, refused });
  if (!all && steps.length + warnings.length + refused.length === 0) return;
  const written = all ? records : [];
  out.say(
    [
      `# ${host}: ${count(steps.length, "change")}`,
      ...changes.map(describeChange),
      ...written.map(
        ({ network, uid, items }) => `#   record /var/lib/overlay/${network}/${uid}.json (${items.length} items)`,
      ),
      ...warnings.map((warning) => `# warning: ${warning}`),
      ...refused.map((reason) => `# refused: ${reason}`),
      all ? script : commands,
      "",
    ].join("\n"),
  );
}

/** `#   change link ovl1: MTU 1450 → 1400`. */
function describeChange({ verb, item, values, faults }: PlannedChange): string {
  const details = [...values.map(({ what, from, to }) => `${what} ${from} → ${to}`), ...faults];
  return `#   ${verb} ${item}${details.length > 0 ? `: ${details.join(", ")}` : ""}`;
}

interface PlannedChange extends Pick<PlannedStep, "verb" | "values" | "faults"> {
  item: string;
}
