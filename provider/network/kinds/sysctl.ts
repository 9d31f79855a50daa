import { FORWARDING, mismatch, type Sysctl } from "../model/items";
import { RECORD_DIR, sysctlPath } from "../model/record";
import { quote, renderWriteFiles, WARNING_PREFIX } from "../render/shell";
import type { ItemKind } from "./kind";

/** A kernel setting. Its former value is saved before the first change, and restored when the last record that lists it is removed. */
export const sysctlKind: ItemKind<Sysctl> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["sysctls"], after: ["sysctls"] },
  readBack: () => ({}),
  restoresFormerState: true,
  disappearsWith: () => undefined, // the former value of a device's setting is saved, and must be removed
  compare({ key, value }, facts) {
    const observed = facts.sysctls.get(key);
    return observed === undefined ? undefined : mismatch("value", observed, value);
  },
  render({ verb, item: { key, value }, keepsValue = false, formerValue }, parts) {
    if (verb === "remove") parts.shell.push(restoreSysctl(key, keepsValue, formerValue));
    else {
      parts.saves.push(saveSysctl(key));
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

const savedSysctlPath = (key: string): string => `${RECORD_DIR}/former/${key.replaceAll("/", ":")}`;

/** The setting of a device disappears with the device, and gets the kernel's default with a new one. An empty file holds no value. */
const saveSysctl = (key: string): string => {
  const save = renderWriteFiles([{ path: savedSysctlPath(key), word: '"$former"' }]);
  return `{ [ ! -e ${sysctlPath(key)} ] || [ -s ${quote(savedSysctlPath(key))} ] || { former=$(cat ${sysctlPath(key)}) && ${save}; }; }`;
};

/** Only if its former value is saved. */
const setSysctl = (key: string, value: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || { [ -s ${quote(savedSysctlPath(key))} ] && echo ${quote(value)} >${sysctlPath(key)}; }; }`;

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
