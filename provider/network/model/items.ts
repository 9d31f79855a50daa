import type { Family } from "../../addressing/ip";

/** One object that a host must have. Plain data: it is stored as JSON in the owner's record on the host. */
export type Item =
  | Sysctl
  | Key
  | Link
  | WireguardPeer
  | VxlanPeer
  | Address
  | Neighbour
  | Route
  | PolicyRule
  | DockerNetwork
  | Chain
  | Jump
  | FirewallRule
  | ZoneEntry
  | FileItem
  | Service;

export interface Sysctl {
  kind: "sysctl";
  key: string;
  value: string;
}

export interface Link {
  kind: "link";
  name: string;
  /** `anchor`: a device that only carries addresses: dummy, or a bridge without ports where the kernel has no dummy. */
  type: "vxlan" | "wireguard" | "bridge" | "anchor";
  mac?: string;
  mtu?: number;
  /** Empty: it must be no bridge's port. */
  master?: string;
  vxlan?: Vxlan;
  wireguard?: Wireguard;
  /** Several owners may have it, all in the same form; it is removed with the last of them. */
  shared?: true;
}

export interface Vxlan {
  vni: number;
  port: number;
  /** Empty: its peers are items of their own. */
  remote: string;
  local: string;
}

export interface Wireguard {
  port: number;
  /** Of its private key. */
  keyFile: string;
  /** Absent: the host has no key yet. */
  publicKey?: string;
  /** The host's address on the underlay. */
  local: string;
}

/** A private key of WireGuard: a file that the host itself makes, and that never leaves it. */
export interface Key {
  kind: "key";
  path: string;
  /** Absent: the host has no key yet. */
  publicKey?: string;
}

/** The other end of a WireGuard tunnel. */
export interface WireguardPeer {
  kind: "wgpeer";
  dev: string;
  publicKey: string;
  /** Sources that it may send from, and destinations that lead to it. */
  allowedIps: string[];
  /** Where it is at first. The kernel follows a peer that moves. */
  endpoint: Endpoint;
  /** Seconds. */
  keepalive: number;
}

export interface Endpoint {
  ip: string;
  port: number;
}

/** One of several other ends of a VXLAN device: an entry in its forwarding database, and a permanent neighbour entry. */
export interface VxlanPeer {
  kind: "vxpeer";
  dev: string;
  mac: string;
  /** That of the next hop, on the peer's device. */
  ip: string;
  /** The host's address on the underlay. */
  remote: string;
}

/** An address of another host for which this one answers on a device (proxy ARP, proxy NDP). */
export interface Neighbour {
  kind: "neighbour";
  dev: string;
  ip: string;
}

export interface Address {
  kind: "address";
  dev: string;
  /** With its prefix: `10.128.64.1/18`. */
  address: string;
  /** The device on which the address is announced to neighbours when it is added to this host. */
  announce?: string;
}

export interface Route {
  kind: "route";
  family: Family;
  dst: string;
  via?: string;
  /** Absent: the range is unreachable, so that packets to unused subnets are rejected at once. */
  dev?: string;
  /** The source of packets that the host sends itself. */
  src?: string;
  metric?: number;
  /** Absent: the main one. */
  table?: number;
}

/** A rule of `ip rule`: packets from a range that carry a mark are looked up in another routing table. */
export interface PolicyRule {
  kind: "policy";
  family: Family;
  from: string;
  /** With its mask, in hexadecimal: `0x10000000/0x10000000`. */
  mark: string;
  table: number;
}

/** A Docker network on one of our bridges. To change it, it is removed and created again. */
export interface DockerNetwork {
  kind: "docker";
  name: string;
  bridge: string;
  mtu: number;
  /** One for each address family. */
  subnets: DockerSubnet[];
  /** false: only where dockerd runs. */
  required: boolean;
}

export interface DockerSubnet {
  subnet: string;
  gateway: string;
  /** The hub's end of the tunnel, which Docker must not give out. */
  hub: string;
  /** From which Docker assigns addresses. */
  range: string;
}

interface FirewallTable {
  family: Family;
  table: "filter" | "mangle" | "nat" | "raw";
}

export interface Chain extends FirewallTable {
  kind: "chain";
  chain: string;
}

export interface Jump extends FirewallTable {
  kind: "jump";
  from: string;
  chain: string;
  /** It is appended after the rules of other programs; all other jumps are inserted before them. */
  atEnd?: true;
}

