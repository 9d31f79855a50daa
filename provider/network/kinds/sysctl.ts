import { RECORD_DIR, sysctlPath } from "../model/paths";
import { quote, renderWriteFiles } from "../render/shell";
import { WARNING_PREFIX } from "./kind";

/** The former value is kept beside the records, once, and comes back when the last record that needs ours goes. */
export const savedSysctlPath = (key: string): string => `${RECORD_DIR}/former/${key.replaceAll("/", ":")}`;

/** A device's may be gone with its device, and comes back with it as the kernel makes it. An empty file keeps nothing. */
export const saveSysctl = (key: string): string => {
  const save = renderWriteFiles([{ path: savedSysctlPath(key), word: '"$former"' }]);
  return `{ [ ! -e ${sysctlPath(key)} ] || [ -s ${quote(savedSysctlPath(key))} ] || { former=$(cat ${sysctlPath(key)}) && ${save}; }; }`;
};

/** Only where its former value is kept. */
export const setSysctl = (key: string, value: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || { [ -s ${quote(savedSysctlPath(key))} ] && echo ${quote(value)} >${sysctlPath(key)}; }; }`;

/** `known`: the former value, where it is known although it was not kept. */
export function restoreSysctl(key: string, leave: boolean, known?: string): string {
  const former = quote(savedSysctlPath(key));
  if (leave) return `rm -f ${former}`;
  const unknown = `echo ${quote(`${WARNING_PREFIX}${key} stays as it is: the value that it had before was not kept.`)}`;
  const other = known === undefined ? unknown : `echo ${quote(known)} >${sysctlPath(key)}`;
  const restore = `if [ -s ${former} ]; then cat ${former} >${sysctlPath(key)}; else ${other}; fi`;
  const kept = `{ { [ ! -e ${sysctlPath(key)} ] || ${restore}; } && rm -f ${former}; }`;
  return known === undefined ? `{ [ ! -e ${former} ] || ${kept}; }` : kept;
}
