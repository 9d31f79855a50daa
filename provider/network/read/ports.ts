import { z } from "zod";
import { formatIp, parseRange, subnetOf } from "../../addressing/ip";
import { tapName } from "../../addressing/layout";
import { isOverlayError } from "../../errors";
import type { Facts } from "../model/facts";
import type { DesiredState, DockerNetwork, Link } from "../model/items";
import { boundedArray, parseHostJson } from "../model/record";
import { quoteCommand } from "../render/shell";

/**
 * Ports of a bridge that was deleted. The kernel detaches the ports, and nothing on the host
 * records to which bridge they belonged. A device was a port of ours if it is:
 *   - a veth whose other end, in another network namespace, has an address of this runner's subnet (Docker's containers,
 *     `ip netns`, anything else);
 *   - a tap with the name that an IPReservation gives to a VM of this subnet.
 */
export interface PortFacts {
  links: PortLink[];
  namespaces: Namespace[];
  containers: { namespace: string; name: string; networks: string[] }[];
}

type PortLink = z.output<typeof rawPortLink>;

interface Namespace {
  /** Its id in this host's namespace. */
  id: number;
  inode: string;
  links: PortLink[];
}

const rawPortLink = z.object({
  ifindex: z.number(),
  ifname: z.string(),
  master: z.string().optional(),
  /** Index of a veth's other end, in the namespace with that id; without an id it is in the same one. */
  link_index: z.number().optional(),
  link_netnsid: z.number().optional(),
  linkinfo: z
    .object({ info_kind: z.string().optional(), info_data: z.object({ type: z.string().optional() }).optional() })
    .optional(),
  addr_info: boundedArray(z.object({ local: z.string().optional(), scope: z.string().optional() })).default([]),
});

/**
 * Namespaces are entered by files: those of processes, and those with a name. `ip` prints the id of a namespace only for files
 * in /run/netns, so all are bind-mounted there, in a separate mount namespace.
 */
const NAMESPACES = `
mount -t tmpfs tmpfs /tmp && mkdir /tmp/netns || exit 1
self=$(stat -Lc %i /proc/self/ns/net)
stat -Lc '%i %n' /proc/[0-9]*/ns/net /run/netns/* 2>/dev/null | sort -u -k 1,1 | while read -r inode file; do
  [ "$inode" != "$self" ] && : >"/tmp/netns/$inode" && mount --bind "$file" "/tmp/netns/$inode"
done 2>/dev/null
mount -t tmpfs tmpfs /run && mkdir /run/netns && mount --rbind /tmp/netns /run/netns || exit 1
ip -j netns list-id | tr '{' '\\n' | sed -n 's/.*"nsid":\\([0-9]*\\),"name":"\\([0-9]*\\)".*/\\1 \\2/p' | while read -r id inode; do
  echo "@@ namespace $id $inode"
  nsenter --net="/run/netns/$inode" ip -j -d addr show
done`;

export const PORTS_SCRIPT = `echo '@@ links'; ip -j -d addr show || exit 1
echo; unshare -m sh <<'END'
${NAMESPACES.trim()}
END
if [ -S /run/docker.sock ] && command -v docker >/dev/null; then
  ids=$(timeout 20 docker ps -q --no-trunc) && [ -n "$ids" ] && echo '@@ containers' &&
    docker inspect -f '{{.State.Pid}} {{.Name}} {{range $name, $_ := .NetworkSettings.Networks}}{{$name}},{{end}}' $ids |
    while read -r pid name networks; do echo "$(stat -Lc %i "/proc/$pid/ns/net") \${name#/} $networks"; done
fi
:`;

/** undefined: the output has an unknown form. */
export function parsePortFacts(text: string): PortFacts | undefined {
  const facts: PortFacts = { links: [], namespaces: [], containers: [] };
  for (const part of text.split(/^@@ /m).slice(1)) {
    const end = part.indexOf("\n");
    const [name, id = "", inode = ""] = part.slice(0, end).split(" ");
    const body = part.slice(end + 1).trim();
    if (name === "containers") facts.containers = body.split("\n").filter(Boolean).map(parseContainer);
    if (name !== "links" && name !== "namespace") continue;
    const links = parsePortLinks(body);
    if (!links) return undefined;
    if (name === "links") facts.links = links;
    else facts.namespaces.push({ id: Number(id), inode, links });
  }
  return facts;
}

function parsePortLinks(body: string): PortLink[] | undefined {
  try {
    return parseHostJson(boundedArray(rawPortLink), body || "[]");
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    return undefined;
  }
}