export interface FirewallRule extends FirewallTable {
  kind: "rule";
  chain: string;
  /** In iptables-save's own form, or every refresh would show a change. */
  rule: string;
  /** It is needed only until the peer has changed, too: it is not restored at boot, and the host removes it itself. */
  transient?: true;
  /** Connections that are deleted from connection tracking when the rule is added or removed. */
  flows?: { protocol: string; ip: string; port: number };
}

/** What iptables or ip6tables holds. */
export type FirewallItem = Chain | Jump | FirewallRule;

/** A device or a rich rule in a zone of firewalld; without either, our own zone itself. Only on hosts with firewalld. */
export interface ZoneEntry {
  kind: "zone";
  /** A device in our zone. */
  interface?: string;
  /** It carries a Docker network, where Docker runs. */
  hasDocker?: true;
  rule?: string;
  /** Our address on the underlay: the rule is in the zone of its device. Absent: it is in ours. */
  underlay?: string;
}

export interface FileItem {
  kind: "file";
  path: string;
  /** Absent in records, which need only the path. */
  content?: string;
}

/** A unit of systemd that is started at every boot, with its file. */
export interface Service {
  kind: "service";
  name: string;
  /** The unit file's text; absent in records. */
  unit?: string;
  /** It must be active at all times, and not only run at boot. */
  staysActive?: boolean;
}

/** What one owner has on one host, as stored in `/var/lib/overlay/NETWORK/UID.json`. */
export interface HostRecord {
  uid: string;
  owner: string;
  network: string;
  /** The user's name for it, for a recovery from the host alone. */
  name?: string;
  /** Which store the lease behind it is in. */
  store: string;
  items: Item[];
}

/** Marks our routes; nothing else uses this number. */
export const ROUTE_PROTOCOL = 183;

/** Our zone of firewalld. */
export const OUR_ZONE = "pulumi-overlay";

/** Before the main table, after the local one. */
export const POLICY_PRIORITY = 18300;

/** What makes two items the same object; everything else about an item can differ and be changed. */
export function itemKey(item: Item): string {
  switch (item.kind) {
    case "sysctl":
      return `sysctl ${item.key}`;
    case "link":
      return `link ${item.name}`;
    case "key":
      return `key ${item.path}`;
    case "wgpeer":
      return `peer ${item.publicKey} of ${item.dev}`;
    case "vxpeer":
      return `peer ${item.ip} of ${item.dev}`;
    case "neighbour":
      return `proxy neighbour ${item.ip} on ${item.dev}`;
    case "address":
      return `address ${item.address} on ${item.dev}`;
    case "route":
      if (item.table !== undefined) return `route ${item.dst} in table ${item.table} (IPv${item.family})`;
      return isUnreachable(item) ? `unreachable ${item.dst}` : `route ${item.dst}`;
    case "policy":
      return `policy from ${item.from} mark ${item.mark} to table ${item.table}`;
    case "docker":
      return `docker network ${item.name}`;
    case "chain":
      return `chain ${item.chain} (${firewallName(item)})`;
    case "jump":
      return `jump from ${item.from} to ${item.chain} (${firewallName(item)})`;
    case "zone":
      if (item.interface) return `firewalld zone of ${item.interface}`;
      return item.rule ? `firewalld ${item.rule}` : `firewalld zone ${OUR_ZONE}`;
    case "file":
      return `file ${item.path}`;
    case "service":
      return `service ${item.name}`;
    case "rule":
      return `rule '${item.rule}' in ${item.chain} (${firewallName(item)})`;
    default:
      return unhandledKind(item);
  }
}

export const isUnreachable = ({ dev }: Pick<Route, "dev">): boolean => dev === undefined;

/** Whether this very object is among those that a record lists. A hub has hundreds of records: kinds are compared first. */
export function hasItem({ items }: Pick<HostRecord, "items">, item: Item): boolean {
  const key = itemKey(item);
  return items.some((other) => other.kind === item.kind && itemKey(other) === key);
}

/** Not by its field `table`: routes and policy rules have one, too. */
export const isFirewallItem = (item: Item): item is FirewallItem =>
  item.kind === "chain" || item.kind === "jump" || item.kind === "rule";

