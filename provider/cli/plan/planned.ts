import { readFile } from "node:fs/promises";
import { text as streamText } from "node:stream/consumers";
import { z } from "zod";
import { OverlayError } from "../../errors";
import type { Values } from "../../lifecycle/values";
import { resources } from "../../resources";
import { OURS, parseExport } from "../exports";

/** One of our resources with the properties after an up, or before it if it `isDeleted`. */
export interface Planned {
  type: string;
  /** As Pulumi calls it. */
  name: string;
  props: Values;
  isDeleted: boolean;
}

const state = z.looseObject({
  type: z.string(),
  inputs: z.record(z.string(), z.unknown()).default({}),
  outputs: z.record(z.string(), z.unknown()).default({}),
});
const preview = z.looseObject({
  steps: z.array(
    z.looseObject({ op: z.string(), urn: z.string(), oldState: state.optional(), newState: state.optional() }),
  ),
});

/** `pulumi preview --json` says what will be; `pulumi stack export`, what is: then it is drift that an up would mend. */
export async function readPlanned(file: string): Promise<Planned[]> {
  const text = await (file === "-" ? streamText(process.stdin) : readFile(file, "utf8")).catch((error: Error) => {
    throw new OverlayError("INPUT_INVALID", `${file} cannot be read: ${error.message}.`, "Name a file.", error);
  });
  const parsed = preview.safeParse(jsonIn(text));
  return parsed.success ? parsed.data.steps.flatMap(plannedBy) : plannedIn(file, text);
}

/** Warnings may stand before and after the JSON. */
function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text.slice(text.indexOf("{"), text.lastIndexOf("}") + 1));
  } catch {
    return undefined;
  }
}

const COMES = ["create", "same", "update", "create-replacement", "refresh", "import"];
const GOES = ["delete", "delete-replaced"];

/** What a resource was given is in its new inputs; what the pool has given it, in its old outputs. */
function plannedBy({ op, urn, oldState, newState }: z.output<typeof preview>["steps"][number]): Planned[] {
  const [, type] = OURS.exec((newState ?? oldState)?.type ?? "") ?? [];
  if (!type || !resources.some((known) => known.type === type)) return [];
  const name = urn.split("::").at(-1)!;
  const { uid, leaseId } = op === "create-replacement" ? {} : (oldState?.outputs ?? ({} as Values));
  if (COMES.includes(op)) return [{ type, name, props: { ...newState!.inputs, uid, leaseId }, isDeleted: false }];
  return GOES.includes(op) ? [{ type, name, props: oldState!.outputs, isDeleted: true }] : [];
}

const plannedIn = (file: string, text: string): Planned[] =>
  parseExport(file, text).resources.map(({ type, props }) => ({
    type,
    name: props.owner.split("::").at(-1)!,
    props,
    isDeleted: false,
  }));
