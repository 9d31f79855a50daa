import { createHash } from "node:crypto";
import type { Facts } from "../model/facts";
import type { Service } from "../model/items";
import { unitPath } from "../model/paths";
import { mismatch } from "./kind";

export function compareFile(path: string, content: string | undefined, { files }: Facts): string[] | undefined {
  const observed = files.get(path);
  if (observed === undefined) return undefined;
  return content === undefined || observed === sha256(content) ? [] : ["its content is not the planned one"];
}

export const sha256 = (content: string): string => createHash("sha256").update(content).digest("hex");

/** While we talk with the host its units may wait for the lock. */
export function compareService({ name, unit, staysActive }: Service, facts: Facts): string[] | undefined {
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

/** Enabling reads all units anew. One that has failed is as good as new: what it should have made is made by us. */
export const renderEnable = ({ name, staysActive }: Service): string => {
  const now = staysActive ? `start --no-block ${name}` : `reset-failed ${name} 2>/dev/null || :`;
  return `{ systemctl enable --quiet ${name} && { systemctl ${now}; }; }`;
};

export const renderDisable = ({ name }: Service): string =>
  `{ systemctl disable --quiet --no-reload --now ${name}; rm -f ${unitPath(name)} && systemctl daemon-reload; }`;
