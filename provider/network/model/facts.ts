import type { Family } from "../../addressing/ip";
import type { DockerSubnet, HostRecord, Link, Route, Vxlan } from "./items";

/** The observed state of a host, as far as it concerns us. */
export interface Facts {
  links: Map<string, LinkFact>;
  /** `10.128.64.1/18 overlay-br` */
  addresses: Set<string>;
  routes: RouteFact[];
  /** `4 10.128.64.0/18 0x10000000/0x10000000 3078914562`: those with a range and a mark. */
  policies: Set<string>;
  /** Routes of other programs in tables other than main, and the rules of the kernel and of other programs that lead there. */
  otherTableRoutes: OtherTableRoute[];
  routingRules: RoutingRuleFact[];
  /** Rules by `4 filter OVERLAY-FWD`, in order; built-in chains too. */
  chains: Map<string, string[]>;
  /** Keys of built-in chains with the policy DROP. */
  droppingChains: Set<string>;
  /** `4 eth0`: devices, or `default`, on which forwarding is off although it is on for the family. */
  withoutForwarding: Set<string>;
  sysctls: Map<string, string>;
  /** Values of settings before our first change, by key; saved on the host while a record needs them. */
  savedSysctls: Map<string, string>;
  /** Public keys by the file of the private key; empty if that is no key. */
  keys: Map<string, string>;
  /** `10.128.64.254 overlay-br`: addresses for which the host answers on a device. */
  proxies: Set<string>;
  /** MACs of permanent neighbour entries, by `fe80::1:2 ovlMV`. */
  neighbours: Map<string, string>;
  /** Whether ip6tables is there, and IPv6 itself. */
  ip6tables: boolean;
  /** Absent: there is no firewalld, or it is stopped for good. */
  zones?: ZoneFacts;
  /** Whether iptables is the legacy one, so that our chains are in its tables. */
  isIptablesLegacy?: boolean;
  /** Chains of other firewalls that drop. */
  blockingChains: BlockingChain[];
  /** Read only before a change: kernel modules and tools that are missing. */
  missingFeatures: string[];
  /** SHA-256 by path, of the scripts for boot, unit files and files of items that exist. */
  files: Map<string, string>;
  /** State of our units, by name; absent if the host was not booted with systemd. */
  systemd?: Map<string, ServiceFact>;
  /** The addresses of our SSH connection; absent without SSH. */
  ssh?: SshPath;
  /** Absent: there is no Docker. */
  docker?: DockerFacts;
  records: HostRecord[];
  /** Files in the records' folders that are not valid records. */
  invalidRecords: InvalidRecord[];
  /** Where the records of owners should be that the pool says have items here, and whose records are lost. Asked for only if there are rules of unknown origin. */
  lostRecords: string[];
  /** The devices that are desired here. A bridge with another MAC is known by its port where its record is lost, too. */
  desiredLinks: Link[];
  /** Files and folders of ours, by path, that another user than root owns or can write. */
  openFiles: Map<string, FileAccess>;
}

export interface FileAccess {
  /** User id. */
  owner: number;
  /** Octal, as `stat` prints it. */
  mode: string;
}

export interface LinkFact {
  type: string;
  mac: string;
  mtu: number;
  up: boolean;
  master?: string;
  vxlan?: Vxlan & { learning: boolean };
  /** Of a device that `wg` knows: in the kernel, or in a process. */
  wireguard?: WireguardFact;
  /** ARP and neighbour discovery are off. */
  isWithoutArp?: true;
  /** Of a port of a bridge: the settings that keep frames from other ports, as `ip` takes them, in the form that lets them pass. */
  portFaults?: string[];
  /** Of a tunnel: where it sends frames. Absent: not read. */
  fdb?: FdbEntry[];
  /** Its present name, if a device of ours was renamed: everything else here names it as its record does. */
  renamedTo?: string;
}

export interface WireguardFact {
  /** `(none)`: it has no private key. */
  publicKey: string;
  port: number;
  /** By their public keys. */
  peers: Map<string, PeerFact>;
  /** A device of the kernel with threaded NAPI. */
  isThreaded?: true;
}

export interface PeerFact {
  /** Sorted. */
  allowedIps: string[];
  /** Absent: none was set, and the peer has sent nothing. */
  endpoint?: string;
  /** 0: off. */
  keepalive: number;
  /** We set none: without it on the other end, too, the next handshake fails. */
  hasPresharedKey?: true;
  /** It is kept alive, but there was no handshake for a while, and it does not answer. Read only before a change. */
  isSilent?: true;
}

/** An entry of a tunnel's forwarding database: where it sends frames to a MAC. */
export interface FdbEntry {
  /** `00:00:00:00:00:00`: all MACs without an entry of their own. */
  mac: string;
  /** As `bridge fdb` takes it: `dst 192.0.2.11`, `dst 192.0.2.11 port 4790 vni 7`, `nhid 3`. */
  destination: string;
}

export interface SshPath {
  client: string;
  server: string;
  /** Of its sshd. */
  port: number;
}

