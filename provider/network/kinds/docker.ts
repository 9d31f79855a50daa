import { z } from "zod";
import { escapeLine } from "../../errors";
import type { Container, DockerFacts, DockerNetworkFact, Facts } from "../model/facts";
import { type DockerNetwork, type DockerSubnet, hasItem, type Item, oppositeStep } from "../model/items";
import { boundedArray, boundedRecord, parseHostJson } from "../model/record";
import { quote } from "../render/shell";
import type { ItemKind } from "./kind";

/**
 * Docker on a runner: one Docker network over our bridge, so that containers get addresses of the runner's subnet. Observed with
 * dockerd 20.10: without an auxiliary address Docker assigns the hub's; without a range it picks addresses that are
 * reserved in the pool; a network without IPv6 removes the IPv6 addresses from the bridge; a network that is created again, even
 * in the same form, cannot be used by containers that were stopped meanwhile; a dockerd that starts before the boot
 * script creates the bridge itself, with a random MAC.
 *
 * A Docker network cannot be changed: it is removed and created again. dockerd restores it at boot.
 */
export const dockerKind: ItemKind<DockerNetwork> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: {},
  /** Where dockerd runs, or must run; one on record also while dockerd is down. */
  appliesToHost(item, { docker, records }) {
    if (item.required || docker?.isRunning) return true;
    return docker !== undefined && records.some((record) => hasItem(record, item));
  },
  readFrom: { before: ["docker", "containers"], after: ["docker", "containers"] },
  readBack: () => ({}),
  compare: (item, { docker }) => compareDockerNetwork(item, docker),
  isPresent: (item, { docker }) => isOurDockerNetwork(item, docker),
  disappearsWith: () => undefined, // dockerd creates its bridge again
  render({ verb, item }, parts) {
    // Before its bridge is removed, and after it is created.
    if (verb !== "add") parts.shell.push(["docker", "network", "rm", item.name].map(quote).join(" "));
    if (verb !== "remove") parts.late.push(dockerCreateCommand(item).map(quote).join(" "));
  },
  bootSteps: () => [],
  invert: (step) => (step.verb === "change" ? [] : [oppositeStep(step)]),
  removeFrom({ docker }, { name }) {
    if (docker) docker.networks = docker.networks.filter((network) => network.name !== name);
  },
  inspectCommands: ["docker network ls"],
};

const BRIDGE_OPTION = "com.docker.network.bridge.name";
const MTU_OPTION = "com.docker.network.driver.mtu";
const MASQUERADE_OPTION = "com.docker.network.bridge.enable_ip_masquerade";

/** A dockerd that does not answer in time is treated as stopped. */
export const DOCKER_SCRIPT = [
  "if [ -S /run/docker.sock ] && command -v docker >/dev/null && ids=$(timeout 20 docker network ls -q 2>/dev/null); then",
  "  echo '@@ docker'; docker network inspect $ids 2>/dev/null",
  "  echo '@@ containers'; docker ps -a --no-trunc --format '{{.State}} {{.Names}} {{.Networks}}' || exit 1",
  "elif command -v dockerd >/dev/null; then echo '@@ docker'; echo down; fi",
].join("\n");

const rawSubnet = z.object({
  Subnet: z.string().optional(),
  Gateway: z.string().optional(),
  IPRange: z.string().optional(),
  AuxiliaryAddresses: boundedRecord(z.string()).nullish(),
});

/** Docker's names have no control characters. A hostile host may send some, and names are printed. */
const shownName = z.string().transform(escapeLine);

const rawContainer = z.object({
  Name: shownName,
  IPv4Address: z.string().optional(),
  IPv6Address: z.string().optional(),
});

const rawNetwork = z.object({
  Name: shownName.optional(),
  Driver: z.string().optional(),
  IPAM: z.object({ Config: boundedArray(rawSubnet).nullish() }).nullish(),
  Options: boundedRecord(z.string()).nullish(),
  /** Those that run. */
  Containers: boundedRecord(rawContainer).nullish(),
});
type RawNetwork = z.output<typeof rawNetwork>;

/** undefined: it is another program that calls itself docker. */
export function parseDocker(body: string): DockerFacts | undefined {
  if (body === "down") return { isRunning: false, networks: [] };
  const networks = parseHostJson(boundedArray(rawNetwork), body || "[]");
  if (networks.some(({ Name }) => Name === undefined)) return undefined;
  return { isRunning: networks.length > 0, networks: networks.map(toNetworkFact) };
}

function toNetworkFact({ Name, Driver = "", IPAM, Options, Containers }: RawNetwork): DockerNetworkFact {
  const options = Options ?? {};
  return {
    name: Name!,
    driver: Driver,
    ...(options[BRIDGE_OPTION] && { bridge: options[BRIDGE_OPTION] }),
    ...(options[MTU_OPTION] && { mtu: options[MTU_OPTION] }),
    ...(options[MASQUERADE_OPTION] && { masquerade: options[MASQUERADE_OPTION] }),
    subnets: (IPAM?.Config ?? []).map(toSubnetFact),
    containers: Object.values(Containers ?? {}).map(({ Name, IPv4Address, IPv6Address }) => ({
      name: Name,
      running: true,
      addresses: [IPv4Address, IPv6Address].flatMap((address) => (address ? [address.split("/")[0]!] : [])),
    })),
  };
}

