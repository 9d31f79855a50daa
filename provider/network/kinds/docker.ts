import { z } from "zod";
import { escapeLine } from "../../errors";
import type { Container, DockerFacts, DockerNetworkFact } from "../model/facts";
import { listOf, parseAnswer, recordOf } from "../model/host-json";
import type { DockerNetwork, DockerSubnet, Item } from "../model/items";

const BRIDGE = "com.docker.network.bridge.name";
const MTU = "com.docker.network.driver.mtu";
const MASQUERADE = "com.docker.network.bridge.enable_ip_masquerade";

/** Costs nothing where there is no Docker; a dockerd that does not answer in time counts as one that is down. */
export const DOCKER_FACTS = [
  "if [ -S /run/docker.sock ] && command -v docker >/dev/null && ids=$(timeout 20 docker network ls -q 2>/dev/null); then",
  "  echo '@@ docker'; docker network inspect $ids 2>/dev/null",
  "  echo '@@ containers'; docker ps -a --no-trunc --format '{{.State}} {{.Names}} {{.Networks}}' || exit 1",
  "elif command -v dockerd >/dev/null; then echo '@@ docker'; echo down; fi",
].join("\n");

const rawSubnet = z.object({
  Subnet: z.string().optional(),
  Gateway: z.string().optional(),
  IPRange: z.string().optional(),
  AuxiliaryAddresses: recordOf(z.string()).nullish(),
});

/** Docker's names have no control characters; those of a host that is not trusted may, and they are shown. */
const shownName = z.string().transform(escapeLine);

const rawContainer = z.object({
  Name: shownName,
  IPv4Address: z.string().optional(),
  IPv6Address: z.string().optional(),
});

const rawNetwork = z.object({
  Name: shownName.optional(),
  Driver: z.string().optional(),
  IPAM: z.object({ Config: listOf(rawSubnet).nullish() }).nullish(),
  Options: recordOf(z.string()).nullish(),
  /** Those that run. */
  Containers: recordOf(rawContainer).nullish(),
});
type RawNetwork = z.output<typeof rawNetwork>;

/** undefined: it is another program that calls itself docker. */
export function parseDocker(body: string): DockerFacts | undefined {
  if (body === "down") return { answers: false, networks: [] };
  const networks = parseAnswer(listOf(rawNetwork), body || "[]");
  if (networks.some(({ Name }) => Name === undefined)) return undefined;
  return { answers: networks.length > 0, networks: networks.map(networkFact) };
}

function networkFact({ Name, Driver = "", IPAM, Options, Containers }: RawNetwork): DockerNetworkFact {
  const options = Options ?? {};
  return {
    name: Name!,
    driver: Driver,
    ...(options[BRIDGE] && { bridge: options[BRIDGE] }),
    ...(options[MTU] && { mtu: options[MTU] }),
    ...(options[MASQUERADE] && { masquerade: options[MASQUERADE] }),
    subnets: (IPAM?.Config ?? []).map(subnetFact),
    containers: Object.values(Containers ?? {}).map(({ Name, IPv4Address, IPv6Address }) => ({
      name: Name,
      running: true,
      addresses: [IPv4Address, IPv6Address].flatMap((address) => (address ? [address.split("/")[0]!] : [])),
    })),
  };
}

function subnetFact({
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

/** Lines `STATE NAME NETWORK,NETWORK`. Stopped containers count: they know their networks, and want them back. */
export function addContainers(facts: DockerFacts | undefined, body: string): void {
  for (const line of body.split("\n").filter(Boolean)) {
    const [state, name, networks = ""] = line.split(" ") as [string, string, string?];
    for (const { containers } of facts?.networks.filter((n) => networks.split(",").includes(n.name)) ?? [])
      if (!containers.some((container) => container.name === name))
        containers.push({ name, running: state === "running" || state === "paused", addresses: [] });
  }
}

/** Who is on those of these networks that are ours. */
export const containersOn = (items: Item[], docker: DockerFacts | undefined): Container[] =>
  items.flatMap((item) =>
    item.kind === "docker" && isOurNetwork(item, docker) ? dockerNetworkOf(item, docker)!.containers : [],
  );

export const dockerNetworkOf = (item: DockerNetwork, docker: DockerFacts | undefined): DockerNetworkFact | undefined =>
  docker?.networks.find(({ name }) => name === item.name);

/** A network of this name that is on another bridge is not the one that we made. */
export const isOurNetwork = (item: DockerNetwork, docker: DockerFacts | undefined): boolean =>
  dockerNetworkOf(item, docker)?.bridge === item.bridge;

/** What is wrong with it, as pairs of what it is and what it should be; undefined: it is not there. */
export function wrongNetwork(item: DockerNetwork, docker: DockerFacts | undefined): string[] | undefined {
  if (!docker?.answers) return item.required ? [`dockerd ${docker ? "does not answer" : "is not there"}`] : [];
  const have = dockerNetworkOf(item, docker);
  if (!have) return undefined;
  const pairs: [what: string, have: string | undefined, want: string][] = [
    ["driver", have.driver, "bridge"],
    ["bridge", have.bridge, item.bridge],
    ["MTU", have.mtu, String(item.mtu)],
    ["masquerade", have.masquerade, "false"],
    ["subnets", subnetsText(have.subnets), subnetsText(item.subnets)],
  ];
  return pairs.flatMap(([what, is, should]) =>
    is === should ? [] : [`${what} is ${is ?? "none"}, should be ${should}`],
  );
}

const subnetsText = (subnets: Partial<DockerSubnet>[]): string =>
  subnets
    .map(
      ({ subnet, gateway, hub, range }) =>
        `${subnet} (gateway ${gateway}, hub ${hub ?? "none"}, range ${range ?? "none"})`,
    )
    .sort()
    .join(" and ");

export const dockerCreate = ({ name, bridge, mtu, subnets }: DockerNetwork): string[] => [
  ...["docker", "network", "create", "--driver", "bridge"],
  ...(subnets.some(({ subnet }) => subnet.includes(":")) ? ["--ipv6"] : []),
  ...subnets.flatMap(({ subnet, gateway, hub, range }) => [
    ...["--subnet", subnet, "--gateway", gateway],
    ...["--aux-address", `hub${subnet.includes(":") ? "6" : ""}=${hub}`, "--ip-range", range],
  ]),
  ...["-o", `${BRIDGE}=${bridge}`, "-o", `${MTU}=${mtu}`, "-o", `${MASQUERADE}=false`],
  name,
];

export const dockerRemove = ({ name }: DockerNetwork): string[] => ["docker", "network", "rm", name];
