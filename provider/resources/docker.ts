import { z } from "zod";
import {
  canUseDocker,
  type DockerRange,
  dockerRange,
  type Layout,
  maxDockerShare,
  runnerLayout,
} from "../addressing/layout";
import type { DockerPlan } from "../network/plan/hub";
import type { InputError } from "../resource";
import { resourceName } from "./inputs";

/** Docker on runners: the inputs, and what follows from them for addresses. Used in preview, so it needs no facts of hosts. */

const enabled = z
  .enum(["auto", "on", "off"])
  .meta({ id: "DockerEnabled" })
  .describe("`auto`: a Docker network where dockerd runs; `on`: dockerd must run; `off`: none.");
export const dockerNetworkName = resourceName.refine(
  (name) => !["bridge", "host", "none", "default"].includes(name),
  "must be none of the names that Docker keeps for itself (bridge, host, none, default)",
);
const networkName = dockerNetworkName.describe("Name of the Docker network, as in `docker run --network`.");
const range = z
  .string()
  .refine((text) => /^1\/[1-9]\d{0,9}$/.test(text) && isPowerOfTwo(shareOf(text)), "must be a share: 1/2, 1/4, 1/8 …")
  .describe(
    "The share at the end of each runner's subnet from which Docker picks addresses by itself, `1/4`: the last quarter. The pool keeps out of it unless Docker is off.",
  );

export const docker = z
  .strictObject({
    enabled: enabled.default("auto"),
    networkName: networkName.default("kohakuriver-overlay"),
    range: range.default("1/4"),
  })
  .meta({ id: "Docker" });

/** For one runner. Defaults are the network's values. */
export const dockerOverride = z
  .strictObject({ enabled: enabled.optional(), networkName: networkName.optional(), range: range.optional() })
  .meta({ id: "DockerOverride" });

export type Docker = z.output<typeof docker>;
export type DockerOverride = z.output<typeof dockerOverride>;

const isPowerOfTwo = (share: number): boolean => share > 1 && Number.isInteger(Math.log2(share));

const shareOf = (range: string): number => Number(range.slice("1/".length));

/** States of releases before this setting have none. */
export const dockerFor = (network: { docker?: Docker }, override: z.output<typeof dockerOverride> = {}): Docker => {
  const given = Object.entries(override).filter(([, value]) => value !== undefined);
  return docker.parse({ ...network.docker, ...Object.fromEntries(given) });
};

/** The Docker network of each runner; undefined: none. */
export const dockerPlan = ({ enabled, networkName, range }: Docker, layouts: Layout[]): DockerPlan | undefined =>
  enabled === "off" || !canUseDocker(layouts)
    ? undefined
    : { name: networkName, required: enabled === "on", share: shareOf(range) };

/** The ranges of a runner's subnets from which Docker picks by itself, one for each family; none if it is off. */
export const dockerRanges = ({ enabled, range }: Docker, layouts: Layout[], runnerId: number): DockerRange[] =>
  enabled === "off" || !canUseDocker(layouts)
    ? []
    : layouts.map((layout) => dockerRange(layout, runnerLayout(layout, runnerId), shareOf(range)));

export function* dockerErrors({ enabled, range }: Docker, layouts: Layout[]): Generator<InputError> {
  if (enabled === "off") return;
  const largest = Math.min(...layouts.map(maxDockerShare));
  if (shareOf(range) > largest) {
    yield { property: "docker.range", reason: `must be at least 1/${largest} of a runner's subnet, not ${range}` };
  }
  if (enabled === "on" && !canUseDocker(layouts)) {
    yield {
      property: "docker.enabled",
      reason: "cannot be on: a Docker network needs IPv4, and at most 64 SUBNET_BITS in IPv6",
    };
  }
}
