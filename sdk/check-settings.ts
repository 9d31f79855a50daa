import * as pulumi from "@pulumi/pulumi";
import { nearestName } from "../provider/nearest-name";
import { SETTING_NAMES } from "./setting-names";

const PREFIX = "overlay:";

/** Refuses a setting that does not exist: a misspelt one would be ignored. In a project called `overlay` the prefix is its own. */
export function refuseUnknownSettings(config: Record<string, string> = pulumi.runtime.allConfig()): void {
  if (pulumi.getProject() === "overlay") return;
  const given = Object.keys(config).filter((key) => key.startsWith(PREFIX));
  const unknown = given.map((key) => key.slice(PREFIX.length)).find((name) => !SETTING_NAMES.includes(name));
  if (unknown === undefined) return;
  const nearest = nearestName(unknown, SETTING_NAMES);
  const known =
    nearest === undefined ? `Known settings: ${SETTING_NAMES.join(", ")}.` : `Did you mean ${PREFIX}${nearest}?`;
  throw new pulumi.RunError(
    `SETTING_INVALID: There is no setting ${PREFIX}${unknown}. ${known} \`pulumi config rm ${PREFIX}${unknown}\` removes it.`,
  );
}
