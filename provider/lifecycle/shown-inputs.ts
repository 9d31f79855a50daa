import { type Definition, referencesOf } from "../resource";
import { UNKNOWN, type Values } from "./values";

/**
 * Properties as Pulumi stores and shows them: a reference is the name that it refers to, `network: "training"`. The settings that came with
 * it are beside it, `__network.mtu`: Pulumi shows a property that begins with two underscores only if it changes, and `check` gets no other
 * properties of the state than former inputs. States of earlier releases have the settings as the value of the reference.
 */

const OWNER = "__owner";
const prefixOf = (reference: string): string => `__${reference}.`;

/** `whole`: references that stay as they are. Those with a secret in them must, because Pulumi knows secrets by their place. */
export function shortenReferences(def: Definition, { owner, ...props }: Values, whole: string[]): Values {
  const shown: Values = { ...props, ...(owner !== undefined && { [OWNER]: owner }) };
  for (const [key] of referencesOf(def)) {
    const name = whole.includes(key) ? undefined : nameOf(props[key]);
    if (name === undefined) continue;
    shown[key] = name;
    for (const [setting, value] of Object.entries(props[key] as Values)) shown[prefixOf(key) + setting] = value;
  }
  return shown;
}

/** The properties as the lifecycle knows them. A reference that is unknown has no settings. */
export function expandReferences(def: Definition, { [OWNER]: owner, ...shown }: Values): Values {
  const props: Values = { ...shown, ...(owner !== undefined && { owner }) };
  for (const [key] of referencesOf(def)) {
    const prefix = prefixOf(key);
    const found = Object.keys(shown).filter((each) => each.startsWith(prefix));
    for (const each of found) delete props[each];
    if (found.length === 0 || shown[key] === UNKNOWN) continue;
    const settings = Object.fromEntries(found.map((each) => [each.slice(prefix.length), shown[each]]));
    props[key] = Array.isArray(shown[key]) ? Object.assign([], settings) : settings;
  }
  return props;
}

/** References that Pulumi has with their settings. */
export const wholeReferences = (def: Definition, shown: Values): string[] =>
  referencesOf(def).flatMap(([key]) => (nameOf(shown[key]) === undefined ? [] : [key]));

/** The parts of a name: a runner has that of its network, too. */
const NAMES = ["networkName", "runnerName", "poolName"];

/** undefined: no settings, or of something whose name is unknown. */
function nameOf(settings: unknown): string | string[] | undefined {
  if (Array.isArray(settings)) {
    const names = settings.map(nameOf);
    return names.length > 0 && names.every((name) => typeof name === "string") ? names : undefined;
  }
  if (typeof settings !== "object" || settings === null) return undefined;
  const names = NAMES.flatMap((part) => (settings as Values)[part] ?? []).map(String);
  return names.length === 0 || names.includes(UNKNOWN) ? undefined : names.join("/");
}
