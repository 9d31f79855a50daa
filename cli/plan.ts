import type { Command } from "commander";
import { isOverlayError, OverlayError } from "../provider/errors";
import { type Connection, hostId } from "../provider/host/connection";
import { createFleet } from "../provider/host/fleet";
import { type DryRun, dryRun, type PlannedStep } from "../provider/host/reconcile/dry-run";
import { Reconciler } from "../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../provider/host/reconcile/requests";
import type { Ipam } from "../provider/ipam";
import { desiredStates } from "../provider/lifecycle/hosts";
import { buildRequest } from "../provider/lifecycle/lease";
import { findOwnersOn } from "../provider/lifecycle/owners-on-host";
import { unknownPaths, type Values } from "../provider/lifecycle/values";
import { itemKey } from "../provider/network/model/items";
import { resourceOf } from "../provider/resources";
import { command, type Session, withPool } from "./command";
import { CliHosts, type Login, parseConnection, parseNamedConnection, withLoginOptions } from "./hosts";
import { type ConnectionOptions, fillConnections, type PlannedResource, readPlanned } from "./planned";

/** `overlayctl plan`: the commands of the next up, for each host. */

interface Options extends Login, ConnectionOptions {
  all?: boolean;
}

export const planCommand = (): Command =>
  withLoginOptions(command("plan", "Print the exact commands that an up would run on each host. Changes nothing."))
    .argument("[file]", "output of `pulumi preview --json` or `pulumi stack export --show-secrets`", "-")
    .option("--all", "also hosts without a change, records, and the files that restore all at boot")
    .option("--hub <host>", "the hub's host, if the preview moves it", parseConnection)
    .option("--runner <name=host>", "a runner's host, if the preview moves it; may be repeated", parseNamedConnection)
    .action(
      withPool<Options>(async (session, options, file) => {
        const planned = await readPlanned(file!);
        const hosts = new CliHosts(session.settings, options);
        await hosts.use(async () => {
          const { works, unknown } = await buildRequests(session.pool, hosts, planned, options);
          const inOrder = [...works].sort(([a], [b]) => compareNaturally(a, b));
          const runs: [string, DryRun][] = [];
          for (const [host, { connection, all }] of inOrder)
            runs.push([host, await dryRun(await hosts.connect(connection), all)]);
          for (const [host, run] of runs) printDryRun(session, host, run, options.all === true);
          session.out.note(summarize(runs.map(([, run]) => run)));
          if (unknown.length > 0) throw unknownHostsError(unknown);
        });
      }),
    );

function summarize(runs: DryRun[]): string {
  const changing = runs.filter(({ steps }) => steps.length > 0);
  const steps = changing.reduce((sum, run) => sum + run.steps.length, 0);
  if (steps === 0) return "Nothing would be changed on any host.";
  return `${count(steps, "change")} on ${changing.length} of ${count(runs.length, "host")}.`;
}

const count = (many: number, what: string): string => `${many} ${what}${many === 1 ? "" : "s"}`;

const unknownHostsError = (names: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `The plan is not complete: hosts or values of ${names.join(", ")} are not known before up.`,
    "Give hosts with --hub HOST and --runner NAME=HOST. Values that other resources make are known only in up.",
  );

/** So that the same plan is always the same text. */
const compareNaturally = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

type HostRequests = Map<string, { connection: Connection; all: ApplyRequest[] }>;

async function buildRequests(pool: Ipam, hosts: CliHosts, planned: PlannedResource[], given: ConnectionOptions) {
  const deps = { fleet: createFleet(hosts, new Reconciler(), {}), ipam: pool };
  const { id: store } = await pool.describe();
  const [works, unknown]: [HostRequests, string[]] = [new Map(), []];
  for (const each of planned.filter(({ type }) => resourceOf(type).host !== undefined)) {
    const isKnown = unknownPaths(each.props).length === 0;
    const props = isKnown ? await fillConnections(pool, each, given) : undefined;
    if (!props) unknown.push(each.name);
    for (const { target, desired } of props ? await findDesiredStates(deps, each, props, store) : []) {
      const at = works.get(hostId(target.connection)) ?? { connection: target.connection, all: [] };
      at.all.push({
        ...desired,
        fence: async () => {},
        isLeaseGone: isGone(pool, each),
        ownersHere: () => findOwnersOn(pool, target.connection),
      });
      works.set(hostId(target.connection), at);
    }
  }
  return { works, unknown };
}

/** A resource that does not exist yet has no uid. Its record has a uid with its name here. */
function findDesiredStates(
  deps: Parameters<typeof desiredStates>[1],
  { type, name, isDeleted }: PlannedResource,
  props: Values,
  store: string,
) {
  const { uid = `uid-of-${name}`, leaseId = "" } = props as { uid?: string; leaseId?: string };
  const owned = { pool: "", uid, leaseId, owner: String(props.owner), store };
  return desiredStates(resourceOf(type), deps, props, owned, isDeleted);
}

const isGone =
  (pool: Ipam, { type, props }: PlannedResource) =>
  async (uid: string): Promise<boolean> =>
    (await pool.find({ pool: buildRequest(resourceOf(type), props).pool, uid })) === undefined;

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
