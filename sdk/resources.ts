// Written by `npm run generate` from the zod schemas in provider/resources. Do not edit.
import type * as pulumi from "@pulumi/pulumi";
import { OverlayResource, type Shape } from "./dynamic";

export interface DockerArgs {
  /** `auto`: a Docker network where dockerd runs; `on`: dockerd must run; `off`: none. Default `auto`. */
  enabled?: pulumi.Input<"auto" | "on" | "off"> | undefined;
  /** Name of the Docker network, as in `docker run --network`. Default `pulumi-overlay`. */
  networkName?: pulumi.Input<string> | undefined;
  /** The share at the end of each runner's subnet from which Docker picks addresses by itself, `1/4`: the last quarter. The pool does not allocate from it unless Docker is off. Default `1/4`. */
  range?: pulumi.Input<string> | undefined;
}

export interface ProxyArgs {
  /** Name or address at which SSH reaches the host. */
  host: pulumi.Input<string>;
  /** Port of its SSH server. Default 22. */
  port?: pulumi.Input<number> | undefined;
  /** User to log in as. Default root. */
  user?: pulumi.Input<string> | undefined;
  /** Password, where keys cannot be used. */
  password?: pulumi.Input<string> | undefined;
  /** Private key, as text. */
  privateKey?: pulumi.Input<string> | undefined;
  /** Passphrase of the private key. */
  privateKeyPassword?: pulumi.Input<string> | undefined;
  /** File with the private key on the machine that runs Pulumi. */
  privateKeyPath?: pulumi.Input<string> | undefined;
  /** Socket of an SSH agent. Default: SSH_AUTH_SOCK. */
  agentSocketPath?: pulumi.Input<string> | undefined;
  /** The server's public key, `ssh-ed25519 AAAA…`. Default: known_hosts decides. */
  hostKey?: pulumi.Input<string> | undefined;
  /** Failed dials before giving up; 0: no limit but operationTimeout. Default 10, but a closed port is given up after at most 10 s and an unknown name at once. Set it for a host that may still be booting. */
  dialErrorLimit?: pulumi.Input<number> | undefined;
  /** Seconds for one dial. Default 15. */
  perDialTimeout?: pulumi.Input<number> | undefined;
}

export interface ConnectionArgs {
  /** Name or address at which SSH reaches the host. */
  host: pulumi.Input<string>;
  /** Port of its SSH server. Default 22. */
  port?: pulumi.Input<number> | undefined;
  /** User to log in as. Default root. */
  user?: pulumi.Input<string> | undefined;
  /** Password, where keys cannot be used. */
  password?: pulumi.Input<string> | undefined;
  /** Private key, as text. */
  privateKey?: pulumi.Input<string> | undefined;
  /** Passphrase of the private key. */
  privateKeyPassword?: pulumi.Input<string> | undefined;
  /** File with the private key on the machine that runs Pulumi. */
  privateKeyPath?: pulumi.Input<string> | undefined;
  /** Socket of an SSH agent. Default: SSH_AUTH_SOCK. */
  agentSocketPath?: pulumi.Input<string> | undefined;
  /** The server's public key, `ssh-ed25519 AAAA…`. Default: known_hosts decides. */
  hostKey?: pulumi.Input<string> | undefined;
  /** Failed dials before giving up; 0: no limit but operationTimeout. Default 10, but a closed port is given up after at most 10 s and an unknown name at once. Set it for a host that may still be booting. */
  dialErrorLimit?: pulumi.Input<number> | undefined;
  /** Seconds for one dial. Default 15. */
  perDialTimeout?: pulumi.Input<number> | undefined;
  /** Jump host through which the host is reached. */
  proxy?: pulumi.Input<ProxyArgs> | undefined;
  /** Become root with `sudo -n`. Default: true for a user other than root. */
  sudo?: pulumi.Input<boolean> | undefined;
}

export interface NetworkSettingsArgs {
  /** Name of the network, unique in the store. Default: the resource's name. */
  networkName: pulumi.Input<string>;
  /** The range and how it is divided into subnets, `BASE/PREFIX/NODE_BITS/SUBNET_BITS`: the bits add up to 32, or to 128 for IPv6. A pair of one IPv4 and one IPv6 layout makes a dual-stack network. */
  subnets?: pulumi.Input<string | pulumi.Input<string>[]> | undefined;
  /** The hub's address on the underlay. Default: the one at which SSH reaches it. */
  hubUnderlayIp?: pulumi.Input<string> | undefined;
  /** How packets pass between hub and runners: `vxlan`, which anyone on the way can read, or `wireguard`, which is encrypted and needs `wg` on the hosts. A change loses no packets: each runner has both until data has passed by the new one. Default `vxlan`. */
  tunnel?: pulumi.Input<"vxlan" | "wireguard"> | undefined;
  /** `hub`: packets between runners pass the hub. `mesh`: runners send to each other directly, each with all others as peers, and the hub carries what has no direct route. A change loses no packets. Default `hub`. */
  topology?: pulumi.Input<"hub" | "mesh"> | undefined;
  /** UDP port of hub and runners with `tunnel: wireguard`, and the next one for odd values of `keyGeneration`; with `topology: mesh` runners also use the two after them. Networks that share a host need different ones. After a change each runner is without its tunnel until it has changed, too. Default `51820`. */
  wireguardPort?: pulumi.Input<number> | undefined;
  /** Raise it by one to give hub and runners new keys with `tunnel: wireguard`. No packets are lost: each runner has both keys until data has passed with the new ones. Not with `topology: mesh`. Default `0`. */
  keyGeneration?: pulumi.Input<number> | undefined;
  /** Device on the hub that carries its own overlay address. Default `overlay-hub`. */
  hubInterface?: pulumi.Input<string> | undefined;
  /** VNI of runner i is vniBase + i. A change loses no packets, unless the new VNIs overlap with the old ones: a temporary tunnel carries them meanwhile. Default `100`. */
  vniBase?: pulumi.Input<number> | undefined;
  /** UDP port of the tunnels, and the next one between runners with `topology: mesh`. A change loses no packets: a temporary tunnel carries them meanwhile. Both ports must be open. Default `4789`. */
  vxlanPort?: pulumi.Input<number> | undefined;
  /** MTU inside the overlay. `auto`: that of the underlay minus 50, or 70 over IPv6; with `tunnel: wireguard` 60, or 80. Default `auto`. */
  mtu?: pulumi.Input<"auto" | number> | undefined;
  /** Masquerade traffic that leaves the overlay with the runner's address. Default `true`. */
  masquerade?: pulumi.Input<boolean> | undefined;
  /** Tunnel devices are named by this and the runner's id in base 36. Default `ovl`. */
  devicePrefix?: pulumi.Input<string> | undefined;
  /** Bridge on each runner, the gateway of its subnet. Default `overlay-br`. */
  bridgeName?: pulumi.Input<string> | undefined;
  /** Hosts restore their part of the overlay after a boot, with a systemd unit. Default `true`. */
  persist?: pulumi.Input<boolean> | undefined;
  /** Docker on the runners. */
  docker?: pulumi.Input<DockerArgs> | undefined;
  /** What workloads may reach on the hub and the runners themselves: `ping`, `all`, or pings and these ports, such as `tcp/22` or `udp/6000-6100`. */
  hostAccess?: pulumi.Input<string | pulumi.Input<string>[]> | undefined;
  /** After a change, ping the hub from the runner, with full-size packets. Default `true`. */
  verify?: pulumi.Input<boolean> | undefined;
}

