import { runnerLayout } from "../../addressing/layout";
import { type Item, itemKey } from "../model/items";
import { quote } from "../render/shell";
import { type Network, uniqueByKey } from "./hub";
import { tunnelOf } from "./tunnels";

/**
 * How the tunnel of a runner changes while packets pass: from VXLAN to WireGuard and back, from one key to the next, and by a temporary tunnel
 * from one VNI or UDP port to another.
 *
 *      runner             hub
 *      old                old
 *   0  both, sends by old
 *   1                     both, sends by old      a probe passes by the new one
 *   2                     both, sends by new
 *   3  both, sends by new                         workloads learn where the hub's address is
 *   4  new
 *   5                     new
 *
 * A host with both accepts both. So packets pass between any two phases, and a run that is killed there leaves a working tunnel. The items of a
 * phase are all that the host has then. A later run compares the hosts with the phases, and begins at the first that is not done.
 */
export interface Phase {
  role: "hub" | "runner";
  items: Item[];
  next?: "probe" | "announce";
}

interface Ends {
  hub: Item[];
  runner: Item[];
}

/** The phases after which both hosts have both. */
export const PHASES_WITH_BOTH = 4;

export function planPhases(former: Ends, target: Ends, transition: Ends): Phase[] {
  const both = (role: Phase["role"], used: Ends, other: Ends): Phase => {
    const items = uniqueByKey([
      ...other[role].filter((item) => !selectsTunnel(item)),
      ...transition[role],
      ...used[role],
    ]);
    return { role, items: items.sort(byKey) }; // the same for both directions
  };
  return [
    both("runner", former, target),
    { ...both("hub", former, target), next: "probe" },
    both("hub", target, former),
    { ...both("runner", target, former), next: "announce" },
    { role: "runner", items: target.runner, next: "announce" },
    { role: "hub", items: target.hub },
  ];
}

const byKey = (a: Item, b: Item): number => (itemKey(a) < itemKey(b) ? -1 : 1);

/** Whether it decides which tunnel packets take. */
const selectsTunnel = (item: Item): boolean =>
  (item.kind === "route" && item.dev !== undefined) || item.kind === "neighbour";

/** Gratuitous ARP and unsolicited neighbour advertisements for addresses that this host answers for without having them. */
const ANNOUNCE = `
import socket, struct, sys
device, *addresses = sys.argv[1:]
mac = bytes.fromhex(open(f"/sys/class/net/{device}/address").read().strip().replace(":", ""))
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((device, 0))
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
for address in addresses:
    if ":" in address:
        ip, all_nodes = (socket.inet_pton(socket.AF_INET6, each) for each in (address, "ff02::1"))
        advert = lambda sum: struct.pack("!BBHI", 136, 0, sum, 0x20000000) + ip + b"\\2\\1" + mac
        sum_of = checksum(ip + all_nodes + struct.pack("!II", 32, 58) + advert(0))
        header = struct.pack("!IHBB", 0x60000000, 32, 58, 255) + ip + all_nodes
        raw.send(bytes.fromhex("333300000001") + mac + b"\\x86\\xdd" + header + advert(sum_of))
    else:
        ip = socket.inet_aton(address)
        arp = struct.pack("!HHBBH", 1, 0x800, 6, 4, 1) + mac + ip + bytes(6) + ip
        raw.send(b"\\xff" * 6 + mac + b"\\x08\\x06" + arp)
`.trim();

/**
 * With VXLAN, workloads have the hub's own MAC for its address in their subnet, some from an ICMP redirect for packets to everywhere. With the VXLAN
 * device they lose it. A tunnel that routes has the runner answer, so it announces its bridge's MAC: at once, and again for workloads whose
 * entry was less than a second old, before the VXLAN device is removed.
 */
export function renderAnnounceHub(network: Network, runnerId: number): string | undefined {
  if (!tunnelOf(network).isRouted) return undefined;
  const addresses = network.layouts.map((layout) => runnerLayout(layout, runnerId).hubIp).join(" ");
  const announce = `python3 -c ${quote(ANNOUNCE)} ${network.bridgeName} ${addresses}`;
  return `command -v python3 >/dev/null || exit ${NO_PYTHON}\n${announce}\nsleep 1.1\n${announce}`;
}

/** Exit code of that script. */
export const NO_PYTHON = 3;
