import type { Command } from "commander";
import { z } from "zod";
import { isOverlayError } from "../provider/errors";
import { type Connection, hostId } from "../provider/host/connection";
import { createFleet } from "../provider/host/fleet";
import { type DryRun, dryRun } from "../provider/host/reconcile/dry-run";
import { Reconciler } from "../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../provider/host/reconcile/requests";
import type { Ipam } from "../provider/ipam";
import { findSpec } from "../provider/ipam/shorthands";
import { tryParseJson } from "../provider/json";
import { desiredStates } from "../provider/lifecycle/hosts";
import { buildRequest } from "../provider/lifecycle/lease";
import { findOwnersOn } from "../provider/lifecycle/owners-on-host";
import type { Values } from "../provider/lifecycle/values";
import { itemKey } from "../provider/network/model/items";
import { networkPool } from "../provider/pool-names";
import { resourceOf, resources } from "../provider/resources";
import { readHub } from "../provider/resources/network-settings";
import { command, readInput, type Session, withPool } from "./command";
import {
  CliHosts,
  hostIdOfLease,
  type Login,
  parseConnection,
  parseHostId,
  parseNamedConnection,
  withLoginOptions,
} from "./hosts";
import { OUR_TYPES, parseExport } from "./stack-export";

/** `overlayctl plan`: the commands of the next up, for each host. */

interface Options extends Login, ConnectionOptions {}

export const planCommand = (): Command =>
  withLoginOptions(command("plan", "Print the exact commands that an up would run on each host. Changes nothing."))
    .argument("[file]", "output of `pulumi preview --json` or `pulumi stack export --show-secrets`", "-")
    .option("--hub <host>", "the hub's host, if the preview moves it", parseConnection)
    .option("--runner <name=host>", "a runner's host, if the preview moves it; may be repeated", parseNamedConnection)
    .action(
      withPool<Options>(async (session, options, file) => {
        const planned = await readPlanned(file!);
        const hosts = new CliHosts(session.settings, options);
        await hosts.use(async () => {
          const { works, unknown } = await buildRequests(session.pool, hosts, planned, options);
          for (const [host, { connection, all }] of [...works].sort(([a], [b]) => compareNaturally(a, b)))
            printDryRun(session, host, await dryRun(await hosts.connect(connection), all));
          if (works.size + unknown.length === 0) session.out.note("Nothing would be changed on any host.");
          if (unknown.length > 0)
            session.out.note(
              `The hosts of these are not known before up: ${unknown.join(", ")} (see --hub and --runner).`,
            );
        });
      }),
    );

/** So that the same plan is always the same text. */
const compareNaturally = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

type HostRequests = Map<string, { connection: Connection; all: ApplyRequest[] }>;