export interface DockerOverrideArgs {
  /** `auto`: a Docker network where dockerd runs; `on`: dockerd must run; `off`: none. */
  enabled?: pulumi.Input<"auto" | "on" | "off"> | undefined;
  /** Name of the Docker network, as in `docker run --network`. */
  networkName?: pulumi.Input<string> | undefined;
  /** The share at the end of each runner's subnet from which Docker picks addresses by itself, `1/4`: the last quarter. The pool does not allocate from it unless Docker is off. */
  range?: pulumi.Input<string> | undefined;
}

export interface TenantArgs {
  /** Organization. */
  org: pulumi.Input<string>;
  /** Project in it. */
  project: pulumi.Input<string>;
}

export interface QuotaArgs {
  /** How many addresses may be held at a time. */
  maxIps?: pulumi.Input<number> | undefined;
  /** How many leases may exist at a time. */
  maxReservations?: pulumi.Input<number> | undefined;
}

export interface PoolSettingsArgs {
  /** Name of the pool. */
  poolName: pulumi.Input<string>;
  /** Ranges in one address space must not overlap. Networks are in `default`. Default `default`. */
  addressSpace?: pulumi.Input<string> | undefined;
  /** What it is for. A `vip` pool gives only addresses that are requested themselves; a `nodePort` pool has ports. Default `container`. */
  type?: pulumi.Input<"clusterIP" | "loadBalancer" | "vip" | "nodePort" | "container"> | undefined;
  /** The ranges of the pool. */
  ranges: pulumi.Input<pulumi.Input<string>[]>;
  /** The tenant of the pool. */
  tenant?: pulumi.Input<TenantArgs> | undefined;
  /** Limits in addition to the size of the ranges. */
  quota?: pulumi.Input<QuotaArgs> | undefined;
}

export interface RunnerSettingsArgs {
  /** Name of the runner's network. */
  networkName: pulumi.Input<string>;
  /** Name of the runner. */
  runnerName: pulumi.Input<string>;
  /** The ranges of its workloads, one for each address family. */
  subnets: pulumi.Input<pulumi.Input<string>[]>;
  /** Name of the Docker network on the runner; empty when Docker is off. */
  dockerNetwork: pulumi.Input<string>;
}

export interface NetworkReferenceArgs {
  /** Name of the network. */
  networkName: pulumi.Input<string>;
}

export interface AttachmentArgs {
  /** Name of the network. */
  networkName: pulumi.Input<string>;
  /** Name of the runner; none: the network's hub. */
  runnerName?: pulumi.Input<string> | undefined;
  /** Layouts of the network, or the ranges of the runner's workloads. */
  subnets: pulumi.Input<string | pulumi.Input<string>[]>;
  /** Bridge on the network's runners. */
  bridgeName?: pulumi.Input<string> | undefined;
}

export interface ForwardArgs {
  /** Transport protocol. Default `tcp`. */
  protocol?: pulumi.Input<"tcp" | "udp" | "sctp"> | undefined;
  /** Port of the static address. */
  port: pulumi.Input<number>;
  /** Target address, such as the `ip` of an IPReservation. */
  to: pulumi.Input<string>;
  /** Port there. Default: the same. */
  toPort?: pulumi.Input<number> | undefined;
  /** A description, such as `https`. */
  name?: pulumi.Input<string> | undefined;
}

export interface ReturnRunnerArgs {
  /** Name of the runner's network. */
  networkName: pulumi.Input<string>;
  /** Name of the runner. */
  runnerName: pulumi.Input<string>;
  /** The ranges of its workloads. */
  subnets: pulumi.Input<pulumi.Input<string>[]>;
}

/** Inputs of OverlayNetwork. */
export interface OverlayNetworkArgs {
  /** Name of the network, unique in the store. Default: the resource's name. */
  networkName?: pulumi.Input<string> | undefined;
  /** The range and how it is divided into subnets, `BASE/PREFIX/NODE_BITS/SUBNET_BITS`: the bits add up to 32, or to 128 for IPv6. A pair of one IPv4 and one IPv6 layout makes a dual-stack network. */
  subnets?: pulumi.Input<string | pulumi.Input<string>[]> | undefined;
  /** The hub's address on the underlay. Default: the one at which SSH reaches it. */
  hubUnderlayIp?: pulumi.Input<string> | undefined;
  /** How packets pass between hub and runners: `vxlan`, which anyone on the way can read, or `wireguard`, which is encrypted and needs `wg` on the hosts. A change loses no packets: each runner has both until data has passed by the new one. Default `vxlan`. */
  tunnel?: pulumi.Input<"vxlan" | "wireguard"> | undefined;
  /** `hub`: packets between runners pass the hub. `mesh`: runners send to each other directly, each with all others as peers, and the hub carries what has no direct route. A change loses no packets. Default `hub`. */
  topology?: pulumi.Input<"hub" | "mesh"> | undefined;
  /** UDP port of hub and runners with `tunnel: wireguard`, and the next one for odd values of `keyGeneration`; with `topology: mesh` runners also use the two after them. Networks that share a host need different ones. After a change each runner is without its tunnel until it has changed, too. Default `51820`. */
  wireguardPort?: pulumi.Input<number> | undefined;
  /** Raise it by one to give hub and runners new keys with `tunnel: wireguard`. No packets are lost: each runner has both keys until data has passed with the new ones. Not with `topology: mesh`. Default `0`. */
  keyGeneration?: pulumi.Input<number> | undefined;
  /** Device on the hub that carries its own overlay address. Default `overlay-hub`. */
  hubInterface?: pulumi.Input<string> | undefined;
  /** VNI of runner i is vniBase + i. A change loses no packets, unless the new VNIs overlap with the old ones: a temporary tunnel carries them meanwhile. Default `100`. */
  vniBase?: pulumi.Input<number> | undefined;
  /** UDP port of the tunnels, and the next one between runners with `topology: mesh`. A change loses no packets: a temporary tunnel carries them meanwhile. Both ports must be open. Default `4789`. */
  vxlanPort?: pulumi.Input<number> | undefined;
  /** MTU inside the overlay. `auto`: that of the underlay minus 50, or 70 over IPv6; with `tunnel: wireguard` 60, or 80. Default `auto`. */
  mtu?: pulumi.Input<"auto" | number> | undefined;
  /** Masquerade traffic that leaves the overlay with the runner's address. Default `true`. */
  masquerade?: pulumi.Input<boolean> | undefined;
  /** Tunnel devices are named by this and the runner's id in base 36. Default `ovl`. */
  devicePrefix?: pulumi.Input<string> | undefined;
  /** Bridge on each runner, the gateway of its subnet. Default `overlay-br`. */
  bridgeName?: pulumi.Input<string> | undefined;
  /** Hosts restore their part of the overlay after a boot, with a systemd unit. Default `true`. */
  persist?: pulumi.Input<boolean> | undefined;
  /** Docker on the runners. */
  docker?: pulumi.Input<DockerArgs> | undefined;
  /** What workloads may reach on the hub and the runners themselves: `ping`, `all`, or pings and these ports, such as `tcp/22` or `udp/6000-6100`. */
  hostAccess?: pulumi.Input<string | pulumi.Input<string>[]> | undefined;
  /** After a change, ping the hub from the runner, with full-size packets. Default `true`. */
  verify?: pulumi.Input<boolean> | undefined;
  /** How SSH reaches the hub. Another host moves the hub: packets between runners are lost for about 250 ms. */
  hubConnection: pulumi.Input<ConnectionArgs>;
  /** Adopt existing devices that match the desired state but are in no record. Default `false`. */
  adopt?: pulumi.Input<boolean> | undefined;
  /** When all runner ids are taken: fail, or reclaim the one with the oldest `lastSeen`. Default `fail`. */
  onExhausted?: pulumi.Input<"fail" | "reclaimInactive"> | undefined;
  /** Seconds without an up, refresh or heartbeat after which a runner id may be reclaimed. Default `604800`. */
  inactiveAfter?: pulumi.Input<number> | undefined;
  /** Free text for people and tools; kept with the lease. */
  labels?: pulumi.Input<Record<string, pulumi.Input<string>>> | undefined;
}