/** For the `default` of a switch over all kinds: if a kind has no case, the compiler refuses the call, and names its type. */
export function unhandledKind(item: never): never {
  throw new Error(`items of kind ${(item as Item).kind} are not handled`);
}

const firewallName = ({ family, table }: FirewallTable): string => `IPv${family} ${table}`;

export const FORWARDING: Record<Family, string> = { 4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding" };

/** Outer Ethernet-less headers: IP + UDP + VXLAN + inner Ethernet. */
export const vxlanOverhead = (underlayIp: string): number => (underlayIp.includes(":") ? 70 : 50);

/** IP + UDP + WireGuard's header and authenticator. */
export const wireguardOverhead = (underlayIp: string): number => (underlayIp.includes(":") ? 80 : 60);

/** One change of a host. */
export interface Step {
  verb: "add" | "change" | "remove";
  item: Item;
  /** How many copies are present, for kinds that can have more than one. */
  copies?: number;
  /** The position of a jump among the rules of other programs; the first unless set. */
  position?: number;
  /** The tunnel's peer before this change, if it had another address. */
  formerPeer?: Vxlan;
  /** The kernel has a route to the same range, of a device of ours: this one is put before it, and not in its place. */
  precedesKernel?: true;
  /** What is wrong with a device beside its attributes. */
  faults?: LinkFaults;
  /** The zones of firewalld that it changes. */
  zones?: ZoneLocation[];
  /** The same address with other prefix lengths, which is removed after this one is added. */
  otherPrefixes?: string[];
  /** Devices that were ports of this bridge before it was deleted, and become ports again. */
  ports?: string[];
  /** The setting keeps its value, because other programs need it. */
  keepsValue?: boolean;
  /** What others route, if it keeps its value for that. */
  keptFor?: string[];
  /** The value before our first change, if it is not saved: it is saved, or, with a removal, restored. */
  formerValue?: string;
}

export interface LinkFaults {
  /** The present name of a device of ours that was renamed. */
  renamedTo?: string;
  /** The tunnel has lost its default FDB entry, which the kernel restores only when the peer changes. */
  lacksFdb?: true;
  /** It does not resolve addresses. */
  lacksArp?: true;
  /** Families in which it does not forward although the host does. */
  withoutForwarding?: Family[];
  /** Settings as a port of a bridge, as `ip` takes them. */
  port?: string[];
}

/** The desired state of a host for one owner. */
export interface DesiredState {
  record: Omit<HostRecord, "items">;
  /** Empty: everything of this owner is removed. */
  items: Item[];
  /** Take over devices and routes that are as desired and in no record: see `withAdoptedMacs`. */
  adopt?: boolean;
  /** Restore it when the host boots. */
  persist?: boolean;
  /** For a removal: the items that the owner would have here. They are removed without a record, too, if they are provably ours. */
  plannedItems?: Item[];
  /** uids of earlier leases of the same resource, or of leases that are gone: this owner takes over the items of their records. */
  staleUids?: string[];
}

/** A zone in one of firewalld's configurations; `offline`: the permanent one, while firewalld is stopped. */
export interface ZoneLocation {
  configuration: "runtime" | "permanent" | "offline";
  zone: string;
}

export const addStep = (item: Item): Step => ({ verb: "add", item });

/** For kinds that a step either adds or removes as a whole. */
export const oppositeStep = ({ verb, item }: Step): Step => ({ verb: verb === "remove" ? "add" : "remove", item });

/** How the host differs from one item. */
export interface ItemDifference {
  item: Item;
  missing: boolean;
  /** As `WHAT is OBSERVED, should be DESIRED`. */
  wrong: string[];
}

/** A value that is to change. */
export interface ValueChange {
  what: string;
  from: string;
  to: string;
}

/** The values of a text that `mismatch` has made; undefined for other texts. */
export function readMismatch(text: string): ValueChange | undefined {
  const [, what, from, to] = /^(.+?) is (.*), should be (.*)$/s.exec(text) ?? [];
  return what === undefined ? undefined : { what, from: from!, to: to! };
}

/** The difference of one value. A desired value that is undefined is left to the host: see `ItemKind.resets`. */
export function mismatch(what: string, observed: unknown, desired: unknown): string[] {
  const format = (value: unknown): unknown => (value === undefined || value === "" ? "none" : value);
  return desired === undefined || observed === desired
    ? []
    : [`${what} is ${format(observed)}, should be ${format(desired)}`];
}
