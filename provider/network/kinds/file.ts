import { createHash } from "node:crypto";
import type { Facts } from "../model/facts";
import { type FileItem, mismatch, type Service } from "../model/items";
import { isBootFile, isInRecordDir, isOwnPath, RECORD_DIR, SERVICES, unitPath } from "../model/record";
import { quote, textFile } from "../render/shell";
import type { ItemKind } from "./kind";

/** A file with a fixed content. Its path must be one that a record may name, else its own record would be invalid. */
export const fileKind: ItemKind<FileItem> = {
  isUnique: false,
  toRecord({ kind, path }) {
    if (!isOwnPath(path) && !isBootFile(path))
      throw new Error(`${path} cannot be the path of a file item, see isOwnPath`);
    return { kind, path };
  },
  resets: { content: undefined },
  readFrom: { before: ["files", "access"], after: ["files", "access"] },
  readBack: ({ path }) => ({ files: [path] }),
  disappearsWith: () => undefined,
  compare: ({ path, content }, facts) => compareFile(path, content, facts),
  render({ verb, item: { path, content = "" } }, parts) {
    if (verb === "remove") parts.files.push(`rm -f ${quote(path)}`);
    else parts.writes.push(textFile(path, content));
  },
  quotedFields: ["path", "content"],
  bootSteps: () => [], // it is on disk
  invert: undefined, // a host that is cut off recovers by a reboot
  removeFrom: ({ files }, { path }) => void files.delete(path),
  inspectCommands: [`ls -R ${RECORD_DIR}`, "find /etc -name 'overlay-*'"],
};

/** A unit of systemd, with its file. */
export const serviceKind: ItemKind<Service> = {
  isUnique: false,
  toRecord: ({ kind, name }) => ({ kind, name }),
  resets: { unit: undefined, staysActive: undefined },
  readFrom: { before: ["files", "access", "systemd"], after: ["files", "access", "systemd"] },
  readBack: () => ({}),
  disappearsWith: () => undefined,
  compare: compareService,
  render({ verb, item }, parts) {
    if (verb !== "remove") parts.writes.push(textFile(unitPath(item.name), item.unit ?? ""));
    parts.files.push(verb === "remove" ? renderDisable(item) : renderEnable(item));
  },
  quotedFields: ["unit"],
  bootSteps: () => [], // it is on disk
  invert: undefined, // a host that is cut off recovers by a reboot
  removeFrom: ({ files }, { name }) => void files.delete(unitPath(name)),
  inspectCommands: [`ls ${SERVICES.map(unitPath).join(" ")}`],
};

function compareFile(path: string, content: string | undefined, facts: Facts): string[] | undefined {
  const observed = facts.files.get(path);
  if (observed === undefined) return undefined;
  if (content === undefined) return [];
  return [
    ...(observed === sha256(content) ? [] : ["its content is not the planned one"]),
    ...compareAccess(path, facts),
  ];
}

/** Root runs our scripts and trusts our records: no other user may change them, or the folders that we made for them. */
export function compareAccess(path: string, { openFiles }: Facts): string[] {
  const folder = path.slice(0, path.lastIndexOf("/"));
  const folders = isInRecordDir(path) ? [...new Set([RECORD_DIR, folder])] : [];
  return [path, ...folders].flatMap((each) => {
    const access = openFiles.get(each);
    if (!access) return [];
    const closed = (Number.parseInt(access.mode, 8) & ~0o22).toString(8);
    const wrong = [...mismatch("owner", access.owner, 0), ...mismatch("mode", access.mode, closed)];
    return each === path ? wrong : wrong.map((text) => `${text} (${each})`);
  });
}

export const sha256 = (content: string): string => createHash("sha256").update(content).digest("hex");

/** During a conversation the units may wait for the host's lock, and are `activating`. */
function compareService({ name, unit, staysActive }: Service, facts: Facts): string[] | undefined {
  const wrong = compareFile(unitPath(name), unit, facts);
  const observed = facts.systemd?.get(name);
  if (!wrong || !observed || unit === undefined) return wrong;
  const well = staysActive ? ["active", "activating", "reloading"] : ["inactive", "activating"];
  return [
    ...wrong,
    ...mismatch("start at boot", observed.unitFileState || "disabled", "enabled"),
    ...(well.includes(observed.activeState) ? [] : mismatch("state", observed.activeState, well[0])),
  ];
}

/** `enable` also reloads all units. The failure of a unit is reset, because this change creates what the unit failed to create. */
const renderEnable = ({ name, staysActive }: Service): string => {
  const now = staysActive ? `start --no-block ${name}` : `reset-failed ${name} 2>/dev/null || :`;
  return `{ systemctl enable --quiet ${name} && { systemctl ${now}; }; }`;
};

const renderDisable = ({ name }: Service): string =>
  `{ systemctl disable --quiet --no-reload --now ${name}; rm -f ${unitPath(name)} && systemctl daemon-reload; }`;