const OverlayNetworkShape: Shape = {
  "type": "OverlayNetwork",
  "secrets": [
    "hubConnection"
  ],
  "shownParts": {
    "hubConnection": {
      "host": "host",
      "port": "port",
      "user": "user",
      "jumpHost": "jumpHost"
    }
  },
  "references": {},
  "properties": [
    "networkName",
    "subnets",
    "hubUnderlayIp",
    "tunnel",
    "topology",
    "wireguardPort",
    "keyGeneration",
    "hubInterface",
    "vniBase",
    "vxlanPort",
    "mtu",
    "masquerade",
    "devicePrefix",
    "bridgeName",
    "persist",
    "docker",
    "hostAccess",
    "verify",
    "hubConnection",
    "adopt",
    "onExhausted",
    "inactiveAfter",
    "labels",
    "cidr",
    "hubIp",
    "maxRunners",
    "ipsPerRunner",
    "runnerPrefix",
    "cidr6",
    "hubIp6",
    "host",
    "port",
    "user",
    "jumpHost",
    "effectiveUnderlayIp",
    "effectiveMtu",
    "hubPublicKey",
    "leaseId",
    "pendingCleanup",
    "drift"
  ]
};

/**
 * An overlay: a range of addresses with one subnet per runner, and a hub that routes between them.
 *
 * @example
 * ```ts
 * const privateKey = new pulumi.Config().requireSecret("privateKey");
 * const network = new overlay.OverlayNetwork("training", {
 *   subnets: "10.128.0.0/12/6/14", // 63 runners with 16,380 addresses each
 *   hubConnection: { host: "10.0.0.5", privateKey },
 * });
 * const encrypted = new overlay.OverlayNetwork("encrypted", {
 *   subnets: "10.64.0.0/12/6/14",
 *   tunnel: "wireguard",
 *   topology: "mesh", // runners send to each other directly
 *   wireguardPort: 51900, // UDP; runners also use the next two
 *   keyGeneration: 0, // raise it by one for new keys
 *   hubConnection: { host: "10.0.0.6", privateKey },
 * });
 * ```
 */
export class OverlayNetwork extends OverlayResource {
  /** Name of the network, unique in the store. Default: the resource's name. */
  declare readonly networkName: pulumi.Output<string>;
  /** The range and how it is divided into subnets, `BASE/PREFIX/NODE_BITS/SUBNET_BITS`: the bits add up to 32, or to 128 for IPv6. A pair of one IPv4 and one IPv6 layout makes a dual-stack network. */
  declare readonly subnets: pulumi.Output<string | string[]>;
  /** The hub's address on the underlay. Default: the one at which SSH reaches it. */
  declare readonly hubUnderlayIp: pulumi.Output<string | undefined>;
  /** How packets pass between hub and runners: `vxlan`, which anyone on the way can read, or `wireguard`, which is encrypted and needs `wg` on the hosts. A change loses no packets: each runner has both until data has passed by the new one. */
  declare readonly tunnel: pulumi.Output<"vxlan" | "wireguard">;
  /** `hub`: packets between runners pass the hub. `mesh`: runners send to each other directly, each with all others as peers, and the hub carries what has no direct route. A change loses no packets. */
  declare readonly topology: pulumi.Output<"hub" | "mesh">;
  /** UDP port of hub and runners with `tunnel: wireguard`, and the next one for odd values of `keyGeneration`; with `topology: mesh` runners also use the two after them. Networks that share a host need different ones. After a change each runner is without its tunnel until it has changed, too. */
  declare readonly wireguardPort: pulumi.Output<number>;
  /** Raise it by one to give hub and runners new keys with `tunnel: wireguard`. No packets are lost: each runner has both keys until data has passed with the new ones. Not with `topology: mesh`. */
  declare readonly keyGeneration: pulumi.Output<number>;
  /** Device on the hub that carries its own overlay address. */
  declare readonly hubInterface: pulumi.Output<string>;
  /** VNI of runner i is vniBase + i. A change loses no packets, unless the new VNIs overlap with the old ones: a temporary tunnel carries them meanwhile. */
  declare readonly vniBase: pulumi.Output<number>;
  /** UDP port of the tunnels, and the next one between runners with `topology: mesh`. A change loses no packets: a temporary tunnel carries them meanwhile. Both ports must be open. */
  declare readonly vxlanPort: pulumi.Output<number>;
  /** MTU inside the overlay. `auto`: that of the underlay minus 50, or 70 over IPv6; with `tunnel: wireguard` 60, or 80. */
  declare readonly mtu: pulumi.Output<"auto" | number>;
  /** Masquerade traffic that leaves the overlay with the runner's address. */
  declare readonly masquerade: pulumi.Output<boolean>;
  /** Tunnel devices are named by this and the runner's id in base 36. */
  declare readonly devicePrefix: pulumi.Output<string>;
  /** Bridge on each runner, the gateway of its subnet. */
  declare readonly bridgeName: pulumi.Output<string>;
  /** Hosts restore their part of the overlay after a boot, with a systemd unit. */
  declare readonly persist: pulumi.Output<boolean>;
  /** Docker on the runners. */
  declare readonly docker: pulumi.Output<pulumi.Unwrap<DockerArgs>>;
  /** What workloads may reach on the hub and the runners themselves: `ping`, `all`, or pings and these ports, such as `tcp/22` or `udp/6000-6100`. */
  declare readonly hostAccess: pulumi.Output<string | string[]>;
  /** After a change, ping the hub from the runner, with full-size packets. */
  declare readonly verify: pulumi.Output<boolean>;
  /** How SSH reaches the hub. Another host moves the hub: packets between runners are lost for about 250 ms. */
  declare readonly hubConnection: pulumi.Output<pulumi.Unwrap<ConnectionArgs>>;
  /** Adopt existing devices that match the desired state but are in no record. */
  declare readonly adopt: pulumi.Output<boolean>;
  /** When all runner ids are taken: fail, or reclaim the one with the oldest `lastSeen`. */
  declare readonly onExhausted: pulumi.Output<"fail" | "reclaimInactive">;
  /** Seconds without an up, refresh or heartbeat after which a runner id may be reclaimed. */
  declare readonly inactiveAfter: pulumi.Output<number>;
  /** Free text for people and tools; kept with the lease. */
  declare readonly labels: pulumi.Output<Record<string, string> | undefined>;
  /** The whole range of the overlay. */
  declare readonly cidr: pulumi.Output<string>;
  /** The hub's own overlay address. */
  declare readonly hubIp: pulumi.Output<string>;
  /** How many runners it has room for. */
  declare readonly maxRunners: pulumi.Output<number>;
  /** Addresses for workloads on each runner; a string past 2^53. */
  declare readonly ipsPerRunner: pulumi.Output<number | string>;
  /** Prefix length of a runner's subnet. */
  declare readonly runnerPrefix: pulumi.Output<number>;
  /** The IPv6 range of a dual-stack network. */
  declare readonly cidr6: pulumi.Output<string | undefined>;
  /** The hub's IPv6 overlay address in a dual-stack network. */
  declare readonly hubIp6: pulumi.Output<string | undefined>;
  /** The hub, as SSH reaches it. */
  declare readonly host: pulumi.Output<string>;
  /** Port of its SSH server, if `hubConnection` names one. */
  declare readonly port: pulumi.Output<number | undefined>;
  /** User to log in as, if `hubConnection` names one. */
  declare readonly user: pulumi.Output<string | undefined>;
  /** Jump host through which it is reached. */
  declare readonly jumpHost: pulumi.Output<string | undefined>;
  /** The hub's address on the underlay. */
  declare readonly effectiveUnderlayIp: pulumi.Output<string>;
  /** MTU of the tunnels, as far as the hub decides it. */
  declare readonly effectiveMtu: pulumi.Output<number>;
  /** The hub's public key, with `tunnel: wireguard`. */
  declare readonly hubPublicKey: pulumi.Output<string | undefined>;
  /** The lease in the pool; renewed by every create. */
  declare readonly leaseId: pulumi.Output<string>;
  /** Hosts that it no longer has, whose items are still to be removed. */
  declare readonly pendingCleanup: pulumi.Output<string[]>;
  /** What refresh found to differ on the hosts; the next up corrects it. */
  declare readonly drift: pulumi.Output<string[]>;

