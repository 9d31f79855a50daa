import type { Item, Link } from "../../provider/network/model/items";

/** What each kind of item does with each fault, as literals. A kind or a fault without an entry does not compile. */

export const FAULTS = ["missing", "changed", "duplicated", "foreign twin", "wrong mode"] as const;
type Fault = (typeof FAULTS)[number];

export interface Truth {
  /** Makes the fault on a host that has the item. */
  spoil: string;
  /** What refresh names. */
  refresh: string[];
  /** With what up refuses; absent: it repairs, and refresh then names `remains`. */
  refused?: RegExp;
  remains?: string[];
  /** With what delete refuses; absent: it removes the item. */
  kept?: RegExp;
  /** What `look` prints after the delete, if something of another program stays. */
  stays?: string;
  /** Takes away what up and delete leave alone. */
  undo?: string;
}

/** The tool that a removal needs, and the calls of it that fail. */
interface Tool {
  name: string;
  calls: string;
}

export interface Kind<T extends Item> {
  /** dockerd runs only on r1. Default: the hub. */
  host?: "r1";
  /** Items that it needs. */
  needs: Item[];
  item: T;
  /** Prints the objects of this name, and nothing without one. */
  look: string;
  /** Makes an object of another program in its place, before it is created, and takes it away. */
  twin: { make: string; undo: string; refused?: RegExp } | string;
  /** Text: why the fault cannot occur. */
  faults: Record<Fault, Truth | string>;
  /** Text: why a removal cannot fail. */
  notRemovable: Tool | string;
}

const MODE = "only files have a mode";
const IP_BATCH: Tool = { name: "ip", calls: "-force -batch -" };
const RESTORE: Tool = { name: "iptables-restore", calls: "--noflush*" };

const DOCKER_BRIDGE = "com.docker.network.bridge";
const bridge: Item = { kind: "link", name: "truth0", type: "bridge", mac: "02:00:00:00:00:01", mtu: 1400 };
const address: Item = { kind: "address", dev: "truth0", address: "10.77.0.1/24" };
const place = { family: 4, table: "filter", chain: "OVERLAY-TRUTH" } as const;
const chain: Item = { kind: "chain", ...place };
const OTHER_CHAIN_RULE = "-s 203.0.113.7/32 -j DROP";

const KEY_FILE = "/var/lib/overlay/training/tunnel.key";
const key: Item = { kind: "key", path: KEY_FILE };
const device: Item = {
  kind: "link",
  name: "truthW0",
  type: "wireguard",
  mtu: 1420,
  wireguard: { port: 51820, keyFile: KEY_FILE, local: "10.254.0.1" },
};
const meshDevice: Link = {
  kind: "link",
  name: "truthMV",
  type: "vxlan",
  mac: "02:00:00:00:00:01",
  mtu: 1400,
  vxlan: { vni: 77, port: 4777, remote: "", local: "10.254.0.1" },
};
const foreignFdb =
  "foreign FDB entry '02:00:00:00:00:03 dev truthMV dst 10.254.1.2' sends frames to 02:00:00:00:00:03 of truthMV elsewhere; it is never removed by us: remove it with `bridge fdb del 02:00:00:00:00:03 dev truthMV dst 10.254.1.2`";
const PEER = "wu7/dktMz7fDE8s7S57fPOF82+A98JWPK8UA5fFqDyM=";
const THEIRS = "TI7Hy8FqtCtl4iS0zImetgZOQmCq4rAXk858fgWlUkM=";
const foreignPeer = (ips: string): string =>
  `foreign peer ${THEIRS} of truthW0 can send from ${ips}; it is never removed by us: remove it with \`wg set truthW0 peer ${THEIRS} remove\``;

