import type { TunnelName } from "../../provider/network/plan/tunnels";

/**
 * What an administrator or another program may do on a host by hand. In the commands: $T a tunnel's device, $N its number, $PORT its UDP port, $PEER
 * its peer on the underlay, $KEY the public key of a peer, $LOCAL the host's own address, $B the bridge, $GATEWAY and $HUBEND the addresses at the two
 * ends of the tunnel.
 */
export interface HostChange {
  on: "hub" | "runner" | "any";
  command: string;
  /** Only in networks with this tunnel. */
  tunnel?: TunnelName;
  /** It is another program's: we name it and keep it, and its administrator takes it back. Absent: `up --refresh` repairs it. */
  undo?: string;
}

const ours = (on: HostChange["on"], commands: string[]): HostChange[] => commands.map((command) => ({ on, command }));
const theirs = (on: HostChange["on"], pairs: [command: string, undo: string][]): HostChange[] =>
  pairs.map(([command, undo]) => ({ on, command, undo }));
const only = (tunnel: TunnelName, changes: HostChange[]): HostChange[] => changes.map((each) => ({ ...each, tunnel }));

const DEFAULT = "00:00:00:00:00:00";
/** Of no host. */
const OTHER_KEY = "TI7Hy8FqtCtl4iS0zImetgZOQmCq4rAXk858fgWlUkM=";

export const CHANGES: HostChange[] = [
  ...ours("any", [
    "ip link del $T",
    "ip link set $T down",
    "ip link set $T mtu 1300",
    "ip link set $T down; ip link set $T name other0; ip link set other0 up",
    "sysctl -qw net.ipv4.ip_forward=0",
    "iptables -F OVERLAY-FWD",
    "iptables -F OVERLAY-IN",
    "iptables -t mangle -F OVERLAY-GUARD",
    "iptables -t raw -F OVERLAY-PRE",
    "iptables -D FORWARD -j OVERLAY-FWD",
    "iptables -D INPUT -j OVERLAY-IN",
    "iptables -t mangle -D FORWARD -j OVERLAY-GUARD",
    "iptables -t raw -D PREROUTING -j OVERLAY-PRE",
    "iptables -F FORWARD; iptables -F INPUT",
    "iptables -F; iptables -X",
    "iptables -t nat -F",
    "nft list tables | grep -vw theirs | sed 's/^/delete /' | nft -f -", // all but that of `OTHER_OBJECTS`
    "iptables -I FORWARD -j OVERLAY-FWD",
    "rm -rf /var/lib/overlay",
    "rm -f /var/lib/overlay/training/*.json",
    "rm -f /var/lib/overlay/training/*.sh",
    "rm -f /var/lib/overlay/boot.sh",
    "rm -rf /var/lib/overlay/former",
    "chmod 777 /var/lib/overlay/boot.sh",
    "chmod 666 /var/lib/overlay/training/*.json",
    "echo 'echo mine' >>/var/lib/overlay/boot.sh",
    "for f in /var/lib/overlay/training/*.json; do echo garbage >$f; done",
    "for f in /var/lib/overlay/training/*.json; do : >$f; done",
    "rm -rf /run/pulumi-overlay",
    "umask 0; rm -rf /run/pulumi-overlay",
  ]),
  ...ours("hub", [
    "sysctl -qw net.ipv4.conf.$T.forwarding=0",
    "ip addr flush dev $T",
    "ip link del kohaku-host",
    "ip link set kohaku-host down",
    "ip addr flush dev kohaku-host",
    "ip route del unreachable 10.128.0.0/12",
    "iptables -t nat -F OVERLAY-DNAT",
    "iptables -t nat -D PREROUTING -j OVERLAY-DNAT",
    "ip addr del 10.254.200.0/32 dev overlay-vip",
    "ip link del overlay-vip",
  ]),
  ...ours("runner", [
    "ip link del $B",
    "ip link set $B down",
    "ip link set $B mtu 1300",
    "ip link set $B arp off",
    "ip link set $B address 02:00:00:00:00:98",
    "ip link set $B down; ip link set $B name br9; ip link set br9 up",
    "ip addr flush dev $B",
    "ip addr del $GATEWAY/18 dev $B",
    "ip addr add $GATEWAY/24 dev $B",
    "ip route del 10.128.0.0/12",
    "ip route flush proto 183",
    "sysctl -qw net.ipv4.conf.$B.forwarding=0",
    "iptables -t nat -F OVERLAY-NAT",
  ]),
  ...theirs("any", [
    ["iptables -A OVERLAY-FWD -p tcp --dport 25 -j DROP", "iptables -D OVERLAY-FWD -p tcp --dport 25 -j DROP"],
    ["iptables -I FORWARD -j DROP", "iptables -D FORWARD -j DROP"],
    ["iptables -I INPUT -p udp -j DROP", "iptables -D INPUT -p udp -j DROP"],
    ["iptables -P FORWARD DROP", "iptables -P FORWARD ACCEPT"],
    ["iptables -t mangle -I FORWARD -j DROP", "iptables -t mangle -D FORWARD -j DROP"],
    [
      "iptables -t mangle -A POSTROUTING -d 10.128.0.0/12 -j DROP",
      "iptables -t mangle -D POSTROUTING -d 10.128.0.0/12 -j DROP",
    ],
    [
      "iptables -t raw -I PREROUTING -p udp --dport $PORT -j DROP",
      "iptables -t raw -D PREROUTING -p udp --dport $PORT -j DROP",
    ],
    ["iptables -I OUTPUT -p udp --dport $PORT -j DROP", "iptables -D OUTPUT -p udp --dport $PORT -j DROP"],
    [
      "iptables -t nat -I PREROUTING -s 10.128.0.0/12 -j DNAT --to 10.254.9.9",
      "iptables -t nat -D PREROUTING -s 10.128.0.0/12 -j DNAT --to 10.254.9.9",
    ],
    [
      "nft 'table inet fz { chain f { type filter hook forward priority 10; policy drop; }; }'",
      "nft delete table inet fz",
    ],
    [
      "nft 'table inet fz { chain f { type filter hook input priority 10; udp dport $PORT drop; }; }'",
      "nft delete table inet fz",
    ],
    ["nft 'table bridge fz { chain f { type filter hook forward priority 0; drop; }; }'", "nft delete table bridge fz"],
    ["ip rule add to 10.128.0.0/12 blackhole priority 99", "ip rule del priority 99"],
    [
      "ip rule add from all lookup 77 priority 98; ip route add 10.128.0.0/12 via 10.254.9.9 table 77",
      "ip rule del priority 98; ip route flush table 77",
    ],
    ["ip route add blackhole 10.128.64.0/19", "ip route del blackhole 10.128.64.0/19"],
    ["ip route add 10.128.64.0/19 dev lo proto 183", "ip route del 10.128.64.0/19 proto 183"],
    ["ip route add unreachable $PEER", "ip route del unreachable $PEER"],
    ["mount -t tmpfs tmpfs /var/lib/overlay", "umount /var/lib/overlay"],
  ]),
  ...only("vxlan", [
    ...ours("any", [
      "ip link set $T address 02:00:00:00:00:99",
      "ip link set $T type vxlan id 10$N remote 10.254.9.9",
      "ip link set $T type vxlan id 10$N learning",
      `bridge fdb del ${DEFAULT} dev $T dst $PEER`,
    ]),
    ...ours("hub", ["ip addr del $HUBEND/18 dev $T", "ip addr add $HUBEND/24 dev $T"]),
    ...ours("runner", [
      "ip link set $T nomaster",
      "bridge link set dev $T isolated on",
      "bridge link set dev $T state 0",
      "bridge link set dev $T learning off flood off",
    ]),
    ...theirs("any", [
      [`bridge fdb append ${DEFAULT} dev $T dst 10.254.9.9`, `bridge fdb del ${DEFAULT} dev $T dst 10.254.9.9`],
    ]),
  ]),
  ...only("wireguard", [
    ...ours("any", [
      "wg set $T private-key /dev/null",
      "wg genkey >/tmp/other.key; wg set $T private-key /tmp/other.key",
      "wg set $T listen-port 1234",
      "wg set $T peer $KEY remove",
      "wg set $T peer $KEY allowed-ips 10.9.9.9/32",
      "wg set $T peer $KEY persistent-keepalive off",
      "wg set $T peer $KEY endpoint 10.254.9.9:9",
      "wg genpsk >/tmp/preshared.key; wg set $T peer $KEY preshared-key /tmp/preshared.key",
      "for p in $(pidof wireguard-go); do kill $p; done",
      "rm /var/lib/overlay/training/tunnel.key",
      "chmod 644 /var/lib/overlay/training/tunnel.key",
      "ip addr flush dev $T",
      "ip -6 addr flush dev $T",
      "ip route flush dev $T",
      "sysctl -qw net.ipv4.conf.$T.rp_filter=1",
      "sysctl -qw net.ipv4.conf.$T.forwarding=0",
    ]),
    ...ours("hub", ["ip addr del $HUBEND/32 dev kohaku-host"]),
    ...ours("runner", ["ip neigh del proxy $HUBEND dev $B", "ip route del $HUBEND/32"]),
    ...theirs("any", [
      [`wg set $T peer ${OTHER_KEY} allowed-ips 10.128.64.0/18,10.128.128.0/18`, `wg set $T peer ${OTHER_KEY} remove`],
      [
        `wg set $T peer ${OTHER_KEY} endpoint 10.254.9.9:9 allowed-ips 10.128.64.0/24,10.128.128.0/24`,
        `wg set $T peer ${OTHER_KEY} remove`,
      ],
    ]),
  ]),
];