  constructor(name: string, args: OverlayNetworkArgs, opts?: pulumi.CustomResourceOptions) {
    super(OverlayNetworkShape, name, args, opts);
  }
}

/** Inputs of RunnerSubnet. */
export interface RunnerSubnetArgs {
  /** The network that it joins: an OverlayNetwork, or the name of one in another stack. */
  network: OverlayNetwork | pulumi.Input<string>;
  /** Name of the runner, unique in the network. Default: the resource's name. */
  runnerName?: pulumi.Input<string> | undefined;
  /** How SSH reaches the runner. */
  connection: pulumi.Input<ConnectionArgs>;
  /** How SSH reaches the hub. Default: the network's, where that is a resource. */
  hubConnection?: pulumi.Input<ConnectionArgs> | undefined;
  /** The runner's address on the underlay. Default: the one that it uses towards the hub. */
  underlayIp?: pulumi.Input<string> | undefined;
  /** The id to get. Default: the one that it had before, else the lowest free one, in the order of the program. */
  runnerId?: pulumi.Input<number> | undefined;
  /** Name of the tunnel device on the runner. Default: the same as on the hub. */
  runnerDevice?: pulumi.Input<string> | undefined;
  /** MTU for this runner alone. Default: the network's. */
  mtu?: pulumi.Input<number> | undefined;
  /** For this runner alone. Default: the network's. */
  masquerade?: pulumi.Input<boolean> | undefined;
  /** Raise it by one to give this runner alone a new key. Default: the network's. */
  keyGeneration?: pulumi.Input<number> | undefined;
  /** Docker on this runner. Default: the network's. */
  docker?: pulumi.Input<DockerOverrideArgs> | undefined;
  /** New reservations on any runner of the network go to other runners. Those that it has stay. Default `false`. */
  cordon?: pulumi.Input<boolean> | undefined;
  /** Adopt existing devices that match the desired state but are in no record. Default `false`. */
  adopt?: pulumi.Input<boolean> | undefined;
  /** Free text for people and tools; kept with the lease. */
  labels?: pulumi.Input<Record<string, pulumi.Input<string>>> | undefined;
}

const RunnerSubnetShape: Shape = {
  "type": "RunnerSubnet",
  "secrets": [
    "connection",
    "hubConnection"
  ],
  "shownParts": {
    "connection": {
      "host": "host",
      "port": "port",
      "user": "user",
      "jumpHost": "jumpHost"
    },
    "hubConnection": {
      "host": "hubHost"
    }
  },
  "inOrder": {
    "by": "network",
    "unless": "runnerId"
  },
  "references": {
    "network": [
      {
        "to": "OverlayNetwork",
        "outputs": [
          "networkName",
          "subnets",
          "tunnel",
          "topology",
          "wireguardPort",
          "keyGeneration",
          "hubInterface",
          "vniBase",
          "vxlanPort",
          "mtu",
          "masquerade",
          "devicePrefix",
          "bridgeName",
          "persist",
          "docker",
          "hostAccess",
          "verify"
        ],
        "inputs": [
          "hubUnderlayIp"
        ],
        "fills": {
          "hubConnection": "hubConnection"
        }
      }
    ]
  },
  "properties": [
    "network",
    "runnerName",
    "connection",
    "hubConnection",
    "underlayIp",
    "runnerId",
    "runnerDevice",
    "mtu",
    "masquerade",
    "keyGeneration",
    "docker",
    "cordon",
    "adopt",
    "labels",
    "networkName",
    "subnet",
    "gateway",
    "hubIp",
    "firstIp",
    "lastIp",
    "usableIps",
    "vni",
    "hubDevice",
    "bridge",
    "dockerNetwork",
    "dockerRange",
    "dockerRange6",
    "subnets",
    "subnet6",
    "gateway6",
    "firstIp6",
    "lastIp6",
    "host",
    "port",
    "user",
    "jumpHost",
    "hubHost",
    "effectiveUnderlayIp",
    "effectiveMtu",
    "publicKey",
    "lastSeen",
    "leaseId",
    "pendingCleanup",
    "drift"
  ]
};

/**
 * A host on an overlay network, with a subnet of its own behind a bridge and a tunnel to the hub.
 *
 * @example
 * ```ts
 * const runner = new overlay.RunnerSubnet("node1", {
 *   network, // in another stack: "training", with hubConnection
 *   connection: { host: "10.0.0.11", privateKey },
 *   cordon: false, // true: new reservations on any runner go to other runners
 * });
 * ```
 */
