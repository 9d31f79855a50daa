import { z } from "zod";
import { OverlayError } from "../provider/errors";
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
import { hostIdOfLease, parseConnection, parseHostId } from "./hosts";
import { OUR_TYPES, parseExport } from "./stack-export";

/** The resources of a preview or an export, with the connections that previews hide. */

/** Hosts from options, by role or by the runner's name. */
export interface ConnectionOptions {
  hub?: Connection;
  runner?: Record<string, Connection>;
}

/**
 * A preview hides connections, but shows their hosts, ports, users and jump hosts. What a secret hides of these is in the offers that the
 * preview has written for new resources. Keys come from the settings. `beside`: the other resources of the preview, because a runner shows of its
 * hub's connection only the host. undefined: the host is not known.
 */
export async function fillConnections(
  pool: Ipam,
  planned: PlannedResource,
  beside: PlannedResource[],
  given: ConnectionOptions,
): Promise<Values | undefined> {
  const { type, props } = planned;
  const { secrets, inputs } = resourceOf(type);
  const filled = { ...props };
  for (const key of secrets.filter((each) => each in inputs.shape && isHidden(props[each]))) {
    const all = placesOf(planned, key).map((place, i) => findConnection(pool, planned, beside, given, key, place, i));
    const found = await Promise.all(all);
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
  planned: PlannedResource,
  beside: PlannedResource[],
  given: ConnectionOptions,
  key: string,
  place: Place,
  index: number,
): Promise<Connection | undefined> {
  const named = place.runner === undefined ? given.hub : given.runner?.[place.runner];
  if (named) return named;
  const shown = readShownParts(planned, key, index);
  const stored = () => findStoredConnection(pool, place);
  if (shown.host === undefined) return stored(); // a state of an earlier release
  if (shown.host === SECRET) return planned.isNew || planned.isDeleted ? stored() : undefined;
  if (isShownWhole(planned, key)) return toConnection(shown);
  const same = beside.flatMap(shownConnections).find(({ host }) => host === shown.host);
  if (same) return same;
  const last = await stored();
  return last?.host === shown.host ? last : toConnection(shown);
}

/** How Pulumi shows a secret. */
const SECRET = "[secret]";

/** The parts of one connection; of `runnerConnections`, that of this index. */
function readShownParts({ type, props }: PlannedResource, key: string, index: number): Partial<Record<string, string>> {
  const parts = Object.entries(resourceOf(type).shownParts?.[key] ?? {}).flatMap(([part, output]) => {
    const value = props[output];
    const one: unknown = Array.isArray(value) ? value[index] : value;
    return one === undefined ? [] : [[part, String(one)]];
  });
  return Object.fromEntries(parts);
}

const isShownWhole = ({ type }: PlannedResource, key: string): boolean =>
  resourceOf(type).shownParts?.[key]?.port !== undefined;

function toConnection({ host, port, user, jumpHost }: Partial<Record<string, string>>): Connection | undefined {
  if (port === SECRET || jumpHost === SECRET) return undefined;
  return {
    host: host!,
    ...(port && { port: Number(port) }),
    ...(user && user !== SECRET && { user }),
    ...(jumpHost && { proxy: parseConnection(jumpHost) }),
  };
}

/** Those that the preview shows with all parts. */
const shownConnections = (planned: PlannedResource): Connection[] =>
  Object.keys(resourceOf(planned.type).shownParts ?? {}).flatMap((key) => {
    const shown = readShownParts(planned, key, 0);
    const isKnown = isShownWhole(planned, key) && shown.host !== undefined && shown.host !== SECRET;
    return (isKnown && toConnection(shown)) || [];
  });

async function findStoredConnection(pool: Ipam, { network, runner, owner }: Place): Promise<Connection | undefined> {
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
  /** Before an update. */
  olds?: Values;
  isNew: boolean;
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
  diagnostics: z.array(z.looseObject({ severity: z.string(), message: z.string() })).default([]),
});

/** `pulumi preview --json` has the state after an up; `pulumi stack export` the present one, and the plan is then the repair of drift. */
export async function readPlanned(file: string): Promise<PlannedResource[]> {
  const text = await readInput(file);
  const parsed = preview.safeParse(parseEmbeddedJson(text));
  if (parsed.success) {
    const failure = parsed.data.diagnostics.find(({ severity }) => severity === "error");
    if (failure) throw failedPreviewError(failure.message);
    return parsed.data.steps.flatMap(planFromStep);
  }
  if (text.includes('"deployment"')) return planFromExport(file, text);
  throw new OverlayError(
    "INPUT_INVALID",
    `${file === "-" ? "Standard input" : file} is not the output of \`pulumi preview --json\`, nor of \`pulumi stack export\`.`,
    "Pipe one of these to `overlayctl plan`, or give a file with its output.",
  );
}

/** It has the resources up to the error only. */
const failedPreviewError = (message: string): OverlayError =>
  new OverlayError(
    "PLAN_INCOMPLETE",
    `The preview failed: ${message
      .trim()
      .replace(/^error: /, "")
      .replace(/\.$/, "")}.`,
    "Correct the program, and plan its next preview.",
  );

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
  const isNew = op.startsWith("create");
  if (PRESENT_AFTER.includes(op)) {
    const props = { ...expandReferences(def, newState!.inputs), uid, leaseId };
    const olds = op === "update" && oldState ? { olds: expandReferences(def, oldState.outputs) } : {};
    return [{ type, name, props, ...olds, isNew, isDeleted: false }];
  }
  return ABSENT_AFTER.includes(op)
    ? [{ type, name, props: expandReferences(def, oldState!.outputs), isNew, isDeleted: true }]
    : [];
}

const planFromExport = (file: string, text: string): PlannedResource[] =>
  parseExport(file, text).resources.map(({ type, props }) => ({
    type,
    name: props.owner.split("::").at(-1)!,
    props,
    isNew: false,
    isDeleted: false,
  }));