/** What disturbs an `up` while it runs: the command, and what ends it. */
export const FAULTS: { begin: string; end: string }[] = [
  ...["iptables-restore", "ip", "bridge", "wg", "sync", "mv", "iptables-save"].map((tool) => ({
    begin: `printf '#!/bin/sh\\nexit 1\\n' >/usr/local/sbin/${tool}; chmod +x /usr/local/sbin/${tool}`,
    end: `rm -f /usr/local/sbin/${tool}`,
  })),
  {
    begin: "setsid flock /run/xtables.lock sleep 12 </dev/null >/dev/null 2>&1 & echo $! >/tmp/fuzz-lock",
    end: "kill $(cat /tmp/fuzz-lock) 2>/dev/null; :",
  },
  {
    begin:
      "mkdir -pm 700 /run/pulumi-overlay; setsid flock /run/pulumi-overlay sleep 12 </dev/null >/dev/null 2>&1 & echo $! >/tmp/fuzz-lock",
    end: "kill $(cat /tmp/fuzz-lock) 2>/dev/null; :",
  },
  {
    begin: "iptables -t raw -I PREROUTING -p tcp --dport 22 -j DROP",
    end: "while iptables -t raw -D PREROUTING -p tcp --dport 22 -j DROP 2>/dev/null; do :; done",
  },
  // Sessions are the children of the listening server.
  {
    begin: "for p in $(pidof sshd); do [ \"$(awk '{ print $4 }' /proc/$p/stat)\" = 1 ] || kill -STOP $p; done",
    end: "kill -CONT $(pidof sshd)",
  },
  {
    begin: "for p in $(pidof sshd); do [ \"$(awk '{ print $4 }' /proc/$p/stat)\" = 1 ] || kill -KILL $p; done",
    end: ":",
  },
];
