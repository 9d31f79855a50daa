import { OverlayError } from "../../errors";
import {
  isMine,
  isProvenNetwork,
  otherRules,
  ownedItems,
  unlistedOwners,
  unprovenLinks,
  untouchedRecords,
} from "../diff/ownership";
import { dockerNetworkOf, wrongNetwork } from "../kinds/docker";
import type { Facts } from "../model/facts";
import { type Chain, type DockerNetwork, type Item, keyOf, lists } from "../model/items";
import { recordPath } from "../model/paths";
import type { Want } from "../model/steps";
import { refuseBarriers } from "../read/blocking-firewalls";
import { refuseConflicts, refuseForeign } from "./foreign";
import { refuseSurroundings } from "./requirements";

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

/** Throws when an owner leaves without a record, and something stands that may be its own, but nothing proves it. */
export function refuseLostRecord(want: Want, facts: Facts): void {
  if (facts.records.some((record) => isMine(record, want))) return;
  const links = unprovenLinks(want, facts);
  const chains = chainsInUse(want, facts);
  if (links.length + chains.length === 0) return;
  const what = [
    ...links.map(
      ({ name }) => `device ${name} (${facts.links.get(name)!.mac}) has not the MAC that it would have been given`,
    ),
    ...chains.map(({ item, rules }) => `${keyOf(item)} has rules that are in no record: ${rules.join("; ")}`),
  ];
  const commands = [
    ...links.map(({ name }) => `ip link del ${name}`),
    ...chains.flatMap(({ item, rules }) => rules.map((rule) => deletion(item, rule))),
  ];
  throw new OverlayError(
    "RECORD_LOST",
    `${recordPath(want.record)} is missing, and it cannot be told whether this is ours: ${what.join("; ")}. Nothing was changed.`,
    `If others use it, run \`pulumi up --refresh\` for their stacks first, which writes their records again; else remove it by hand (${commands.map((command) => `\`${command}\``).join(", ")}), and try again.`,
  );
}

const deletion = ({ family, table, chain }: Chain, rule: string): string =>
  `${family === 4 ? "iptables" : "ip6tables"} -t ${table} -D ${chain} ${rule}`;

/** Chains that would be removed with this owner, but have rules that are in no record. */
function chainsInUse(want: Want, facts: Facts): { item: Chain; rules: string[] }[] {
  if (unlistedOwners([want], facts).length > 0) return [];
  const mine = ownedItems(want, facts);
  const others = new Set(untouchedRecords([want], facts).flatMap(({ items }) => items.map(keyOf)));
  return mine
    .filter((item) => item.kind === "chain")
    .filter((item) => !others.has(keyOf(item)))
    .map((item) => ({ item, rules: otherRules(item, mine, facts) }))
    .filter(({ rules }) => rules.length > 0);
}