export class RunnerSubnet extends OverlayResource {
  /** The network that it joins: an OverlayNetwork, or the name of one in another stack. */
  declare readonly network: pulumi.Output<string>;
  /** Name of the runner, unique in the network. Default: the resource's name. */
  declare readonly runnerName: pulumi.Output<string>;
  /** How SSH reaches the runner. */
  declare readonly connection: pulumi.Output<pulumi.Unwrap<ConnectionArgs>>;
  /** How SSH reaches the hub. Default: the network's, where that is a resource. */
  declare readonly hubConnection: pulumi.Output<pulumi.Unwrap<ConnectionArgs>>;
  /** The runner's address on the underlay. Default: the one that it uses towards the hub. */
  declare readonly underlayIp: pulumi.Output<string | undefined>;
  /** Its number in the network. */
  declare readonly runnerId: pulumi.Output<number>;
  /** Tunnel device on the runner. */
  declare readonly runnerDevice: pulumi.Output<string>;
  /** MTU for this runner alone. Default: the network's. */
  declare readonly mtu: pulumi.Output<number | undefined>;
  /** For this runner alone. Default: the network's. */
  declare readonly masquerade: pulumi.Output<boolean | undefined>;
  /** Raise it by one to give this runner alone a new key. Default: the network's. */
  declare readonly keyGeneration: pulumi.Output<number | undefined>;
  /** Docker on this runner. Default: the network's. */
  declare readonly docker: pulumi.Output<pulumi.Unwrap<DockerOverrideArgs> | undefined>;
  /** New reservations on any runner of the network go to other runners. Those that it has stay. */
  declare readonly cordon: pulumi.Output<boolean>;
  /** Adopt existing devices that match the desired state but are in no record. */
  declare readonly adopt: pulumi.Output<boolean>;
  /** Free text for people and tools; kept with the lease. */
  declare readonly labels: pulumi.Output<Record<string, string> | undefined>;
  /** Name of its network. */
  declare readonly networkName: pulumi.Output<string>;
  /** The range of its workloads. */
  declare readonly subnet: pulumi.Output<string>;
  /** Address of its bridge, the gateway of its workloads. */
  declare readonly gateway: pulumi.Output<string>;
  /** The hub's address in this subnet. */
  declare readonly hubIp: pulumi.Output<string>;
  /** First address for workloads. */
  declare readonly firstIp: pulumi.Output<string>;
  /** Last address for workloads; Docker's own range, if there is one, begins after it. */
  declare readonly lastIp: pulumi.Output<string>;
  /** How many addresses workloads can have, without Docker's own range; a string past 2^53. */
  declare readonly usableIps: pulumi.Output<number | string>;
  /** Number of its tunnel. */
  declare readonly vni: pulumi.Output<number>;
  /** Tunnel device on the hub. */
  declare readonly hubDevice: pulumi.Output<string>;
  /** Bridge on the runner. */
  declare readonly bridge: pulumi.Output<string>;
  /** The Docker network for its containers; empty where Docker is off. */
  declare readonly dockerNetwork: pulumi.Output<string>;
  /** The range from which Docker picks addresses; none of them is in the pool. */
  declare readonly dockerRange: pulumi.Output<string | undefined>;
  /** The same in IPv6, in a dual-stack network. */
  declare readonly dockerRange6: pulumi.Output<string | undefined>;
  /** The ranges of its workloads, one for each address family of the network. */
  declare readonly subnets: pulumi.Output<string[]>;
  /** IPv6 range in a dual-stack network. */
  declare readonly subnet6: pulumi.Output<string | undefined>;
  /** IPv6 gateway in a dual-stack network. */
  declare readonly gateway6: pulumi.Output<string | undefined>;
  /** First IPv6 address for workloads. */
  declare readonly firstIp6: pulumi.Output<string | undefined>;
  /** Last IPv6 address for workloads. */
  declare readonly lastIp6: pulumi.Output<string | undefined>;
  /** The runner, as SSH reaches it. */
  declare readonly host: pulumi.Output<string>;
  /** Port of its SSH server, if `connection` names one. */
  declare readonly port: pulumi.Output<number | undefined>;
  /** User to log in as, if `connection` names one. */
  declare readonly user: pulumi.Output<string | undefined>;
  /** Jump host through which it is reached. */
  declare readonly jumpHost: pulumi.Output<string | undefined>;
  /** The hub, as SSH reaches it. */
  declare readonly hubHost: pulumi.Output<string>;
  /** Its address on the underlay. */
  declare readonly effectiveUnderlayIp: pulumi.Output<string>;
  /** MTU for its workloads. */
  declare readonly effectiveMtu: pulumi.Output<number>;
  /** Its public key, in a network with `tunnel: wireguard`. */
  declare readonly publicKey: pulumi.Output<string | undefined>;
  /** When it was last configured, RFC 3339. */
  declare readonly lastSeen: pulumi.Output<string>;
  /** The lease in the pool; renewed by every create. */
  declare readonly leaseId: pulumi.Output<string>;
  /** Hosts that it no longer has, whose items are still to be removed. */
  declare readonly pendingCleanup: pulumi.Output<string[]>;
  /** What refresh found to differ on the hosts; the next up corrects it. */
  declare readonly drift: pulumi.Output<string[]>;

  constructor(name: string, args: RunnerSubnetArgs, opts?: pulumi.CustomResourceOptions) {
    super(RunnerSubnetShape, name, args, opts);
  }
}

/** Inputs of IPPool. */
export interface IPPoolArgs {
  /** Name of the pool, unique in the store. Default: the resource's name. */
  poolName?: pulumi.Input<string> | undefined;
  /** Ranges in one address space must not overlap. Networks are in `default`. Default `default`. */
  addressSpace?: pulumi.Input<string> | undefined;
  /** What it is for. A `vip` pool gives only addresses that are requested themselves; a `nodePort` pool has ports. Default `container`. */
  type?: pulumi.Input<"clusterIP" | "loadBalancer" | "vip" | "nodePort" | "container"> | undefined;
  /** The ranges of the pool, as CIDRs, addresses, or `FIRST-LAST`. Adding some is an update. */
  ranges?: pulumi.Input<pulumi.Input<string>[]> | undefined;
  /** The tenant of the pool. */
  tenant?: pulumi.Input<TenantArgs> | undefined;
  /** Limits in addition to the size of the ranges. */
  quota?: pulumi.Input<QuotaArgs> | undefined;
  /** Instead of ranges: the pool that it is carved from, an IPPool or the name of one in another stack. */
  parent?: IPPool | pulumi.Input<string> | undefined;
  /** Size of the block that is carved from `parent`. */
  prefixLength?: pulumi.Input<number> | undefined;
  /** Ports of a `nodePort` pool. Default 30000-32767. */
  portRange?: pulumi.Input<string> | undefined;
  /** Inside the ranges, or of the ports, and never given out. */
  reserved?: pulumi.Input<pulumi.Input<string>[]> | undefined;
  /** Given only to requests for the address, or the port, itself. */
  staticOnly?: pulumi.Input<pulumi.Input<string>[]> | undefined;
  /** How an address is picked. `hashed`: the same owner gets the same one again; `external`: another system picks, such as a DHCP server, and it is only recorded here. Default `hashed`. */
  allocation?: pulumi.Input<"hashed" | "lowest" | "random" | "external"> | undefined;
  /** false: it gives only addresses that are requested themselves. Default `true`. */
  autoAssign?: pulumi.Input<boolean> | undefined;
  /** Never give .0 and .255, which some old clients refuse. Default `false`. */
  avoidBoundaryIps?: pulumi.Input<boolean> | undefined;
  /** Previews warn from this percentage of held values on. Default `80`. */
  warnAtPercent?: pulumi.Input<number> | undefined;
  /** Free text for people and tools; kept with the lease. */
  labels?: pulumi.Input<Record<string, pulumi.Input<string>>> | undefined;
}