/** Text: why the kind is not tried here, and which test has it. */
export const KINDS: { [K in Item["kind"]]: Kind<Extract<Item, { kind: K }>> | string } = {
  service: "needs systemd: test/vm/machines.test.ts",
  docker: {
    host: "r1",
    needs: [bridge, address],
    item: {
      kind: "docker",
      name: "truth",
      bridge: "truth0",
      mtu: 1400,
      subnets: [{ subnet: "10.77.0.0/24", gateway: "10.77.0.1", hub: "10.77.0.254", range: "10.77.0.128/26" }],
      required: true,
    },
    look: "docker network ls --filter name=truth --format '{{.Name}} {{.Driver}}'",
    twin: {
      make: "docker network create --subnet 10.99.0.0/24 truth",
      undo: "docker network rm truth",
      refused: /^DOCKER_NETWORK_FOREIGN/,
    },
    faults: {
      missing: { spoil: "docker network rm truth", refresh: ["docker network truth: missing"] },
      changed: {
        spoil: `docker network rm truth; docker network create --subnet 10.77.0.0/24 --gateway 10.77.0.1 --aux-address hub=10.77.0.254 --ip-range 10.77.0.128/26 -o ${DOCKER_BRIDGE}.name=truth0 -o ${DOCKER_BRIDGE}.enable_ip_masquerade=false -o com.docker.network.driver.mtu=1300 truth`,
        refresh: ["docker network truth: MTU is 1300, should be 1400"],
      },
      duplicated: "dockerd refuses a second network of a name",
      "foreign twin": {
        spoil: "docker network rm truth; docker network create --subnet 10.99.0.0/24 truth",
        refresh: [
          "docker network truth: bridge is none, should be truth0, MTU is none, should be 1400, masquerade is none, should be false, subnets is 10.99.0.0/24 (gateway undefined, hub none, range none), should be 10.77.0.0/24 (gateway 10.77.0.1, hub 10.77.0.254, range 10.77.0.128/26)",
        ],
        refused: /^DOCKER_NETWORK_FOREIGN/,
        stays: "truth bridge",
        undo: "docker network rm truth",
      },
      "wrong mode": MODE,
    },
    notRemovable: { name: "docker", calls: "network rm truth" },
  },
  zone: "needs firewalld: test/vm/firewalls.test.ts",
  file: {
    needs: [],
    item: { kind: "file", path: "/etc/overlay-truth", content: "planned\n" },
    look: "cat /etc/overlay-truth 2>/dev/null || :",
    twin: { make: "echo theirs >/etc/overlay-truth", undo: "rm /etc/overlay-truth", refused: /^FILE_FOREIGN/ },
    faults: {
      missing: { spoil: "rm /etc/overlay-truth", refresh: ["file /etc/overlay-truth: missing"] },
      changed: {
        spoil: "echo edited >/etc/overlay-truth",
        refresh: ["file /etc/overlay-truth: its content is not the planned one"],
      },
      duplicated: "a path has one file",
      "foreign twin": "a file on record is ours whatever its content: see changed",
      "wrong mode": {
        spoil: "chmod 666 /etc/overlay-truth",
        refresh: ["file /etc/overlay-truth: mode is 666, should be 644"],
      },
    },
    notRemovable: { name: "rm", calls: "-f /etc/*" },
  },
  sysctl: {
    needs: [],
    item: { kind: "sysctl", key: "net.ipv4.ip_forward", value: "1" },
    look: "grep 1 /proc/sys/net/ipv4/ip_forward || :",
    twin: "a setting has one value",
    faults: {
      missing: "the setting is part of the kernel",
      changed: {
        spoil: "echo 0 >/proc/sys/net/ipv4/ip_forward",
        refresh: ["sysctl net.ipv4.ip_forward: value is 0, should be 1"],
      },
      duplicated: "a setting has one value",
      "foreign twin": "a setting has one value",
      "wrong mode": {
        spoil: "chmod 666 /var/lib/overlay/former/net.ipv4.ip_forward",
        refresh: ["sysctl net.ipv4.ip_forward: mode is 666, should be 644, of its saved former value"],
      },
    },
    notRemovable: "root can always write its former value",
  },
  link: {
    needs: [],
    item: { kind: "link", name: "truth0", type: "bridge", mac: "02:00:00:00:00:01", mtu: 1400 },
    look: "ip -o link show truth0 2>/dev/null | grep -o 'link/ether [^ ]*' || :",
    twin: {
      make: "ip link add truth0 address 02:00:00:00:00:77 type bridge",
      undo: "ip link del truth0",
      refused: /^DEVICE_FOREIGN/,
    },
    faults: {
      missing: { spoil: "ip link del truth0", refresh: ["link truth0: missing"] },
      changed: { spoil: "ip link set truth0 mtu 1300", refresh: ["link truth0: MTU is 1300, should be 1400"] },
      duplicated: "the kernel allows one device of a name",
      "foreign twin": {
        spoil: "ip link del truth0; ip link add truth0 address 02:00:00:00:00:77 type veth peer name truth1",
        refresh: [
          "foreign device truth0 (veth, MAC 02:00:00:00:00:77) has a name of ours, but another program made it: up will refuse with DEVICE_FOREIGN until it is removed (`ip link del truth0`)",
        ],
        refused: /^DEVICE_FOREIGN/,
        stays: "link/ether 02:00:00:00:00:77",
        undo: "ip link del truth0",
      },
      "wrong mode": MODE,
    },
    notRemovable: IP_BATCH,
  },
  key: {
    needs: [],
    item: { kind: "key", path: KEY_FILE },
    look: `stat -c %a ${KEY_FILE} 2>/dev/null || :`,
    twin: "what is in the folder of our records is ours",
    faults: {
      missing: { spoil: `rm ${KEY_FILE}`, refresh: [`key ${KEY_FILE}: missing`] },
      changed: "another key is the host's new one, and its device has the old: wireguard.test.ts",
      duplicated: "a path has one file",
      "foreign twin": "what is in the folder of our records is ours",
      "wrong mode": { spoil: `chmod 644 ${KEY_FILE}`, refresh: [`key ${KEY_FILE}: mode is 644, should be 600`] },
    },
    notRemovable: { name: "rm", calls: `-f ${KEY_FILE}` },
  },
  wgpeer: {
    needs: [key, device],
    item: {
      kind: "wgpeer",
      dev: "truthW0",
      publicKey: PEER,
      allowedIps: ["10.77.1.0/24", "fd00:77::/64"],
      endpoint: { ip: "10.254.1.1", port: 51820 },
      keepalive: 25,
    },
    look: "wg show truthW0 allowed-ips 2>/dev/null || :",
    twin: "the device is ours, and so is every peer in our records",
    faults: {
      missing: { spoil: `wg set truthW0 peer ${PEER} remove`, refresh: [`peer ${PEER} of truthW0: missing`] },
      changed: {
        spoil: `wg genpsk >/run/psk; wg set truthW0 peer ${PEER} persistent-keepalive off allowed-ips 10.77.2.0/24 preshared-key /run/psk`,
        refresh: [
          `peer ${PEER} of truthW0: allowed IPs is 10.77.2.0/24, should be 10.77.1.0/24,fd00:77::/64, keepalive is 0, should be 25, it has a preshared key, and should have none`,
        ],
      },
      duplicated: "a device has one peer of a key",
      "foreign twin": {
        spoil: `wg set truthW0 peer ${THEIRS} allowed-ips 10.77.1.0/24`,
        refresh: [
          foreignPeer("10.77.1.0/24"),
          `peer ${PEER} of truthW0: allowed IPs is fd00:77::/64, should be 10.77.1.0/24,fd00:77::/64`,
        ],
        remains: [foreignPeer("no address")],
        undo: `[ ! -e /sys/class/net/truthW0 ] || wg set truthW0 peer ${THEIRS} remove`,
      },
      "wrong mode": MODE,
    },
    notRemovable: "only a device that is gone keeps `wg` from it, and takes its peers along",
  },
  vxpeer: {
    needs: [meshDevice],
    item: { kind: "vxpeer", dev: "truthMV", mac: "02:00:00:00:00:02", ip: "fe80::1:2", remote: "10.254.1.1" },
    look: "{ bridge fdb show dev truthMV | grep 02:; ip neigh show dev truthMV nud permanent; } 2>/dev/null || :",
    twin: "the device is ours, and so is every peer in our records",
    faults: {
      missing: {
        spoil: "bridge fdb del 02:00:00:00:00:02 dev truthMV; ip neigh del fe80::1:2 dev truthMV",
        refresh: ["peer fe80::1:2 of truthMV: missing"],
      },
      changed: {
        spoil: "bridge fdb replace 02:00:00:00:00:02 dev truthMV dst 10.254.1.2; ip neigh del fe80::1:2 dev truthMV",
        refresh: [
          "peer fe80::1:2 of truthMV: FDB entry is dst 10.254.1.2, should be dst 10.254.1.1, neighbour entry is none, should be 02:00:00:00:00:02",
        ],
      },
      duplicated: "the kernel allows one entry of a device and an address",
      "foreign twin": {
        spoil: "bridge fdb add 02:00:00:00:00:03 dev truthMV dst 10.254.1.2",
        refresh: [foreignFdb],
        remains: [foreignFdb],
        undo: "[ ! -e /sys/class/net/truthMV ] || bridge fdb del 02:00:00:00:00:03 dev truthMV",
      },
      "wrong mode": MODE,
    },
    notRemovable: "only a device that is gone keeps `bridge` from it, and takes its peers along",
  },
  neighbour: {
    needs: [bridge],
    item: { kind: "neighbour", dev: "truth0", ip: "10.77.0.254" },
    look: "ip neigh show proxy",
    twin: "an entry has only a device and an address",
    faults: {
      missing: {
        spoil: "ip neigh del proxy 10.77.0.254 dev truth0",
        refresh: ["proxy neighbour 10.77.0.254 on truth0: missing"],
      },
      changed: "an entry has only a device and an address",
      duplicated: "the kernel allows one entry of a device and an address",
      "foreign twin": "an entry has only a device and an address",
      "wrong mode": MODE,
    },
    notRemovable: IP_BATCH,
  },
  address: {
    needs: [bridge],
    item: { kind: "address", dev: "truth0", address: "10.77.0.1/24" },
    look: "ip -o -4 addr | grep -o '10.77.0.1/[0-9]*' || :",
    twin: {
      make: "ip link add theirs type bridge; ip addr add 10.77.0.1/24 dev theirs",
      undo: "ip link del theirs",
      refused: /^IP_IN_USE/,
    },
    faults: {
      missing: {
        spoil: "ip addr del 10.77.0.1/24 dev truth0",
        refresh: ["address 10.77.0.1/24 on truth0: missing"],
      },
      changed: {
        spoil: "ip addr del 10.77.0.1/24 dev truth0; ip addr add 10.77.0.1/16 dev truth0",
        refresh: ["address 10.77.0.1/24 on truth0: truth0 has it only as 10.77.0.1/16"],
      },
      duplicated: {
        spoil: "ip addr add 10.77.0.1/16 dev truth0",
        refresh: ["address 10.77.0.1/24 on truth0: truth0 has it also as 10.77.0.1/16"],
      },
      "foreign twin": {
        spoil:
          "ip link add theirs type bridge; ip addr del 10.77.0.1/24 dev truth0; ip addr add 10.77.0.1/24 dev theirs",
        refresh: ["address 10.77.0.1/24 on truth0: missing"],
        refused: /^IP_IN_USE/,
        stays: "10.77.0.1/24",
        undo: "ip link del theirs",
      },
      "wrong mode": MODE,
    },
    notRemovable: IP_BATCH,
  },
  route: {
    needs: [bridge, address],
    item: { kind: "route", family: 4, dst: "10.78.0.0/16", via: "10.77.0.2", dev: "truth0" },
    look: "ip route show 10.78.0.0/16",
    twin: {
      make: "ip route add 10.78.0.0/16 dev lo proto static",
      undo: "ip route del 10.78.0.0/16",
      refused: /^ROUTE_OVERLAP/,
    },
    faults: {
      missing: { spoil: "ip route del 10.78.0.0/16", refresh: ["route 10.78.0.0/16: missing"] },
      changed: {
        spoil: "ip route replace 10.78.0.0/16 via 10.77.0.3 dev truth0 proto 183",
        refresh: ["route 10.78.0.0/16: via is 10.77.0.3, should be 10.77.0.2"],
      },
      duplicated: "the kernel allows one route of a range and metric",
      "foreign twin": {
        spoil: "ip route replace 10.78.0.0/16 via 10.77.0.3 dev truth0 proto static",
        refresh: [
          "foreign route '10.78.0.0/16 via 10.77.0.3 dev truth0 proto static' takes packets of 10.78.0.0/16 away from the overlay; it is never removed by us: remove it with `ip route del 10.78.0.0/16 via 10.77.0.3 dev truth0 proto static`",
          "route 10.78.0.0/16: missing",
        ],
        refused: /^ROUTE_OVERLAP/,
        undo: "ip route del 10.78.0.0/16 2>/dev/null || :",
      },
      "wrong mode": MODE,
    },
    notRemovable: IP_BATCH,
  },
  policy: {
    needs: [],
    item: { kind: "policy", family: 4, from: "10.77.0.0/24", mark: "0x10000000/0x10000000", table: 1830 },
    look: "ip rule show table 1830 2>/dev/null",
    twin: "rules of other programs stay beside ours",
    faults: {
      missing: {
        spoil: "ip rule del priority 18300",
        refresh: ["policy from 10.77.0.0/24 mark 0x10000000/0x10000000 to table 1830: missing"],
      },
      changed: "each of its values is part of what it is",
      duplicated: "the kernel allows one rule of a form",
      "foreign twin": "rules of other programs stay beside ours",
      "wrong mode": MODE,
    },
    notRemovable: { name: "ip", calls: "-4 rule del*" },
  },
  chain: {
    needs: [],
    item: chain,
    look: "iptables -S OVERLAY-TRUTH 2>/dev/null || :",
    twin: { make: "iptables -N OVERLAY-TRUTH", undo: ":" },
    faults: {
      missing: { spoil: "iptables -X OVERLAY-TRUTH", refresh: ["chain OVERLAY-TRUTH (IPv4 filter): missing"] },
      changed: "it has only a name",
      duplicated: "a table has one chain of a name",
      "foreign twin": {
        spoil: `iptables -A OVERLAY-TRUTH ${OTHER_CHAIN_RULE}`,
        refresh: [
          `foreign rule '${OTHER_CHAIN_RULE}' in OVERLAY-TRUTH (IPv4 filter): remove it with \`iptables -t filter -D OVERLAY-TRUTH ${OTHER_CHAIN_RULE}\``,
        ],
        remains: [
          `foreign rule '${OTHER_CHAIN_RULE}' in OVERLAY-TRUTH (IPv4 filter): remove it with \`iptables -t filter -D OVERLAY-TRUTH ${OTHER_CHAIN_RULE}\``,
        ],
        kept: /^RULE_FOREIGN/,
        undo: "iptables -F OVERLAY-TRUTH",
      },
      "wrong mode": MODE,
    },
    notRemovable: RESTORE,
  },
  rule: {
    needs: [chain],
    item: { kind: "rule", ...place, rule: "-s 10.79.0.0/16 -j ACCEPT" },
    look: "iptables-save | grep 10.79.0.0 || :",
    twin: { make: "iptables -N OVERLAY-TRUTH; iptables -A OVERLAY-TRUTH -s 10.79.0.0/16 -j ACCEPT", undo: ":" },
    faults: {
      missing: {
        spoil: "iptables -D OVERLAY-TRUTH -s 10.79.0.0/16 -j ACCEPT",
        refresh: ["rule '-s 10.79.0.0/16 -j ACCEPT' in OVERLAY-TRUTH (IPv4 filter): missing"],
      },
      changed: {
        spoil: "iptables -R OVERLAY-TRUTH 1 -s 10.79.0.0/16 -j DROP",
        refresh: [
          "foreign rule '-s 10.79.0.0/16 -j DROP' in OVERLAY-TRUTH (IPv4 filter): remove it with `iptables -t filter -D OVERLAY-TRUTH -s 10.79.0.0/16 -j DROP`",
          "rule '-s 10.79.0.0/16 -j ACCEPT' in OVERLAY-TRUTH (IPv4 filter): missing",
        ],
        remains: [
          "foreign rule '-s 10.79.0.0/16 -j DROP' in OVERLAY-TRUTH (IPv4 filter): remove it with `iptables -t filter -D OVERLAY-TRUTH -s 10.79.0.0/16 -j DROP`",
        ],
        kept: /^RULE_FOREIGN/,
        undo: "iptables -D OVERLAY-TRUTH -s 10.79.0.0/16 -j DROP",
      },
      duplicated: {
        spoil: "iptables -A OVERLAY-TRUTH -s 10.79.0.0/16 -j ACCEPT",
        refresh: [
          "rule '-s 10.79.0.0/16 -j ACCEPT' in OVERLAY-TRUTH (IPv4 filter): number of copies is 2, should be 1",
        ],
      },
      "foreign twin": "a rule of the same text in our chain is a duplicate",
      "wrong mode": MODE,
    },
    notRemovable: RESTORE,
  },
  jump: {
    needs: [chain, { kind: "rule", ...place, rule: "-s 10.79.0.0/16 -j ACCEPT" }],
    item: { kind: "jump", family: 4, table: "filter", from: "FORWARD", chain: "OVERLAY-TRUTH" },
    look: "iptables -S FORWARD | grep TRUTH || :",
    twin: { make: "iptables -N OVERLAY-TRUTH; iptables -A FORWARD -j OVERLAY-TRUTH", undo: ":" },
    faults: {
      missing: {
        spoil: "iptables -D FORWARD -j OVERLAY-TRUTH",
        refresh: ["jump from FORWARD to OVERLAY-TRUTH (IPv4 filter): missing"],
      },
      changed: {
        spoil: "iptables -I FORWARD -s 10.79.0.0/16 -j DROP",
        refresh: ["jump from FORWARD to OVERLAY-TRUTH (IPv4 filter): position is 2, should be 1"],
        undo: "iptables -D FORWARD -s 10.79.0.0/16 -j DROP",
      },
      duplicated: {
        spoil: "iptables -A FORWARD -j OVERLAY-TRUTH",
        refresh: ["jump from FORWARD to OVERLAY-TRUTH (IPv4 filter): number of copies is 2, should be 1"],
      },
      "foreign twin": {
        spoil: "iptables -A FORWARD -i lo -j OVERLAY-TRUTH",
        refresh: [
          "foreign rule '-i lo -j OVERLAY-TRUTH' in FORWARD (IPv4 filter), which jumps to OVERLAY-TRUTH: remove it with `iptables -t filter -D FORWARD -i lo -j OVERLAY-TRUTH`",
        ],
        remains: [
          "foreign rule '-i lo -j OVERLAY-TRUTH' in FORWARD (IPv4 filter), which jumps to OVERLAY-TRUTH: remove it with `iptables -t filter -D FORWARD -i lo -j OVERLAY-TRUTH`",
        ],
        kept: /^RULE_FOREIGN/,
        undo: "iptables -D FORWARD -i lo -j OVERLAY-TRUTH",
      },
      "wrong mode": MODE,
    },
    notRemovable: RESTORE,
  },
};