function parseContainer(line: string): PortFacts["containers"][number] {
  const [namespace = "", name = "", networks = ""] = line.split(" ");
  return { namespace, name, networks: networks.split(",").filter(Boolean) };
}

export interface LostPorts {
  /** Devices to be attached again. */
  ports: string[];
  /** Devices that may have been ports, with what to do. */
  warnings: string[];
}

/** The ports that a bridge of this owner had before it was deleted. */
export function findLostPorts(
  { name: bridge }: Link,
  desired: DesiredState,
  found: PortFacts,
  { routes }: Facts,
): LostPorts {
  const subnets = desired.items.flatMap((item) =>
    item.kind === "address" && item.dev === bridge ? [subnetOf(item.address)] : [],
  );
  const loose = found.links.filter(({ master, ifname }) => master === undefined && SAFE_NAME.test(ifname));
  const veths = loose.filter((link) => deviceKind(link) === "veth" && link.link_netnsid !== undefined);
  const plugged = veths.filter((link) => hasAddressIn(subnets, vethPeer(link, found)));
  const taps = loose.filter((link) => deviceKind(link) === "tap");
  const names = taps.some(({ ifname }) => TAP_NAME.test(ifname))
    ? tapNames(desired.record.network, subnets)
    : new Set();
  const ports = [...plugged, ...taps.filter(({ ifname }) => names.has(ifname))].map(({ ifname }) => ifname);
  const isUnknown = (link: PortLink): boolean =>
    !ports.includes(link.ifname) &&
    !routes.some(({ dev }) => dev === link.ifname) &&
    [link, vethPeer(link, found)].every((end) => globalAddresses(end).length === 0);
  return {
    ports: ports.sort(),
    warnings: [
      ...describeLostContainers(desired, plugged, found),
      ...[...veths, ...taps].filter(isUnknown).map(({ ifname }) => describeUnknownPort(ifname, bridge)),
    ],
  };
}

/** Names of devices that need no quoting. */
const SAFE_NAME = /^[\w.:-]{1,15}$/;
const TAP_NAME = /^tap[0-9a-f]{10}$/;

const deviceKind = ({ linkinfo }: PortLink): string | undefined =>
  linkinfo?.info_kind === "tun" ? linkinfo.info_data?.type : linkinfo?.info_kind;

const vethPeer = ({ link_index, link_netnsid }: PortLink, { namespaces }: PortFacts): PortLink | undefined =>
  namespaces.find(({ id }) => id === link_netnsid)?.links.find(({ ifindex }) => ifindex === link_index);

const globalAddresses = (link: PortLink | undefined): string[] =>
  (link?.addr_info ?? []).flatMap(({ local, scope }) => (local && scope === "global" ? [local] : []));

const hasAddressIn = (subnets: string[], link: PortLink | undefined): boolean =>
  globalAddresses(link).some((address) => {
    const point = parseRange(address);
    return (
      point && subnets.map((subnet) => parseRange(subnet)!).some((s) => s.first <= point.first && point.last <= s.last)
    );
  });

/** In larger subnets there are too many possible names. */
const MAX_SUBNET_SIZE = 1n << 16n;

function tapNames(network: string, subnets: string[]): Set<string> {
  const names = new Set<string>();
  for (const { first, last } of subnets.map((subnet) => parseRange(subnet)!)) {
    if (last - first >= MAX_SUBNET_SIZE) continue;
    for (let point = first; point <= last; point++) names.add(tapName(network, formatIp(point)));
  }
  return names;
}

/** Containers on our Docker network whose port was not found. */
function describeLostContainers(
  { items }: DesiredState,
  plugged: PortLink[],
  { namespaces, containers }: PortFacts,
): string[] {
  const networks = items.filter((item): item is DockerNetwork => item.kind === "docker").map(({ name }) => name);
  const ids = new Set(plugged.map(({ link_netnsid }) => link_netnsid));
  const inodes = new Set(namespaces.filter(({ id }) => ids.has(id)).map(({ inode }) => inode));
  return containers.flatMap(({ namespace, name, networks: on }) => {
    const network = on.find((each) => networks.includes(each));
    if (network === undefined || inodes.has(namespace)) return [];
    return [
      `the port of container ${name} was not found, so it stays off the network: \`${quoteCommand(`docker network disconnect ${network} ${name}`)}\`, then \`docker network connect\` it with the address that it had.`,
    ];
  });
}

const describeUnknownPort = (port: string, bridge: string): string =>
  `${port} is no port of a bridge and has no address. If a workload of this network uses it: \`ip link set dev ${port} master ${bridge}\`.`;
