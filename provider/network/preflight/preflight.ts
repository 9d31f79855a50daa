import { OverlayError } from "../../errors";
import {
  findOtherRules,
  findOwnedItems,
  findUnprovenLinks,
  isOwnRecord,
  isProvenNetwork,
  recordsOfOthers,
  unlistedOwners,
} from "../diff/ownership";
import { compareDockerNetwork, findDockerNetwork } from "../kinds/docker";
import type { Facts } from "../model/facts";
import { type Chain, type DesiredState, type DockerNetwork, hasItem, type Item, itemKey } from "../model/items";
import { recordPath } from "../model/record";
import { refuseBlockingChains } from "../read/blocking-firewalls";
import { refuseForeign, refuseVniConflicts } from "./foreign";
import { refuseUnmetRequirements } from "./requirements";

/** Refuses everything that is known to fail, or to harm other programs, before the first change, with a remedy. */
export function preflight(desired: DesiredState, facts: Facts): void {
  refuseForeign(desired, facts);
  refuseVniConflicts(desired, facts);
  refuseUnmetRequirements(desired, facts);
  refuseBlockingChains(desired.items, facts.blockingChains);
  for (const item of desired.items) if (item.kind === "docker") refuseDocker(item, desired, facts);
  if (desired.items.length === 0) refuseLostRecord(desired, facts);
  for (const item of itemsToRemove(desired, facts)) if (item.kind === "docker") refuseDockerRemoval(item, facts);
}

/** Items that this owner has on the host and that are no longer desired. */
function itemsToRemove(desired: DesiredState, facts: Facts): Item[] {
  const keep = new Set(desired.items.map(itemKey));
  return findOwnedItems(desired, facts).filter((item) => !keep.has(itemKey(item)));
}

function refuseDocker(item: DockerNetwork, desired: DesiredState, facts: Facts): void {
  const { docker, records } = facts;
  if (item.required && !docker?.isRunning) {
    throw new OverlayError(
      "DOCKER_UNAVAILABLE",
      `docker.enabled is 'on', but dockerd ${docker ? "does not answer" : "is not installed"}.`,
      "Install and start Docker there, or set docker.enabled to 'auto' or 'off'.",
    );
  }
  const observed = findDockerNetwork(item, docker);
  const holder = records.find((record) => hasItem(record, item));
  const adoptable = desired.adopt && observed?.bridge === item.bridge && sameSubnets(observed.subnets, item.subnets);
  if (holder ? !isOwnRecord(holder, desired) : observed && !adoptable && !isProvenNetwork(item, desired.items, facts)) {
    const whose = holder ? `belongs to ${holder.owner} (network ${holder.network})` : "is not in our records";
    throw new OverlayError(
      "DOCKER_NETWORK_FOREIGN",
      `There is already a Docker network ${item.name}, and it ${whose}. It was left as it is.`,
      "Choose another docker.networkName, remove that network, or set adopt if it is yours.",
    );
  }
  const wrong = compareDockerNetwork(item, docker) ?? [];
  const containers = observed?.containers ?? [];
  if (wrong.length > 0 && containers.length > 0) {
    throw dockerNetworkInUse(item, containers, `must be created again (${wrong.join("; ")})`);
  }
}

/** A network with only the name in common is not adopted: it would have to be created again. */
const sameSubnets = (observed: { subnet?: string }[], desired: { subnet: string }[]): boolean =>
  desired.every(({ subnet }) => observed.some((each) => each.subnet === subnet));

/** Stopped containers do not prevent the removal of a network. */
function refuseDockerRemoval(item: DockerNetwork, { docker }: Facts): void {
  if (docker && !docker.isRunning) {
    throw new OverlayError(
      "DOCKER_UNAVAILABLE",
      `Docker network ${item.name} is to be removed, but dockerd does not answer. It would create the bridge ${item.bridge} again when it starts.`,
      "Start Docker there and try again.",
    );
  }
  const observed = findDockerNetwork(item, docker);
  const running = observed?.bridge === item.bridge ? observed.containers.filter((container) => container.running) : [];
  if (running.length > 0) throw dockerNetworkInUse(item, running, "is to be removed");
}

function dockerNetworkInUse({ name }: DockerNetwork, containers: { name: string }[], what: string): OverlayError {
  const names = containers.map((container) => container.name).sort();
  const more = names.length > 10 ? ` and ${names.length - 10} more` : "";
  return new OverlayError(
    "DOCKER_NETWORK_IN_USE",
    `Docker network ${name} ${what}, but containers use it: ${names.slice(0, 10).join(", ")}${more}. Nothing was changed.`,
    `Remove them, or take them off it with \`docker network disconnect ${name} CONTAINER\`, and try again.`,
  );
}

/** Throws if an owner without a record is removed, and an object is present that may be its own, but nothing proves it. */
export function refuseLostRecord(desired: DesiredState, facts: Facts): void {
  if (facts.records.some((record) => isOwnRecord(record, desired))) return;
  const links = findUnprovenLinks(desired, facts);
  const chains = chainsWithUnrecordedRules(desired, facts);
  if (links.length + chains.length === 0) return;
  const what = [
    ...links.map(
      ({ name }) => `device ${name} (${facts.links.get(name)!.mac}) does not have the MAC that we would have given it`,
    ),
    ...chains.map(({ item, rules }) => `${itemKey(item)} has rules that are in no record: ${rules.join("; ")}`),
  ];
  const commands = [
    ...links.map(({ name }) => `ip link del ${name}`),
    ...chains.flatMap(({ item, rules }) => rules.map((rule) => deleteRuleCommand(item, rule))),
  ];
  throw new OverlayError(
    "RECORD_LOST",
    `${recordPath(desired.record)} is missing, and whether this is ours is unknown: ${what.join("; ")}. Nothing was changed.`,
    `If others use it, run \`pulumi up --refresh\` for their stacks first, which writes their records again; else remove it by hand (${commands.map((command) => `\`${command}\``).join(", ")}), and try again.`,
  );
}

const deleteRuleCommand = ({ family, table, chain }: Chain, rule: string): string =>
  `${family === 4 ? "iptables" : "ip6tables"} -t ${table} -D ${chain} ${rule}`;

/** Chains that would be removed with this owner, and have rules that are in no record. */
function chainsWithUnrecordedRules(desired: DesiredState, facts: Facts): { item: Chain; rules: string[] }[] {
  if (unlistedOwners([desired], facts).length > 0) return [];
  const mine = findOwnedItems(desired, facts);
  const others = new Set(recordsOfOthers([desired], facts).flatMap(({ items }) => items.map(itemKey)));
  return mine
    .filter((item) => item.kind === "chain")
    .filter((item) => !others.has(itemKey(item)))
    .map((item) => ({ item, rules: findOtherRules(item, mine, facts) }))
    .filter(({ rules }) => rules.length > 0);
}