export interface ServiceFact {
  /** `enabled`: it is started at boot. */
  unitFileState: string;
  activeState: string;
}

/** A route of the host. */
export interface RouteFact extends Omit<Route, "kind"> {
  /** Of a route with several next hops. */
  nexthopDevices?: string[];
  protocol: string;
  unreachable: boolean;
  /** As `ip route` prints it, but for its table; absent in routes of our own. */
  text?: string;
}

/** A route of another program in a table other than main. */
export interface OtherTableRoute extends RouteFact {
  /** By its name where it has one. */
  tableName: string;
}

/** A routing rule as far as it decides which table is looked up before main. */
export interface RoutingRuleFact {
  family: Family;
  priority: number;
  table: string;
  /** A range, or `all`. */
  from: string;
  to: string;
  /** The incoming device of a packet. */
  iif?: string;
  /** It has other conditions, which only some packets match. */
  isSelective: boolean;
  /** Routes with prefixes of at most this length are not used. */
  suppressPrefixLength: number;
  /** Instead of a table: the rule drops packets. */
  action?: "blackhole" | "unreachable" | "prohibit";
}

export interface DockerFacts {
  /** false: it is installed, and does not answer. */
  isRunning: boolean;
  networks: DockerNetworkFact[];
}

export interface DockerNetworkFact {
  name: string;
  driver: string;
  bridge?: string;
  mtu?: string;
  masquerade?: string;
  subnets: Partial<DockerSubnet>[];
  containers: Container[];
}

export interface Container {
  name: string;
  running: boolean;
  /** On this network; one that does not run has none. */
  addresses: string[];
}

/** The zones of firewalld; see kinds/zone.ts. */
export interface ZoneFacts {
  defaultZone: string;
  /** Absent: it is stopped. */
  runtime?: Map<string, Zone>;
  permanent: Map<string, Zone>;
}

export interface Zone {
  target: string;
  interfaces: string[];
  rules: string[];
}

/**
 * Firewalls that our own chains cannot overrule. A packet passes every base chain of its hook, and any of them can drop it:
 * an accept in iptables' chains is worth nothing against a drop in another table of nftables, or in iptables-legacy. We
 * never edit another's rules, so what would block is named, with the commands that let the overlay pass.
 */
export interface BlockingChain {
  /** `nft` names it by family, table and chain. */
  tool: "nft" | "iptables-legacy" | "ip6tables-legacy";
  where: string;
  hook: "forward" | "input";
  families: Family[];
  why: string;
  /** It sees the frames of bridges, and not what the host routes. */
  isOfBridges?: true;
  /** Absent: it drops all packets. Else a rule drops those that match. */
  match?: PacketMatch;
  /** Lines that accept something, in this chain or one that it may lead to. */
  accepts: string[];
}

/** The conditions of a rule that matches packets by devices and ranges only. */
export interface PacketMatch {
  in?: string;
  out?: string;
  source?: string;
  destination?: string;
}

/** A file in a records' folder that is not a valid record. */
export interface InvalidRecord {
  file: string;
  /** Of the owner, by the file's name; absent if the name is not that of a record. */
  network?: string;
  uid?: string;
  /** `items.3.mac: Invalid string` */
  reason: string;
}

/** The parts of a host's answer to the scripts in `read/facts.ts`. Each starts with a line `@@ NAME`. */
export type FactsPart =
  /** `SSH_CONNECTION`. */
  | "ssh"
  /** Before a change: devices, addresses, and what `routing6` has for IPv4. */
  | "ip"
  /** After a change: devices of its items, their addresses, our IPv4 routes, and routing rules. On a hub with many devices `ip` instead. */
  | "changed"
  /** The forwarding databases of tunnels. */
  | "fdb"
  /** Devices of WireGuard with their peers; never private keys. */
  | "wg"
  /** Before a change: peers that do not answer. */
  | "silent"
  /** Public keys of key files. */
  | "keys"
  /** Addresses for which the host answers on a device, and permanent neighbour entries. */
  | "neighbours"
  /** IPv6 routes and routing rules of all programs, before a change. */
  | "routing6"
  /** After a change with IPv6: our IPv6 routes, and routing rules. */
  | "ours6"
  /** iptables-save and ip6tables-save; after a change the latter only with IPv6. */
  | "rules4"
  | "rules6"
  /** Devices on which forwarding is off, or sources are checked. */
  | "netconf"
  /** Settings, and their former values that we have saved. */
  | "sysctls"
  /** Hashes of files. */
  | "files"
  /** Owner and mode of files that root does not have to itself. */
  | "access"
  /** The state of our units. */
  | "systemd"
  /** Docker networks with the containers that run, and all containers. */
  | "docker"
  | "containers"
  /** The default zone of firewalld, its runtime configuration, and its permanent one. */
  | "zone"
  | "zones"
  | "permanent"
  /** All files in the records' folders; only before a change, like the rest. */
  | "records"
  /** Kernel modules and tools that are missing. */
  | "lacks"
  /** Firewalls of other programs, also without a change. */
  | "nft"
  | "legacy4"
  | "legacy6";
