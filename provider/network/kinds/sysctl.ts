import { FAMILIES, type Family } from "../../addressing/ip";
import type { Facts } from "../model/facts";
import { FORWARDING, mismatch, type Step, type Sysctl } from "../model/items";
import { RECORD_DIR, sysctlPath } from "../model/record";
import { quote, renderWriteFiles, textFile, WARNING_PREFIX } from "../render/shell";
import { compareAccess } from "./file";
import { observedRules, REST } from "./firewall";
import type { ItemKind } from "./kind";

/**
 * A kernel setting. Its former value is saved once, before the first change, and restored when the last record that lists it is
 * removed. A boot saves nothing: whether the value of a host is the former one or ours cannot be seen there.
 */
export const sysctlKind: ItemKind<Sysctl> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["sysctls", "access"], after: ["sysctls", "access"] },
  readBack: () => ({}),
  restoresFormerState: true,
  disappearsWith: ({ key }) => OWN_SETTING.exec(key)?.[1]?.replaceAll("/", "."),
  compare({ key, value }, facts) {
    const observed = facts.sysctls.get(key);
    if (observed === undefined) return undefined;
    return [
      ...mismatch("value", observed, value),
      ...compareSaved(key, facts),
      ...compareAccess(savedSysctlPath(key), facts).map((text) => `${text}, of its saved former value`),
    ];
  },
  render({ verb, item: { key, value }, keepsValue = false, formerValue }, parts) {
    if (verb === "remove")
      parts.shell.push(isFiltering(key) ? setDefault(key) : restoreSysctl(key, keepsValue, formerValue));
    else {
      if (verb === "change") parts.saves.push(closeSaved(key));
      if (formerValue !== undefined) parts.saves.push(saveSysctl(key, formerValue));
      parts.late.push(setSysctl(key, value));
    }
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert({ item }, before) {
    const value = before.sysctls.get(item.key);
    return value === undefined ? [] : [{ verb: "change", item: { ...item, value } }];
  },
  removeFrom() {}, // its value after a restore is not in the facts
  inspectCommands: [`sysctl ${Object.values(FORWARDING).join(" ")}`],
};

/** Set on devices of ours alone, which a new device does not have. Former values of all others are saved, and must be removed. */
const OWN_SETTING = /^net\.ipv[46]\.conf\.(.+)\.(?:rp_filter|proxy_ndp)$/;

/** Set on devices of ours alone, so the former value is the one that new devices get. */
const isFiltering = (key: string): boolean => key.endsWith(".rp_filter");

const setDefault = (key: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || cat ${sysctlPath("net.ipv4.conf.default.rp_filter")} >${sysctlPath(key)}; }`;

/** Values of a device's setting are saved, too, but not read. */
const compareSaved = (key: string, facts: Facts): string[] => {
  if (familyOfForwarding(key) === undefined || isSaved(key, facts)) return [];
  const found = facts.savedSysctls.get(key);
  return [found === undefined ? "its former value is not saved" : `its saved former value is ${JSON.stringify(found)}`];
};

export const familyOfForwarding = (key: string): Family | undefined =>
  FAMILIES.find((family) => FORWARDING[family] === key);

/** Whether a former value is saved, and valid. */
const isSaved = (key: string, { savedSysctls }: Facts): boolean => /^[01]$/.test(savedSysctls.get(key) ?? "");

/** Saved former values of forwarding that are none. */
export const findInvalidSaved = (facts: Facts): { path: string; found: string }[] =>
  [...facts.savedSysctls].flatMap(([key, found]) =>
    isSaved(key, facts) ? [] : [{ path: savedSysctlPath(key), found }],
  );

/** What a record lists for a device was planned because the kernel accepted router advertisements there. */
export const ACCEPT_RA = "1";

/** The value before our first change, which a step saves unless it is saved. Other settings are of devices that we make. */
export function formerValueToSave(key: string, facts: Facts): Pick<Step, "formerValue"> {
  const family = familyOfForwarding(key);
  const otherValue = key.endsWith(".accept_ra") ? ACCEPT_RA : undefined;
  const value = family === undefined ? otherValue : formerForwarding(family, facts);
  return value === undefined || isSaved(key, facts) ? {} : { formerValue: value };
}

/**
 * The forwarding setting before our first change. If the saved value is lost, OVERLAY-REST shows it, which exists only if it was 0, on the
 * host or in a record. The value of the host itself counts only if no record lists the setting: else it is ours.
 */
export function formerForwarding(family: Family, facts: Facts): string | undefined {
  const key = FORWARDING[family];
  if (isSaved(key, facts)) return facts.savedSysctls.get(key);
  const items = facts.records.flatMap((record) => record.items);
  const isClosed =
    observedRules(facts, { family, table: REST.table }, REST.chain).length > 0 ||
    items.some((item) => item.kind === "rule" && item.family === family && item.chain === REST.chain);
  if (isClosed) return "0";
  return items.some((item) => item.kind === "sysctl" && item.key === key) ? "1" : facts.sysctls.get(key);
}

const savedSysctlPath = (key: string): string => `${RECORD_DIR}/former/${key.replaceAll("/", ":")}`;

/** The setting of a device disappears with the device, and gets the kernel's default with a new one. An empty file holds no value. */
const saveSysctl = (key: string, value: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || [ -s ${quote(savedSysctlPath(key))} ] || ${renderWriteFiles([textFile(savedSysctlPath(key), value)])}; }`;

/** Only root may change it. */
function closeSaved(key: string): string {
  const paths = [RECORD_DIR, `${RECORD_DIR}/former`, savedSysctlPath(key)].map(quote).join(" ");
  return `{ [ ! -e ${quote(savedSysctlPath(key))} ] || { chown 0:0 ${paths} && chmod go-w ${paths}; }; }`;
}

const setSysctl = (key: string, value: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || echo ${quote(value)} >${sysctlPath(key)}; }`;

/** `known`: the former value, if it is known although it was not saved. */
function restoreSysctl(key: string, keepsValue: boolean, known?: string): string {
  const former = quote(savedSysctlPath(key));
  if (keepsValue) return `rm -f ${former}`;
  const unknown = `echo ${quote(`${WARNING_PREFIX}${key} is not changed: its former value was not saved.`)}`;
  const other = known === undefined ? unknown : `echo ${quote(known)} >${sysctlPath(key)}`;
  const restore = `if [ -s ${former} ]; then cat ${former} >${sysctlPath(key)}; else ${other}; fi`;
  const kept = `{ { [ ! -e ${sysctlPath(key)} ] || ${restore}; } && rm -f ${former}; }`;
  return known === undefined ? `{ [ ! -e ${former} ] || ${kept}; }` : kept;
}