const IPPoolShape: Shape = {
  "type": "IPPool",
  "secrets": [],
  "shownParts": {},
  "references": {
    "parent": [
      {
        "to": "IPPool",
        "outputs": [
          "poolName",
          "addressSpace",
          "type",
          "ranges"
        ],
        "inputs": [
          "tenant",
          "quota"
        ],
        "fills": {}
      }
    ]
  },
  "properties": [
    "poolName",
    "addressSpace",
    "type",
    "ranges",
    "tenant",
    "quota",
    "parent",
    "prefixLength",
    "portRange",
    "reserved",
    "staticOnly",
    "allocation",
    "autoAssign",
    "avoidBoundaryIps",
    "warnAtPercent",
    "labels",
    "capacity",
    "allocated",
    "available",
    "utilizationPercent",
    "warnings",
    "leaseId",
    "pendingCleanup",
    "drift"
  ]
};

/**
 * Addresses or ports to allocate from, for one tenant or for all.
 *
 * @example
 * ```ts
 * const pool = new overlay.IPPool("public", { ranges: ["198.51.100.0/24"], type: "loadBalancer" });
 * ```
 */
export class IPPool extends OverlayResource {
  /** Name of the pool, unique in the store. Default: the resource's name. */
  declare readonly poolName: pulumi.Output<string>;
  /** Ranges in one address space must not overlap. Networks are in `default`. */
  declare readonly addressSpace: pulumi.Output<string>;
  /** What it is for. A `vip` pool gives only addresses that are requested themselves; a `nodePort` pool has ports. */
  declare readonly type: pulumi.Output<"clusterIP" | "loadBalancer" | "vip" | "nodePort" | "container">;
  /** The ranges or ports of the pool, in their shortest form. */
  declare readonly ranges: pulumi.Output<string[]>;
  /** The tenant of the pool. */
  declare readonly tenant: pulumi.Output<pulumi.Unwrap<TenantArgs> | undefined>;
  /** Limits in addition to the size of the ranges. */
  declare readonly quota: pulumi.Output<pulumi.Unwrap<QuotaArgs> | undefined>;
  /** Instead of ranges: the pool that it is carved from, an IPPool or the name of one in another stack. */
  declare readonly parent: pulumi.Output<string | undefined>;
  /** Size of the block that is carved from `parent`. */
  declare readonly prefixLength: pulumi.Output<number | undefined>;
  /** Ports of a `nodePort` pool. Default 30000-32767. */
  declare readonly portRange: pulumi.Output<string | undefined>;
  /** Inside the ranges, or of the ports, and never given out. */
  declare readonly reserved: pulumi.Output<string[] | undefined>;
  /** Given only to requests for the address, or the port, itself. */
  declare readonly staticOnly: pulumi.Output<string[] | undefined>;
  /** How an address is picked. `hashed`: the same owner gets the same one again; `external`: another system picks, such as a DHCP server, and it is only recorded here. */
  declare readonly allocation: pulumi.Output<"hashed" | "lowest" | "random" | "external">;
  /** false: it gives only addresses that are requested themselves. */
  declare readonly autoAssign: pulumi.Output<boolean>;
  /** Never give .0 and .255, which some old clients refuse. */
  declare readonly avoidBoundaryIps: pulumi.Output<boolean>;
  /** Previews warn from this percentage of held values on. */
  declare readonly warnAtPercent: pulumi.Output<number>;
  /** Free text for people and tools; kept with the lease. */
  declare readonly labels: pulumi.Output<Record<string, string> | undefined>;
  /** How many addresses or ports it can allocate; a string past 2^53. */
  declare readonly capacity: pulumi.Output<number | string>;
  /** How many were held at the last up or refresh. */
  declare readonly allocated: pulumi.Output<number | string>;
  /** How many were free then. */
  declare readonly available: pulumi.Output<number | string>;
  /** Percentage of values that were held then. */
  declare readonly utilizationPercent: pulumi.Output<number>;
  /** Warnings, such as that the pool is nearly full. */
  declare readonly warnings: pulumi.Output<string[]>;
  /** The lease in the pool; renewed by every create. */
  declare readonly leaseId: pulumi.Output<string>;
  /** Hosts that it no longer has, whose items are still to be removed. */
  declare readonly pendingCleanup: pulumi.Output<string[]>;
  /** What refresh found to differ on the hosts; the next up corrects it. */
  declare readonly drift: pulumi.Output<string[]>;

  constructor(name: string, args: IPPoolArgs, opts?: pulumi.CustomResourceOptions) {
    super(IPPoolShape, name, args, opts);
  }
}

/** Inputs of every IPReservation. */
export interface IPReservationCommonArgs {
  /** With `network`, the runner for a new reservation: with the most free addresses, the fullest that has room (`packed`), or the one with the fewest reservations (`spread`). Default `mostFree`. */
  placement?: pulumi.Input<"mostFree" | "packed" | "spread"> | undefined;
  /** The tenant; a tenant's pool serves that tenant only. With `type` and without `pool`: in the tenant's own pool of that type. Default: the provider's setting `tenant`. */
  tenant?: pulumi.Input<TenantArgs> | undefined;
  /** The address to get. Default: the pool picks. */
  ip?: pulumi.Input<string> | undefined;
  /** In a dual-stack network, the IPv6 address to get. Default: at the same offset in its subnet as `ip`. */
  ip6?: pulumi.Input<string> | undefined;
  /** In a `nodePort` pool, the port to get. */
  port?: pulumi.Input<number> | undefined;
  /** What it is for. A VM also gets a MAC and a tap. Default `container`. */
  kind?: pulumi.Input<"container" | "vm"> | undefined;
  /** Seconds for which it may stay unused, 60 to 86400; true: 300, or 1800 for a VM. Default: held until the resource is deleted. */
  ttl?: pulumi.Input<true | number> | undefined;
  /** The container or VM that uses it; it does not expire then. One reservation for each on a network. */
  usedBy?: pulumi.Input<string> | undefined;
  /** Delete it even while it is used. Default `false`. */
  force?: pulumi.Input<boolean> | undefined;
  /** Free text for people and tools; kept with the lease. */
  labels?: pulumi.Input<Record<string, pulumi.Input<string>>> | undefined;
}

/** Inputs of IPReservation that are given with `runner`. */
export interface IPReservationWithRunnerArgs extends IPReservationCommonArgs {
  /** On this runner: a RunnerSubnet, or `NETWORK/RUNNER` for one in another stack. */
  runner: RunnerSubnet | pulumi.Input<string>;
  network?: undefined;
  pool?: undefined;
  type?: undefined;
}

/** Inputs of IPReservation that are given with `network`. */
export interface IPReservationWithNetworkArgs extends IPReservationCommonArgs {
  /** On any runner of this network: an OverlayNetwork, or the name of one in another stack. */
  network: OverlayNetwork | pulumi.Input<string>;
  runner?: undefined;
  pool?: undefined;
  type?: undefined;
}

/** Inputs of IPReservation that are given with `pool`. */
export interface IPReservationWithPoolArgs extends IPReservationCommonArgs {
  /** In this pool: an IPPool, or the name of one in another stack. */
  pool: IPPool | pulumi.Input<string>;
  runner?: undefined;
  network?: undefined;
  type?: undefined;
}

/** Inputs of IPReservation that are given with `type`. */
export interface IPReservationWithTypeArgs extends IPReservationCommonArgs {
  /** Type of the tenant's own pool, such as `clusterIP` or `loadBalancer`. */
  type: pulumi.Input<string>;
  runner?: undefined;
  network?: undefined;
  pool?: undefined;
}