function toSubnetFact({
  Subnet,
  Gateway,
  IPRange,
  AuxiliaryAddresses,
}: z.output<typeof rawSubnet>): Partial<DockerSubnet> {
  const hub = Object.entries(AuxiliaryAddresses ?? {}).find(([name]) => /^hub6?$/.test(name))?.[1];
  return {
    ...(Subnet && { subnet: Subnet }),
    ...(Gateway && { gateway: Gateway }),
    ...(hub && { hub }),
    ...(IPRange && { range: IPRange }),
  };
}

/** Lines `STATE NAME NETWORK,NETWORK`. Stopped containers count, because they are attached again when they start. */
export function addContainers(facts: DockerFacts | undefined, body: string): void {
  for (const line of body.split("\n").filter(Boolean)) {
    const [state, name, networks = ""] = line.split(" ") as [string, string, string?];
    for (const { containers } of facts?.networks.filter((n) => networks.split(",").includes(n.name)) ?? [])
      if (!containers.some((container) => container.name === name))
        containers.push({ name, running: state === "running" || state === "paused", addresses: [] });
  }
}

/** The containers on those of these networks that are ours. */
export const containersOn = (items: Item[], docker: DockerFacts | undefined): Container[] =>
  items.flatMap((item) =>
    item.kind === "docker" && isOurDockerNetwork(item, docker) ? findDockerNetwork(item, docker)!.containers : [],
  );

export const findDockerNetwork = (
  item: DockerNetwork,
  docker: DockerFacts | undefined,
): DockerNetworkFact | undefined => docker?.networks.find(({ name }) => name === item.name);

/** A network of this name that is on another bridge is not the one that we created. */
export const isOurDockerNetwork = (item: DockerNetwork, docker: DockerFacts | undefined): boolean =>
  findDockerNetwork(item, docker)?.bridge === item.bridge;

export function compareDockerNetwork(item: DockerNetwork, docker: DockerFacts | undefined): string[] | undefined {
  if (!docker?.isRunning) return item.required ? [`dockerd ${docker ? "does not answer" : "is not installed"}`] : [];
  const observed = findDockerNetwork(item, docker);
  if (!observed) return undefined;
  const pairs: [what: string, observed: string | undefined, desired: string][] = [
    ["driver", observed.driver, "bridge"],
    ["bridge", observed.bridge, item.bridge],
    ["MTU", keepsMtu(item, docker) ? String(item.mtu) : observed.mtu, String(item.mtu)],
    ["masquerade", observed.masquerade, "false"],
    ["subnets", formatSubnets(observed.subnets), formatSubnets(item.subnets)],
  ];
  return pairs.flatMap(([what, is, should]) =>
    is === should ? [] : [`${what} is ${is ?? "none"}, should be ${should}`],
  );
}

/**
 * Its MTU alone is no reason to make a network again while containers use it, which would have to be taken off it. What they send
 * is routed: the runner answers packets that are too large with the MTU of the tunnel (path MTU discovery).
 */
const keepsMtu = (item: DockerNetwork, docker: DockerFacts): boolean => {
  const observed = findDockerNetwork(item, docker);
  return isOurDockerNetwork(item, docker) && observed!.containers.length > 0 && observed!.mtu !== String(item.mtu);
};

export const keptMtuWarnings = (items: Item[], { docker }: Pick<Facts, "docker">): string[] =>
  items.flatMap((item) => {
    if (item.kind !== "docker" || !docker || !keepsMtu(item, docker)) return [];
    const { mtu, containers } = findDockerNetwork(item, docker)!;
    const names = containers.map(({ name }) => name).sort();
    return [
      `Docker network ${item.name} keeps its MTU of ${mtu ?? "none"} while containers use it (${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}); packets larger than ${item.mtu} are answered with that MTU. Once it has no container, \`pulumi up --refresh\` makes it again.`,
    ];
  });

const formatSubnets = (subnets: Partial<DockerSubnet>[]): string =>
  subnets
    .map(
      ({ subnet, gateway, hub, range }) =>
        `${subnet} (gateway ${gateway}, hub ${hub ?? "none"}, range ${range ?? "none"})`,
    )
    .sort()
    .join(" and ");

const dockerCreateCommand = ({ name, bridge, mtu, subnets }: DockerNetwork): string[] => [
  ...["docker", "network", "create", "--driver", "bridge"],
  ...(subnets.some(({ subnet }) => subnet.includes(":")) ? ["--ipv6"] : []),
  ...subnets.flatMap(({ subnet, gateway, hub, range }) => [
    ...["--subnet", subnet, "--gateway", gateway],
    ...["--aux-address", `hub${subnet.includes(":") ? "6" : ""}=${hub}`, "--ip-range", range],
  ]),
  ...["-o", `${BRIDGE_OPTION}=${bridge}`, "-o", `${MTU_OPTION}=${mtu}`, "-o", `${MASQUERADE_OPTION}=false`],
  name,
];
