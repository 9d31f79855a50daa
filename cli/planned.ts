import { z } from "zod";
import type { Connection } from "../provider/host/connection";
import type { Ipam } from "../provider/ipam";
import { findSpec } from "../provider/ipam/interface";
import { tryParseJson } from "../provider/json";
import { expandReferences } from "../provider/lifecycle/shown-inputs";
import type { Values } from "../provider/lifecycle/values";
import { addressPool, networkPool } from "../provider/pool-names";
import { resourceOf, resources } from "../provider/resources";
import { readHub } from "../provider/resources/network-settings";
import { readInput } from "./command";
import { hostIdOfLease, parseHostId } from "./hosts";
import { OUR_TYPES, parseExport } from "./stack-export";

/** The resources of a preview or an export, with the connections that previews hide. */

/** Hosts from options, by role or by the runner's name. */
export interface ConnectionOptions {
  hub?: Connection;
  runner?: Record<string, Connection>;
}

/**
 * A preview does not contain connections. But the offers that it has written have names of devices with their hosts. Logins come from
 * the settings. undefined: the pool does not have the host.
 */
export async function fillConnections(
  pool: Ipam,
  planned: PlannedResource,
  given: ConnectionOptions,
): Promise<Values | undefined> {
  const { type, props } = planned;
  const { secrets, inputs } = resourceOf(type);
  const filled = { ...props };
  for (const key of secrets.filter((each) => each in inputs.shape && isHidden(props[each]))) {
    const found = await Promise.all(placesOf(planned, key).map((place) => findConnection(pool, place, given)));
    if (found.some((each) => each === undefined)) return undefined;
    filled[key] = key === "runnerConnections" ? found : found[0];
  }
  return filled;
}

const isHidden = (value: unknown): boolean => typeof value === "string" || value === undefined;

/** A host by its place in a network: its hub, a runner by its name, or the runner of an owner. */
interface Place {
  network: string;
  runner?: string | undefined;
  /** In a preview that creates the runner, its name has no lease yet. */
  owner?: string;
}

const networkName = z.looseObject({ networkName: z.string() });
const runnerName = networkName.extend({ runnerName: z.string().optional() });

/** The hosts whose connections an input has. */
function placesOf({ type, props }: PlannedResource, key: string): Place[] {
  const named = (value: unknown): Place[] => {
    const { data } = runnerName.safeParse(value);
    return data ? [{ network: data.networkName, runner: data.runnerName }] : [];
  };
  if (key === "runnerConnections") return z.array(z.unknown()).catch([]).parse(props.runners).flatMap(named);
  if (type === "StaticIP") return named(props.attach);
  const { data } = networkName.safeParse(type === "OverlayNetwork" ? props : props.network);
  if (!data) return [];
  const runner = { runner: String(props.runnerName), owner: String(props.owner) };
  return [{ network: data.networkName, ...(key === "connection" && runner) }];
}

async function findConnection(
  pool: Ipam,
  { network, runner, owner }: Place,
  given: ConnectionOptions,
): Promise<Connection | undefined> {
  const named = runner === undefined ? given.hub : given.runner?.[runner];
  if (named) return named;
  const spec = await findSpec(pool, networkPool(network));
  if (!spec) return undefined;
  const id = runner === undefined ? readHub(spec) : await findRunnerHost(pool, network, runner, owner);
  return id === undefined ? undefined : parseHostId(id);
}

async function findRunnerHost(pool: Ipam, network: string, runner: string, owner: string | undefined) {
  const from = networkPool(network);
  const lease = owner === undefined ? undefined : await pool.find({ pool: from, owner });
  const found = lease ?? (await pool.find({ pool: from, name: addressPool(network, runner) }));
  return found && hostIdOfLease(found);
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
export async function readPlanned(file: string): Promise<PlannedResource[]> {
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
  const def = resources.find((known) => known.type === type);
  if (!type || !def) return [];
  const name = urn.split("::").at(-1)!;
  const { uid, leaseId } = op === "create-replacement" ? {} : (oldState?.outputs ?? ({} as Values));
  if (PRESENT_AFTER.includes(op))
    return [{ type, name, props: { ...expandReferences(def, newState!.inputs), uid, leaseId }, isDeleted: false }];
  return ABSENT_AFTER.includes(op)
    ? [{ type, name, props: expandReferences(def, oldState!.outputs), isDeleted: true }]
    : [];
}

const planFromExport = (file: string, text: string): PlannedResource[] =>
  parseExport(file, text).resources.map(({ type, props }) => ({
    type,
    name: props.owner.split("::").at(-1)!,
    props,
    isDeleted: false,
  }));