/** Inputs of IPReservation: exactly one of `runner`, `network`, `pool`, `type` must be given. */
export type IPReservationArgs = IPReservationWithRunnerArgs | IPReservationWithNetworkArgs | IPReservationWithPoolArgs | IPReservationWithTypeArgs;

const IPReservationShape: Shape = {
  "type": "IPReservation",
  "secrets": [
    "token"
  ],
  "shownParts": {},
  "references": {
    "runner": [
      {
        "to": "RunnerSubnet",
        "outputs": [
          "networkName",
          "runnerName",
          "subnets",
          "dockerNetwork"
        ],
        "inputs": [],
        "fills": {}
      }
    ],
    "network": [
      {
        "to": "OverlayNetwork",
        "outputs": [
          "networkName"
        ],
        "inputs": [],
        "fills": {}
      }
    ],
    "pool": [
      {
        "to": "IPPool",
        "outputs": [
          "poolName",
          "addressSpace",
          "type",
          "ranges"
        ],
        "inputs": [
          "tenant",
          "quota"
        ],
        "fills": {}
      }
    ]
  },
  "properties": [
    "runner",
    "network",
    "placement",
    "pool",
    "tenant",
    "type",
    "ip",
    "ip6",
    "port",
    "kind",
    "ttl",
    "usedBy",
    "force",
    "labels",
    "cidr",
    "gateway",
    "runnerName",
    "dockerRunArgs",
    "mac",
    "tapDevice",
    "cidr6",
    "gateway6",
    "token",
    "state",
    "expiresAt",
    "leaseId",
    "pendingCleanup",
    "drift"
  ]
};

/**
 * An address that is known before its workload exists, and kept across the workload's restarts.
 *
 * @example
 * ```ts
 * const web = new overlay.IPReservation("web", { runner, usedBy: "web" });
 * export const command = pulumi.interpolate`docker run --network pulumi-overlay --ip ${web.ip} nginx`;
 * ```
 */
export class IPReservation extends OverlayResource {
  /** On this runner: a RunnerSubnet, or `NETWORK/RUNNER` for one in another stack. */
  declare readonly runner: pulumi.Output<string | undefined>;
  /** On any runner of this network: an OverlayNetwork, or the name of one in another stack. */
  declare readonly network: pulumi.Output<string | undefined>;
  /** With `network`, the runner for a new reservation: with the most free addresses, the fullest that has room (`packed`), or the one with the fewest reservations (`spread`). */
  declare readonly placement: pulumi.Output<"mostFree" | "packed" | "spread">;
  /** In this pool: an IPPool, or the name of one in another stack. */
  declare readonly pool: pulumi.Output<string | undefined>;
  /** The tenant; a tenant's pool serves that tenant only. With `type` and without `pool`: in the tenant's own pool of that type. Default: the provider's setting `tenant`. */
  declare readonly tenant: pulumi.Output<pulumi.Unwrap<TenantArgs> | undefined>;
  /** Type of the tenant's own pool, such as `clusterIP` or `loadBalancer`. */
  declare readonly type: pulumi.Output<string | undefined>;
  /** The address; in a `nodePort` pool, the port. */
  declare readonly ip: pulumi.Output<string>;
  /** The IPv6 address in a dual-stack network. */
  declare readonly ip6: pulumi.Output<string | undefined>;
  /** The port, in a `nodePort` pool. */
  declare readonly port: pulumi.Output<number | undefined>;
  /** What it is for. A VM also gets a MAC and a tap. */
  declare readonly kind: pulumi.Output<"container" | "vm">;
  /** Seconds for which it may stay unused, 60 to 86400; true: 300, or 1800 for a VM. Default: held until the resource is deleted. */
  declare readonly ttl: pulumi.Output<true | number | undefined>;
  /** The container or VM that uses it; it does not expire then. One reservation for each on a network. */
  declare readonly usedBy: pulumi.Output<string | undefined>;
  /** Delete it even while it is used. */
  declare readonly force: pulumi.Output<boolean>;
  /** Free text for people and tools; kept with the lease. */
  declare readonly labels: pulumi.Output<Record<string, string> | undefined>;
  /** The address with the prefix length of its subnet. */
  declare readonly cidr: pulumi.Output<string>;
  /** Gateway of the subnet, on a runner. */
  declare readonly gateway: pulumi.Output<string | undefined>;
  /** The runner on which it is. */
  declare readonly runnerName: pulumi.Output<string | undefined>;
  /** For `docker run` on that runner: `--network … --ip …`. */
  declare readonly dockerRunArgs: pulumi.Output<string | undefined>;
  /** MAC address for a VM; always the same for this address. */
  declare readonly mac: pulumi.Output<string | undefined>;
  /** Name for the tap device of a VM. */
  declare readonly tapDevice: pulumi.Output<string | undefined>;
  /** The IPv6 address with the prefix length of its subnet. */
  declare readonly cidr6: pulumi.Output<string | undefined>;
  /** IPv6 gateway of the subnet. */
  declare readonly gateway6: pulumi.Output<string | undefined>;
  /** Permits its bearer to use, validate or release the address with `overlayctl ip`. */
  declare readonly token: pulumi.Output<string>;
  /** `reserved`, or `used` once a workload uses it. */
  declare readonly state: pulumi.Output<string>;
  /** When it expires unless it is used, RFC 3339. */
  declare readonly expiresAt: pulumi.Output<string | undefined>;
  /** The lease in the pool; renewed by every create. */
  declare readonly leaseId: pulumi.Output<string>;
  /** Hosts that it no longer has, whose items are still to be removed. */
  declare readonly pendingCleanup: pulumi.Output<string[]>;
  /** What refresh found to differ on the hosts; the next up corrects it. */
  declare readonly drift: pulumi.Output<string[]>;

  constructor(name: string, args: IPReservationArgs, opts?: pulumi.CustomResourceOptions) {
    super(IPReservationShape, name, args, opts);
  }
}

/** Inputs of StaticIP. */
export interface StaticIPArgs {
  /** Where the address comes from: an IPPool, or the name of one in another stack. */
  pool: IPPool | pulumi.Input<string>;
  /** The tenant; a tenant's pool serves that tenant only. Default: the provider's setting `tenant`. */
  tenant?: pulumi.Input<TenantArgs> | undefined;
  /** Part of `names` if there is no sharing key. Default: the resource's name. */
  staticIpName?: pulumi.Input<string> | undefined;
  /** The address to get. Default: the pool picks. */
  ip?: pulumi.Input<string> | undefined;
  /** The host that carries it: an OverlayNetwork (its hub) or a RunnerSubnet; from another stack by name, `NETWORK` or `NETWORK/RUNNER`. A change moves it. */
  attach: OverlayNetwork | RunnerSubnet | pulumi.Input<string>;
  /** How SSH reaches that host. Default: as `attach` says, where that is a resource. */
  connection?: pulumi.Input<ConnectionArgs> | undefined;
  /** Resources of one tenant with the same key share one address, each with ports of its own. None: the address is exclusive. */
  sharingKey?: pulumi.Input<string> | undefined;
  /** If another resource of the same tenant, in any stack, holds the address or a port: fail, or take it. Resources without a tenant count as one tenant. Default `fail`. */
  onConflict?: pulumi.Input<"fail" | "take"> | undefined;
  /** If another resource with the same sharing key has a port of `forwards`: fail, or get another address of the pool under that key. A later resource gets the lowest address of the key where its ports are free. Default `fail`. */
  onPortConflict?: pulumi.Input<"fail" | "anotherAddress"> | undefined;
  /** Ports that are forwarded to workloads. */
  forwards?: pulumi.Input<pulumi.Input<ForwardArgs>[]> | undefined;
  /** Workloads see the addresses of clients outside, instead of the carrier's. On a hub it needs `runners`. Default `false`. */
  preserveClientIp?: pulumi.Input<boolean> | undefined;
  /** With preserveClientIp on a hub: the runners of the forwards' targets, which send replies through the hub. */
  runners?: (RunnerSubnet | pulumi.Input<string>)[] | undefined;
  /** How SSH reaches `runners`, in their order. Default: as they say, where they are resources. */
  runnerConnections?: pulumi.Input<pulumi.Input<ConnectionArgs>[]> | undefined;
  /** The hosts restore it after a boot, with a systemd unit. Default `true`. */
  persist?: pulumi.Input<boolean> | undefined;
  /** Free text for people and tools; kept with the lease. */
  labels?: pulumi.Input<Record<string, pulumi.Input<string>>> | undefined;
}

