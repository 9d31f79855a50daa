import { createHash } from "node:crypto";
import type { Facts } from "../model/facts";
import type { Service } from "../model/items";
import { unitPath } from "../model/paths";
import { mismatch } from "./kind";

export function wrongFile(path: string, content: string | undefined, { files }: Facts): string[] | undefined {
  const have = files.get(path);
  if (have === undefined) return undefined;
  return content === undefined || have === sumOf(content) ? [] : ["its content is not the planned one"];
}

export const sumOf = (content: string): string => createHash("sha256").update(content).digest("hex");

/** While we talk with the host its units may wait for the lock. */
export function wrongService({ name, unit, stays }: Service, facts: Facts): string[] | undefined {
  const wrong = wrongFile(unitPath(name), unit, facts);
  const have = facts.systemd?.get(name);
  if (!wrong || !have || unit === undefined) return wrong;
  const well = stays ? ["active", "activating", "reloading"] : ["inactive", "activating"];
  return [
    ...wrong,
    ...mismatch("start at boot", have.boot || "disabled", "enabled"),
    ...(well.includes(have.state) ? [] : mismatch("state", have.state, well[0])),
  ];
}

/** Enabling reads all units anew. One that has failed is as good as new: what it should have made is made by us. */
export const enableService = ({ name, stays }: Service): string => {
  const now = stays ? `start --no-block ${name}` : `reset-failed ${name} 2>/dev/null || :`;
  return `{ systemctl enable --quiet ${name} && { systemctl ${now}; }; }`;
};

export const dropService = ({ name }: Service): string =>
  `{ systemctl disable --quiet --no-reload --now ${name}; rm -f ${unitPath(name)} && systemctl daemon-reload; }`;
