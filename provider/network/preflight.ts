import { OverlayError } from "../errors";
import { refuseBarriers } from "./barriers";
import { dockerNetworkOf, wrongNetwork } from "./docker";
import type { Facts } from "./facts";
import { refuseConflicts } from "./foreign-devices";
import { type DockerNetwork, type Item, keyOf, lists } from "./items";
import { refuseLostRecord } from "./lost-record";
import { isMine, isProvenNetwork, ownedItems } from "./ownership";
import { refuseForeign, type Want } from "./steps";
import { refuseSurroundings } from "./surroundings";

/** Everything that can be known to fail, or to harm others, is refused here: before the first change, with a remedy. */
export function preflight(want: Want, facts: Facts): void {
  refuseForeign(want, facts);
  refuseConflicts(want, facts);
  refuseSurroundings(want, facts);
  refuseBarriers(want.items, facts.barriers);
  for (const item of want.items) if (item.kind === "docker") refuseDocker(item, want, facts);
  if (want.items.length === 0) refuseLostRecord(want, facts);
  for (const item of leaving(want, facts)) if (item.kind === "docker") refuseDockerRemoval(item, facts);
}

/** What this owner has on the host and is not to have any more. */
function leaving(want: Want, facts: Facts): Item[] {
  const keep = new Set(want.items.map(keyOf));
  return ownedItems(want, facts).filter((item) => !keep.has(keyOf(item)));
}

function refuseDocker(item: DockerNetwork, want: Want, facts: Facts): void {
  const { docker, records } = facts;
  if (item.required && !docker?.answers) {
    throw new OverlayError(
      "DOCKER_UNAVAILABLE",
      `docker.enabled is 'on', but dockerd ${docker ? "does not answer" : "is not there"}.`,
      "Install and start Docker there, or set docker.enabled to 'auto' or 'off'.",
    );
  }
  const have = dockerNetworkOf(item, docker);
  const holder = records.find((record) => lists(record, item));
  const adoptable = want.adopt && have?.bridge === item.bridge && sameSubnets(have.subnets, item.subnets);
  if (holder ? !isMine(holder, want) : have && !adoptable && !isProvenNetwork(item, want.items, facts)) {
    const whose = holder ? `belongs to ${holder.owner} (network ${holder.network})` : "is not in our records";
    throw new OverlayError(
      "DOCKER_NETWORK_FOREIGN",
      `There is already a Docker network ${item.name}, and it ${whose}. It was left as it is.`,
      "Choose another docker.networkName, remove that network, or set adopt if it is yours.",
    );
  }
  const wrong = wrongNetwork(item, docker) ?? [];
  const containers = have?.containers ?? [];
  if (wrong.length > 0 && containers.length > 0) {
    throw inUse(item, containers, `must be made anew (${wrong.join("; ")})`);
  }
}

/** Another network that only has the name is not taken over: it would have to be made anew. */
const sameSubnets = (have: { subnet?: string }[], want: { subnet: string }[]): boolean =>
  want.every(({ subnet }) => have.some((each) => each.subnet === subnet));

/** Containers that are stopped do not stop a network from going: they were told that it is to go. */
function refuseDockerRemoval(item: DockerNetwork, { docker }: Facts): void {
  if (docker && !docker.answers) {
    throw new OverlayError(
      "DOCKER_UNAVAILABLE",
      `Docker network ${item.name} is to be removed, but dockerd does not answer. It would bring the bridge ${item.bridge} back when it starts.`,
      "Start Docker there and try again.",
    );
  }
  const have = dockerNetworkOf(item, docker);
  const running = have?.bridge === item.bridge ? have.containers.filter((container) => container.running) : [];
  if (running.length > 0) throw inUse(item, running, "is to be removed");
}

function inUse({ name }: DockerNetwork, containers: { name: string }[], what: string): OverlayError {
  const names = containers.map((container) => container.name).sort();
  const more = names.length > 10 ? ` and ${names.length - 10} more` : "";
  return new OverlayError(
    "DOCKER_NETWORK_IN_USE",
    `Docker network ${name} ${what}, but containers use it: ${names.slice(0, 10).join(", ")}${more}. Nothing was changed.`,
    `Remove them, or take them off it with \`docker network disconnect ${name} CONTAINER\`, and try again.`,
  );
}