const StaticIPShape: Shape = {
  "type": "StaticIP",
  "secrets": [
    "connection",
    "runnerConnections"
  ],
  "shownParts": {
    "connection": {
      "host": "host",
      "port": "port",
      "user": "user",
      "jumpHost": "jumpHost"
    },
    "runnerConnections": {
      "host": "runnerHosts"
    }
  },
  "references": {
    "pool": [
      {
        "to": "IPPool",
        "outputs": [
          "poolName",
          "addressSpace",
          "type",
          "ranges"
        ],
        "inputs": [
          "tenant",
          "quota"
        ],
        "fills": {}
      }
    ],
    "attach": [
      {
        "to": "OverlayNetwork",
        "outputs": [
          "networkName",
          "subnets",
          "bridgeName"
        ],
        "inputs": [],
        "fills": {
          "connection": "hubConnection"
        }
      },
      {
        "to": "RunnerSubnet",
        "outputs": [
          "networkName",
          "runnerName",
          "subnets"
        ],
        "inputs": [],
        "fills": {
          "connection": "connection"
        }
      }
    ],
    "runners": [
      {
        "to": "RunnerSubnet",
        "outputs": [
          "networkName",
          "runnerName",
          "subnets"
        ],
        "inputs": [],
        "fills": {
          "runnerConnections": "connection"
        }
      }
    ]
  },
  "properties": [
    "pool",
    "tenant",
    "staticIpName",
    "ip",
    "attach",
    "connection",
    "sharingKey",
    "onConflict",
    "onPortConflict",
    "forwards",
    "preserveClientIp",
    "runners",
    "runnerConnections",
    "persist",
    "labels",
    "names",
    "host",
    "port",
    "user",
    "jumpHost",
    "runnerHosts",
    "sharedWith",
    "leaseId",
    "pendingCleanup",
    "drift"
  ]
};

/**
 * An address from a pool, on a hub or a runner, that forwards ports to workloads.
 *
 * @example
 * ```ts
 * const front = new overlay.StaticIP("front", {
 *   pool,
 *   attach: network, // the hub carries the address
 *   forwards: [{ port: 443, to: web.ip, toPort: 8443 }],
 * });
 * export const address = front.ip;
 * ```
 */
export class StaticIP extends OverlayResource {
  /** Where the address comes from: an IPPool, or the name of one in another stack. */
  declare readonly pool: pulumi.Output<string>;
  /** The tenant; a tenant's pool serves that tenant only. Default: the provider's setting `tenant`. */
  declare readonly tenant: pulumi.Output<pulumi.Unwrap<TenantArgs> | undefined>;
  /** Part of `names` if there is no sharing key. Default: the resource's name. */
  declare readonly staticIpName: pulumi.Output<string>;
  /** The address. */
  declare readonly ip: pulumi.Output<string>;
  /** The host that carries it: an OverlayNetwork (its hub) or a RunnerSubnet; from another stack by name, `NETWORK` or `NETWORK/RUNNER`. A change moves it. */
  declare readonly attach: pulumi.Output<string>;
  /** How SSH reaches that host. Default: as `attach` says, where that is a resource. */
  declare readonly connection: pulumi.Output<pulumi.Unwrap<ConnectionArgs>>;
  /** Resources of one tenant with the same key share one address, each with ports of its own. None: the address is exclusive. */
  declare readonly sharingKey: pulumi.Output<string | undefined>;
  /** If another resource of the same tenant, in any stack, holds the address or a port: fail, or take it. Resources without a tenant count as one tenant. */
  declare readonly onConflict: pulumi.Output<"fail" | "take">;
  /** If another resource with the same sharing key has a port of `forwards`: fail, or get another address of the pool under that key. A later resource gets the lowest address of the key where its ports are free. */
  declare readonly onPortConflict: pulumi.Output<"fail" | "anotherAddress">;
  /** Ports that are forwarded to workloads. */
  declare readonly forwards: pulumi.Output<pulumi.Unwrap<ForwardArgs>[]>;
  /** Workloads see the addresses of clients outside, instead of the carrier's. On a hub it needs `runners`. */
  declare readonly preserveClientIp: pulumi.Output<boolean>;
  /** With preserveClientIp on a hub: the runners of the forwards' targets, which send replies through the hub. */
  declare readonly runners: pulumi.Output<string[]>;
  /** How SSH reaches `runners`, in their order. Default: as they say, where they are resources. */
  declare readonly runnerConnections: pulumi.Output<pulumi.Unwrap<ConnectionArgs>[]>;
  /** The hosts restore it after a boot, with a systemd unit. */
  declare readonly persist: pulumi.Output<boolean>;
  /** Free text for people and tools; kept with the lease. */
  declare readonly labels: pulumi.Output<Record<string, string> | undefined>;
  /** A name for each forward, `KEY-PROTOCOL-PORT`, the same in every deployment. */
  declare readonly names: pulumi.Output<string[] | undefined>;
  /** The host that carries it, as SSH reaches it. */
  declare readonly host: pulumi.Output<string>;
  /** Port of its SSH server, if `connection` names one. */
  declare readonly port: pulumi.Output<number | undefined>;
  /** User to log in as, if `connection` names one. */
  declare readonly user: pulumi.Output<string | undefined>;
  /** Jump host through which it is reached. */
  declare readonly jumpHost: pulumi.Output<string | undefined>;
  /** The hosts of `runners`, as SSH reaches them. */
  declare readonly runnerHosts: pulumi.Output<string[]>;
  /** Other owners with forwards on the address. */
  declare readonly sharedWith: pulumi.Output<string[]>;
  /** The lease in the pool; renewed by every create. */
  declare readonly leaseId: pulumi.Output<string>;
  /** Hosts that it no longer has, whose items are still to be removed. */
  declare readonly pendingCleanup: pulumi.Output<string[]>;
  /** What refresh found to differ on the hosts; the next up corrects it. */
  declare readonly drift: pulumi.Output<string[]>;

  constructor(name: string, args: StaticIPArgs, opts?: pulumi.CustomResourceOptions) {
    super(StaticIPShape, name, args, opts);
  }
}