async function buildRequests(pool: Ipam, hosts: CliHosts, planned: PlannedResource[], given: ConnectionOptions) {
  const deps = { fleet: createFleet(hosts, new Reconciler(), {}) };
  const { id: store } = await pool.describe();
  const [works, unknown]: [HostRequests, string[]] = [new Map(), []];
  for (const each of planned) {
    const props = await fillConnections(pool, each, given);
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

function printDryRun({ out }: Session, host: string, { steps, script, records, warnings, refused }: DryRun): void {
  const reasons = refused.map((error) => {
    if (!isOverlayError(error)) throw error;
    return error.message;
  });
  if (reasons.length > 0) process.exitCode = 1;
  const changes = steps.map(({ verb, item }) => `${verb} ${itemKey(item)}`);
  out.emit({ host, changes, script, records, warnings, refused: reasons });
  out.say(`# ${host}: ${steps.length} change${steps.length === 1 ? "" : "s"}`);
  for (const { network, uid, items } of records)
    out.say(`# writes /var/lib/overlay/${network}/${uid}.json (${items.length} items)`);
  for (const warning of warnings) out.say(`# warning: ${warning}`);
  for (const reason of reasons) out.say(`# refused: ${reason}`);
  if (script !== "") out.say(script);
  out.say("");
}

/** Hosts from options, by role or by the runner's name. */
export interface ConnectionOptions {
  hub?: Connection;
  runner?: Record<string, Connection>;
}

/**
 * A preview does not contain connections. But the offers that it has written have names of devices with their hosts. Logins come from
 * the settings. undefined: the pool does not have the host.
 */
async function fillConnections(
  pool: Ipam,
  planned: PlannedResource,
  given: ConnectionOptions,
): Promise<Values | undefined> {
  const { type, props } = planned;
  const hidden = resourceOf(type).secrets.filter((key) => isHidden(props[key]));
  const filled = { ...props };
  for (const key of hidden) {
    const connection =
      key === "hubConnection"
        ? await findHubConnection(pool, props, given)
        : await findRunnerConnection(pool, planned, given);
    if (!connection) return undefined;
    filled[key] = connection;
  }
  return filled;
}

const isHidden = (value: unknown): boolean => typeof value === "string" || value === undefined;

async function findHubConnection(
  pool: Ipam,
  props: Values,
  { hub }: ConnectionOptions,
): Promise<Connection | undefined> {
  if (hub) return hub;
  const name = (props.network as { networkName?: string } | undefined)?.networkName ?? props.networkName;
  const spec = await findSpec(pool, networkPool(String(name)));
  const id = spec && readHub(spec);
  return id ? parseHostId(id) : undefined;
}

async function findRunnerConnection(
  pool: Ipam,
  { type, props }: PlannedResource,
  { runner }: ConnectionOptions,
): Promise<Connection | undefined> {
  const named = runner?.[String(props.runnerName)];
  if (named) return named;
  const { pool: name } = buildRequest(resourceOf(type), props);
  const lease = (await findSpec(pool, name)) && (await pool.find({ pool: name, owner: String(props.owner) }));
  const id = lease && hostIdOfLease(lease);
  return id ? parseHostId(id) : undefined;
}

/** One of our resources with the properties after an up, or before it if it `isDeleted`. */
export interface PlannedResource {
  type: string;
  /** Its name in Pulumi. */
  name: string;
  props: Values;
  isDeleted: boolean;
}

const stepState = z.looseObject({
  type: z.string(),
  inputs: z.record(z.string(), z.unknown()).default({}),
  outputs: z.record(z.string(), z.unknown()).default({}),
});
const preview = z.looseObject({
  steps: z.array(
    z.looseObject({ op: z.string(), urn: z.string(), oldState: stepState.optional(), newState: stepState.optional() }),
  ),
});

/** `pulumi preview --json` has the state after an up; `pulumi stack export` the present one, and the plan is then the repair of drift. */
async function readPlanned(file: string): Promise<PlannedResource[]> {
  const text = await readInput(file);
  const parsed = preview.safeParse(parseEmbeddedJson(text));
  return parsed.success ? parsed.data.steps.flatMap(planFromStep) : planFromExport(file, text);
}

/** There may be warnings before and after the JSON. */
const parseEmbeddedJson = (text: string): unknown =>
  tryParseJson(text.slice(text.indexOf("{"), text.lastIndexOf("}") + 1));

const PRESENT_AFTER = ["create", "same", "update", "create-replacement", "refresh", "import"];
const ABSENT_AFTER = ["delete", "delete-replaced"];

/** The inputs are those of the new state; uid and lease id are outputs of the old one. */
function planFromStep({ op, urn, oldState, newState }: z.output<typeof preview>["steps"][number]): PlannedResource[] {
  const [, type] = OUR_TYPES.exec((newState ?? oldState)?.type ?? "") ?? [];
  if (!type || !resources.some((known) => known.type === type)) return [];
  const name = urn.split("::").at(-1)!;
  const { uid, leaseId } = op === "create-replacement" ? {} : (oldState?.outputs ?? ({} as Values));
  if (PRESENT_AFTER.includes(op))
    return [{ type, name, props: { ...newState!.inputs, uid, leaseId }, isDeleted: false }];
  return ABSENT_AFTER.includes(op) ? [{ type, name, props: oldState!.outputs, isDeleted: true }] : [];
}

const planFromExport = (file: string, text: string): PlannedResource[] =>
  parseExport(file, text).resources.map(({ type, props }) => ({
    type,
    name: props.owner.split("::").at(-1)!,
    props,
    isDeleted: false,
  }));
